"""Requests that stay in the network, and arrive when nobody waits for them any more."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable

import pytest

from relevo_engine.local.brokers import LocalBrokers
from relevo_partitions.kafka import writer as writing
from relevo_partitions.kafka.writer import DROPPED_STRAY
from relevo_partitions.outcomes import Aborted, Committed, Unclear
from relevo_partitions.statemachine import Write
from tests.support.batches import Batches, Ledger
from tests.support.brokers import unique_cluster_name
from tests.support.kafka_frames import Api, Fate, FrameProxy, Rule
from tests.support.waiting import wait_until

BATCHES = int(os.environ.get("RELEVO_TEST_LATE_BATCHES", "80"))
TRANSACTIONS = int(os.environ.get("RELEVO_TEST_TRANSACTIONS", "120"))
STRAYS = [Fate.HOLD_AND_CUT, Fate.HOLD_AND_CUT_OTHERS]
"""With all but the coordinator's gone, librdkafka closes that connection too, and doesn't log it."""


class Bench(Batches):
    """Batches on a way that the proxy is on."""

    def __init__(self, kafka: str, proxy: FrameProxy, name: str) -> None:
        super().__init__(kafka, proxy.address, name)
        self.proxy = proxy


@pytest.fixture
def bench(behind_frames: tuple[LocalBrokers, FrameProxy], request: pytest.FixtureRequest) -> Bench:
    brokers, proxy = behind_frames
    return Bench(brokers.kafka, proxy, unique_cluster_name(request.node.name))


def first(api: Api, fate: Fate) -> Rule:
    """That for the next request of the kind, and nothing for others."""
    met: list[int] = []

    def rule(key: int, _frame: bytes) -> Fate:
        if key != api or met:
            return Fate.PASS
        met.append(key)
        return fate

    return rule


def in_the_middle(bench: Bench, act: Callable[[], None]) -> list[bytes]:
    """Let ``act`` happen once a part of the next transaction's records stands in Kafka."""
    seen: list[bytes] = []
    before = bench.end()

    def rule(api: int, frame: bytes) -> Fate:
        if api == Api.PRODUCE:
            seen.append(frame[:8])
            if len(seen) == 3:
                wait_until(lambda: bench.end() > before, "a part of the transaction stands in Kafka")
                act()
        return Fate.PASS

    bench.proxy.rule = rule
    return seen


@pytest.mark.parametrize("ending", ["commit", "abort"])
@pytest.mark.parametrize("fate", STRAYS, ids=lambda fate: fate.name)
def test_a_stray_end_of_a_transaction_does_not_end_the_next(bench: Bench, ending: str, fate: Fate) -> None:
    """The client sends it again over a new connection and goes on; the first one comes out of a queue later.

    The brokers can't tell the transactions of a producer apart: half a transaction would be committed.
    """
    writer = bench.writer()
    assert isinstance(writer.commit(bench.batch(1)), Committed)
    bench.proxy.rule = first(Api.END_TXN, fate)
    held = bench.proxy.held
    if ending == "commit":
        assert isinstance(writer.commit(bench.batch(2)), Committed)
    else:
        outcome = writer.commit([*bench.batch(2), Write(bench.missing, 0, b"", b"")])
        assert isinstance(outcome, Aborted)
    assert bench.proxy.held == held + 1

    halves: list[int] = []

    def strayed() -> None:
        bench.proxy.release()
        time.sleep(0.3)  # nobody is told when the broker has got it
        halves.append(bench.records().get(3, 0))

    sent = in_the_middle(bench, strayed)
    big = bench.batch(3, size=2, padding=500_000)
    if not isinstance(writer.commit(big), Committed):
        assert bench.records().get(3, 0) == 0, "a part of a transaction was committed"
        writer = bench.writer()
        assert isinstance(writer.commit(big), Committed)
    assert len(sent) >= 3, "the batch wasn't sent in parts"
    assert halves == [0], "half a transaction was committed"
    assert isinstance(writer.commit(bench.batch(4)), Committed)
    whole = {1: 80, 3: 8, 4: 80}
    assert bench.records() == (whole | {2: 80} if ending == "commit" else whole)


@pytest.mark.parametrize("fate", [Fate.LOSE, Fate.LOSE_REPLY, *STRAYS], ids=lambda fate: fate.name)
def test_a_broken_connection_to_the_coordinator_is_noticed(bench: Bench, fate: Fate) -> None:
    """The client tells nobody: it sends the commit again, and a producer with strays would be used on."""
    writer = bench.writer()
    assert isinstance(writer.commit(bench.batch(1)), Committed)
    bench.proxy.rule = first(Api.END_TXN, fate)
    assert isinstance(writer.commit(bench.batch(2)), Committed)
    refused = writer.commit(bench.batch(3))
    assert not isinstance(refused, Committed)
    assert refused == Unclear(DROPPED_STRAY)
    assert bench.records() == {1: 80, 2: 80}
    assert isinstance(bench.writer().commit(bench.batch(4)), Committed)


