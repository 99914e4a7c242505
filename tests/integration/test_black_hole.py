"""A leader's requests vanish, kind by kind: no call may keep a partition from whoever could work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relevo_engine.local.brokers import LocalBrokers
from relevo_partitions.kafka import fence as fencing
from relevo_partitions.kafka import writer as writing
from relevo_partitions.settings import TermSettings
from relevo_partitions.term import leadership as terms
from tests.support.brokers import unique_cluster_name
from tests.support.call_bounds import GIVEN_UP_S
from tests.support.counter_cluster import CounterCluster, counter_cluster
from tests.support.kafka_frames import Api, Fate, FrameProxy, commits
from tests.support.waiting import wait_until

SLACK_S = 15.0
"""For the takeover, and for a machine that has other things to do: what counts is that each limit is kept."""

CALLS: dict[str, Callable[[int, bytes], bool]] = {
    "init": lambda api, _frame: api == Api.INIT_PRODUCER_ID,
    "first produce": lambda api, _frame: api == Api.ADD_PARTITIONS_TO_TXN,
    "flush": lambda api, _frame: api == Api.PRODUCE,
    "commit": lambda api, frame: api == Api.END_TXN and commits(frame),
    "abort": lambda api, frame: api == Api.END_TXN and not commits(frame),
    "fetch": lambda api, _frame: api == Api.FETCH,
}


@pytest.fixture
def cluster(
    behind_frames: tuple[LocalBrokers, FrameProxy],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CounterCluster]:
    """Limits of calls are a few seconds."""
    for name in ("DELIVERY_TIMEOUT_S", "COMMIT_TIMEOUT_S", "ABORT_TIMEOUT_S"):
        monkeypatch.setattr(writing, name, 2.0)
    monkeypatch.setattr(terms, "FRUITLESS_S", 2.0)
    monkeypatch.setattr(fencing, "LIMIT_S", 4.0)
    monkeypatch.setattr(fencing, "TRY_MAX_S", 2.0)
    brokers, proxy = behind_frames
    with counter_cluster(brokers, unique_cluster_name(request.node.name)) as cluster:
        yield cluster
        proxy.heal()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_never_answered_costs_a_leader_its_partition(
    behind_frames: tuple[LocalBrokers, FrameProxy], cluster: CounterCluster, call: str
) -> None:
    """Its way to Kafka is broken, its way to ZooKeeper isn't: nobody would take the partition from it."""
    proxy = behind_frames[1]
    cluster.host("n1", kafka=proxy.address, give_back_after_s=1_000.0)
    cluster.wait_leader("n1")
    cluster.send(id="before", add=1)
    cluster.wait_total(1)
    cluster.host("n2", give_back_after_s=1_000.0)
    wait_until(lambda: cluster.hosts["n1"].views()[0].candidates == ("n2",), "n2 could take over")
    held = proxy.held
    swallowed = CALLS[call]

    def rule(api: int, frame: bytes) -> Fate:
        if not swallowed(api, frame) or (call == "abort" and proxy.held > held):
            return Fate.PASS
        return Fate.HOLD

    proxy.rule = rule
    if call == "init":
        proxy.cut()  # a commit is sent again over a new connection, behind a new fence
    sent = 1
    to: dict[str, Any] = {"to": cluster.topic("missing")} if call == "abort" else {}
    while proxy.held == held:
        sent += 1
        cluster.send(id=f"c{sent}", add=1, **to)
        time.sleep(0.05)
        assert sent < 500, "nothing of the kind was sent"
    if call == "fetch":  # the one before may have brought the last command
        sent += 1
        cluster.send(id=f"c{sent}", add=1)
    within_s = GIVEN_UP_S[call]() + SLACK_S  # of the limits as this test has set them
    # After an abort that wasn't answered another producer goes on, which has nothing to abort.
    cluster.wait_leader(*(("n1", "n2") if call == "abort" else ("n2",)), timeout_s=within_s)
    cluster.wait_total(sent, timeout_s=within_s)
    proxy.rule = lambda _api, _frame: Fate.PASS
    proxy.release()
    cluster.send(id="after", add=10)
    cluster.wait_total(sent + 10)
    assert cluster.check_log().total == sent + 10
    assert cluster.hosts["n1"].stop(10)


def test_a_broken_connection_hands_a_large_partition_over(
    behind_frames: tuple[LocalBrokers, FrameProxy], cluster: CounterCluster
) -> None:
    """It costs the producer, and with that the machine: whoever has one that is hot is sooner."""
    proxy, large = behind_frames[1], TermSettings(rebuild_max=2)
    cluster.host("n1", kafka=proxy.address, give_back_after_s=1_000.0, term=large)
    cluster.wait_leader("n1")
    for number in range(5):
        cluster.send(id=f"c{number}", add=1)
    cluster.wait_total(5)
    cluster.host("n2", give_back_after_s=1_000.0, term=large)
    leadership = cluster.hosts["n1"]._supervisor.posts[0].leadership
    wait_until(lambda: leadership is not None and leadership.heir_is_hot, "n2 could take over")
    proxy.cut()
    cluster.send(id="after", add=10)  # commits over a new connection; whatever follows it may not
    cluster.wait_total(15)
    cluster.wait_leader("n2")
    assert "would have to be read anew" in str(cluster.diaries["n1"].roles)
    assert cluster.check_log().total == 15


def test_an_abort_without_its_broker_ends(
    behind_frames: tuple[LocalBrokers, FrameProxy], cluster: CounterCluster
) -> None:
    """The way back fails too: whoever tries it again and again never leads, nor lets anybody else."""
    brokers = behind_frames[0]
    reached: list[str] = []

    def checkpoint(_partition: int, point: str) -> None:
        if point == "abort" and not reached:
            reached.append(point)
            brokers.kafka_servers[0].kill()

    cluster.host("n1", checkpoint=checkpoint)
    cluster.wait_leader("n1")
    cluster.send(id="a", add=1, to=cluster.topic("missing"))
    wait_until(
        lambda: any("the abort failed too" in fault for _, _, fault in cluster.diaries["n1"].faults),
        "the abort was given up",
    )
    assert "commit_unclear" in cluster.diaries["n1"].kinds()
    brokers.kafka_servers[0].restart()
    brokers.await_brokers()
    cluster.send(id="b", add=10)
    cluster.wait_total(11, timeout_s=60)
    assert reached == ["abort"]
    assert [e["id"] for e in cluster.events() if e["kind"] == "added"] == ["a", "b"]
    cluster.check_log()
