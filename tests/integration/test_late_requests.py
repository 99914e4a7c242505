"""Requests that stay in the network, and arrive when nobody waits for them any more."""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined] # its stubs re-export silently
from confluent_kafka.cimpl import NewTopic

from relevo_partitions.kafka import writer as writing
from relevo_partitions.kafka.connection import Connection
from relevo_partitions.kafka.fence import ProducerPool, fence
from relevo_partitions.kafka.writer import DROPPED_STRAY, TransactionalWriter
from relevo_partitions.outcomes import Aborted, Committed, Outcome, Unclear
from relevo_partitions.statemachine import Write
from tests.support.brokers import unique_cluster_name
from tests.support.counter_cluster import read_all
from tests.support.kafka_frames import Api, Fate, FrameProxy, Rule, brokers_behind_frames
from tests.support.waiting import wait_until

PARTITIONS = 2
STRAYS = [Fate.HOLD_AND_CUT, Fate.HOLD_AND_CUT_OTHERS]
"""With all but the coordinator's gone, librdkafka closes that connection too, and doesn't log it."""


class Bench:
    """A log and another topic, and one partition owner's way to them that the proxy is on."""

    def __init__(self, kafka: str, proxy: FrameProxy, name: str) -> None:
        self.kafka, self.proxy, self.name = kafka, proxy, name
        self.log, self.other, self.missing = f"{name}.log", f"{name}.other", f"{name}.missing"
        self.at: Callable[[str], None] = lambda _point: None
        self._admin = AdminClient({"bootstrap.servers": kafka})
        for made in self._admin.create_topics(
            [NewTopic(t, PARTITIONS, 1) for t in (self.log, self.other)]
        ).values():
            made.result(30)

    def writer(self) -> TransactionalWriter:
        """Behind a fence, as after every setback of a term."""
        connection = Connection(self.proxy.address)
        producer, faults = fence(ProducerPool(connection, f"{self.name}-0", self.log), lambda: False)
        return TransactionalWriter(producer, faults, connection, self.log, lambda point: self.at(point))

    def batch(self, number: int, size: int = 20, padding: int = 0) -> list[Write]:
        """Records over all partitions that belong together."""
        return [
            Write(topic, partition, b"", b"%d/%d " % (number, nth) + os.urandom(padding))
            for nth in range(size)
            for topic in (self.log, self.other)
            for partition in range(PARTITIONS)
        ]

    def end(self) -> int:
        """Ends of all partitions, added up: records of an open transaction stand below them."""
        latest = {
            TopicPartition(topic, partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for topic in (self.log, self.other)
            for partition in range(PARTITIONS)
        }
        return sum(found.result(10).offset for found in self._admin.list_offsets(latest).values())

    def records(self) -> dict[int, int]:
        """How many committed records of each batch there are."""
        found: Counter[int] = Counter()
        for topic in (self.log, self.other):
            for partition in range(PARTITIONS):
                values = [value.split(b" ")[0] for value in read_all(self.kafka, topic, partition)]
                assert len(values) == len(set(values)), "a record stands there twice"
                found.update(int(value.split(b"/")[0]) for value in values)
        return found


@pytest.fixture(scope="module")
def behind() -> Iterator[tuple[str, FrameProxy]]:
    with brokers_behind_frames() as (brokers, proxy):
        yield brokers.kafka, proxy


@pytest.fixture
def bench(behind: tuple[str, FrameProxy], request: pytest.FixtureRequest) -> Iterator[Bench]:
    kafka, proxy = behind
    yield Bench(kafka, proxy, unique_cluster_name(request.node.name))
    proxy.rule = lambda _api, _frame: Fate.PASS
    proxy.release()


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


class Ledger:
    """What became of each batch, as its writer was told."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._writer = bench.writer()
        self.told: dict[type[Outcome], list[int]] = defaultdict(list)

    def write(self, number: int) -> None:
        """As a term does it: after anything but a commit or a clean abort, a new producer."""
        outcome = self._writer.commit(self._bench.batch(number))
        self.told[type(outcome)].append(number)
        if not isinstance(outcome, Committed | Aborted):
            self._writer.drop()
            self._writer = self._bench.writer()

    def check(self) -> None:
        """Each batch is whole or absent, as its writer was told."""
        found = self._bench.records()
        assert set(found.values()) <= {80}, "a part of a batch was committed"
        missing = [number for number in self.told[Committed] if number not in found]
        assert not missing, f"acknowledged, and not there: {missing}"
        there = [number for number in self.told[Aborted] if number in found]
        assert not there, f"rejected, and there: {there}"


@pytest.mark.timeout(180)
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
    batches = int(os.environ.get("RELEVO_TEST_LATE_BATCHES", "80"))
    for number in range(1, batches + 1):
        ledger.write(number)
    bench.proxy.rule = lambda _api, _frame: Fate.PASS
    bench.proxy.release()
    monkeypatch.undo()
    _works_on(ledger, batches + 1)
    ledger.check()
    assert met.total() > 5, "hardly anything was held"
    assert len(ledger.told[Committed]) > 20, ledger.told


def _works_on(ledger: Ledger, number: int) -> None:
    """What was released may still meet the next writes; each that it spoils is followed by a new fence."""
    for last in range(number, number + 5):
        ledger.write(last)
        if last in ledger.told[Committed]:
            return
    raise AssertionError(f"nothing is committed any more: {dict(ledger.told)}")


@pytest.mark.timeout(180)
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
    for number in range(int(os.environ.get("RELEVO_TEST_TRANSACTIONS", "120"))):
        ledger.write(number)
    bench.proxy.rule = lambda _api, _frame: Fate.PASS
    bench.at = lambda _point: None
    ledger.write(1_000)
    ledger.check()
    assert len(ledger.told[Committed]) >= 60, ledger.told