@pytest.mark.parametrize(
    "api", [Api.PRODUCE, Api.END_TXN, Api.ADD_PARTITIONS_TO_TXN], ids=lambda api: api.name
)
def test_a_request_that_comes_after_its_time_out_changes_nothing_any_more(
    bench: Bench, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was given up would commit what its producer has written since."""
    monkeypatch.setattr(writing, "DELIVERY_TIMEOUT_S", 1.0)
    monkeypatch.setattr(writing, "COMMIT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(writing, "ABORT_TIMEOUT_S", 1.0)
    writer = bench.writer()
    assert isinstance(writer.commit(bench.batch(1)), Committed)
    bench.proxy.rule = first(api, Fate.HOLD)
    outcome = writer.commit(bench.batch(2))
    assert not isinstance(outcome, Committed)

    def strayed(point: str) -> None:
        if point == "commit":
            bench.proxy.release()
            time.sleep(0.3)  # nobody is told when the broker has got it

    bench.at = strayed
    if not isinstance(outcome, Aborted):
        writer = bench.writer()
    assert isinstance(writer.commit(bench.batch(3)), Committed)
    bench.at = lambda _point: None
    assert isinstance(writer.commit(bench.batch(4)), Committed)
    assert bench.records() == {1: 80, 3: 80, 4: 80}


def test_a_commit_that_gets_no_answer_is_unclear_and_ends_the_producer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit goes on in the background: the producer must not begin another transaction."""
    monkeypatch.setattr(writing, "COMMIT_TIMEOUT_S", 0.5)
    writer = bench.writer()
    assert isinstance(writer.commit(bench.batch(1)), Committed)
    bench.proxy.rule = first(Api.END_TXN, Fate.HOLD)
    held = bench.proxy.held
    assert isinstance(writer.commit(bench.batch(2)), Unclear)
    assert bench.proxy.held == held + 1
    bench.proxy.release()
    assert isinstance(writer.commit(bench.batch(3)), Unclear)
    assert isinstance(bench.writer().commit(bench.batch(4)), Committed)
    assert bench.records() in ({1: 80, 2: 80, 4: 80}, {1: 80, 4: 80})


@pytest.mark.timeout(180 + BATCHES)
def test_requests_held_and_released_at_random_tear_no_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "DELIVERY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(writing, "COMMIT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(writing, "ABORT_TIMEOUT_S", 0.5)
    dice = random.Random(14)
    kinds = [Api.PRODUCE, Api.END_TXN, Api.ADD_PARTITIONS_TO_TXN, Api.INIT_PRODUCER_ID]
    met: Counter[tuple[int, Fate]] = Counter()

    def rule(api: int, _frame: bytes) -> Fate:
        if api not in kinds or dice.random() > 0.04:
            return Fate.PASS
        fate = dice.choice([Fate.HOLD, Fate.HOLD_AND_CUT, Fate.HOLD_AND_CUT, Fate.LOSE, Fate.LOSE_REPLY])
        met[api, fate] += 1
        return fate

    ledger = Ledger(bench)
    bench.proxy.rule = rule
    bench.at = lambda _point: bench.proxy.release() if dice.random() < 0.1 else None
    for number in range(1, BATCHES + 1):
        ledger.write(number)
    bench.proxy.rule = lambda _api, _frame: Fate.PASS
    bench.proxy.release()
    monkeypatch.undo()
    ledger.works_on(BATCHES + 1)
    ledger.check()
    assert met.total() > 5, "hardly anything was held"
    assert len(ledger.told[Committed]) > 20, ledger.told


@pytest.mark.timeout(180 + TRANSACTIONS)
@pytest.mark.parametrize("where", ["between", "commit"])
def test_broken_connections_take_nothing_out_of_a_transaction(bench: Bench, where: str) -> None:
    """Between the records and the commit, or with the commit under way: what was committed lacks nothing."""
    ledger = Ledger(bench)
    dice = random.Random(15)

    def between(point: str) -> None:
        if point == "commit" and dice.random() < 0.2:
            bench.proxy.cut()

    def under_way(api: int, _frame: bytes) -> Fate:
        if api == Api.END_TXN and dice.random() < 0.2:
            return dice.choice([Fate.LOSE, Fate.LOSE_REPLY])
        return Fate.PASS

    if where == "between":
        bench.at = between
    else:
        bench.proxy.rule = under_way
    for number in range(TRANSACTIONS):
        ledger.write(number)
    bench.proxy.rule = lambda _api, _frame: Fate.PASS
    bench.at = lambda _point: None
    ledger.write(TRANSACTIONS)
    ledger.check()
    assert len(ledger.told[Committed]) >= TRANSACTIONS / 2, ledger.told
