"""Partitions that move in order: a node stops, a better one comes back, all are restarted one by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from relevo_partitions.election.ranking import ranking
from relevo_partitions.election.zookeeper import ZooKeeper
from relevo_partitions.host import PartitionHost
from relevo_partitions.term.roles import Role
from relevo_partitions.term.takeover import Cause
from tests.support.brokers import Brokers
from tests.support.counter_cluster import CounterCluster, counter_cluster
from tests.support.counter_machine import CounterMachine
from tests.support.counter_process import CounterProcess
from tests.support.fixtures import StartBrokers
from tests.support.waiting import wait_until

PARTITIONS = 3
LONG_SESSION_S = 20.0


@pytest.fixture
def cluster(brokers: Brokers, cluster_name: str) -> Iterator[CounterCluster]:
    with counter_cluster(brokers, cluster_name, PARTITIONS) as cluster:
        yield cluster


def hot_elsewhere(cluster: CounterCluster, node: str) -> bool:
    """Whether all that ``node`` leads has somebody who can take it over, as ``node`` sees it."""
    views = cluster.hosts[node].views()
    return all(view.candidates for view in views if view.role == Role.LEADING)


def settled(cluster: CounterCluster) -> bool:
    """Whether each partition has one leader and a hot standby, as every node sees it."""
    if any(len(cluster.leaders(number)) != 1 for number in range(PARTITIONS)):
        return False
    return all(
        view.candidates and view.leader in cluster.leaders(view.partition)
        for host in cluster.hosts.values()
        for view in host.views()
    )


def sum_up(cluster: CounterCluster, totals: list[int]) -> None:
    for number in range(PARTITIONS):
        cluster.wait_total(totals[number], number)
        assert cluster.check_log(number).total == totals[number]


class Load:
    """Sends commands to all partitions, steadily, until the end of the block."""

    def __init__(self, cluster: CounterCluster) -> None:
        self._cluster = cluster
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sent += 1
            for number in range(PARTITIONS):
                self._cluster.send(number, id=f"load {self.sent}", add=1)
            time.sleep(0.005)


def longest_gap_ms(cluster: CounterCluster, partition: int) -> int:
    events = cluster.events(partition)
    at: list[int] = [event["at"] for event in events if event["kind"] in ("added", "elected")]
    return max(after - before for before, after in pairwise(at))


def test_a_node_that_stops_hands_everything_over_before_it_leaves(cluster: CounterCluster) -> None:
    """Its sessions's end would be noticed too, but each partition would stand still meanwhile."""
    for node in ("n1", "n2"):
        cluster.host(node, session_timeout_s=LONG_SESSION_S, settle_s=1.0)
    wait_until(lambda: settled(cluster), "all is led and followed")
    stopping = cluster.wait_leader(partition=0)
    other = {"n1": "n2", "n2": "n1"}[stopping]
    led = [number for number in range(PARTITIONS) if cluster.leaders(number) == [stopping]]
    with Load(cluster) as load:
        wait_until(lambda: load.sent > 50, "some load")
        assert cluster.hosts[stopping].stop(15)
        handed = [(reason, to) for _, reason, to in cluster.diaries[stopping].handed]
        assert handed == [("leaving", other)] * len(led)
        for number in led:
            cluster.wait_leader(other, partition=number)
        seen = load.sent
        wait_until(lambda: load.sent > seen + 50, "more load")
    sum_up(cluster, [load.sent] * PARTITIONS)
    assert all(
        takeover.cause in (Cause.START, Cause.HAND_OVER) for takeover in cluster.hosts[other].takeovers()
    )


def test_a_stop_waits_for_a_standby_to_catch_up_but_not_without_end(cluster: CounterCluster) -> None:
    cluster.host("n1")
    for number in range(PARTITIONS):
        cluster.wait_leader("n1", partition=number)
    gate = threading.Event()

    def slowly(partition: int) -> CounterMachine:
        assert gate.wait(60)
        return CounterMachine(partition, cluster.name)

    cluster.host("n2", machine=slowly)
    wait_until(lambda: cluster.role("n2") == Role.FOLLOWING, "n2 loads")
    stopped = threading.Thread(target=lambda: cluster.hosts["n1"].stop(40))
    stopped.start()
    wait_until(
        lambda: "no other is hot" in str(cluster.hosts["n1"].views()[0].hand_over),
        "it says what it waits for",
    )
    assert cluster.role("n1") == Role.LEADING
    gate.set()
    for number in range(PARTITIONS):
        cluster.wait_leader("n2", partition=number)
    stopped.join(40)
    assert not stopped.is_alive()
    gate.clear()
    began = time.monotonic()
    cluster.hosts["n2"].stop(6)
    assert time.monotonic() - began < 15


def test_a_node_that_ranks_first_gets_its_partitions_back(cluster: CounterCluster) -> None:
    """Otherwise one node leads everything after the first restart, for good."""
    wanted = {number: ranking(number, ["n1", "n2"])[0] for number in range(PARTITIONS)}
    cluster.host("n1", give_back_after_s=1.0)
    for number in range(PARTITIONS):
        cluster.wait_leader("n1", partition=number)
        cluster.send(number, id="before", add=1)
        cluster.wait_total(1, number)
    cluster.host("n2", give_back_after_s=1.0)
    for number, node in wanted.items():
        cluster.wait_leader(node, partition=number)
    moved = [number for number, node in wanted.items() if node == "n2"]
    assert moved, "the test needs a partition that n2 ranks first for"
    wait_until(lambda: settled(cluster), "all is led and followed again")
    handed = [(number, reason, to) for number, reason, to in cluster.diaries["n1"].handed]
    assert sorted(handed) == [(number, "given_back", "n2") for number in moved]
    time.sleep(3)  # long enough for a partition that is passed to and fro to move again
    for number, node in wanted.items():
        assert cluster.leaders(number) == [node]
        assert cluster.check_log(number).epoch == (2 if node == "n2" else 1)
        assert cluster.check_log(number).total == 1


def test_a_successor_that_dies_while_it_is_handed_a_partition_is_followed(
    brokers: Brokers, cluster_name: str
) -> None:
    """The second failure comes during the first move: somebody leads all the same, and soon."""
    with counter_cluster(brokers, cluster_name) as cluster:
        first, second, third = ranking(0, ["n1", "n2", "n3"])
        given = {"kafka": cluster.kafka, "zookeeper": cluster.zookeeper, "cluster": cluster.name}
        settings: dict[str, Any] = {
            "session_timeout_s": LONG_SESSION_S, "replicas": 2, "give_back_after_s": 1.0,
        }  # fmt: skip
        for node in (second, third):
            cluster.host(node, **settings)
        cluster.wait_leader(second)
        cluster.send(id="a", add=1)
        # It freezes right behind its fence: the claim is its own, and nobody leads.
        with CounterProcess(**given, node=first, freeze_at="fenced", armed=True, **settings) as successor:
            wait_until(lambda: successor.heard("frozen"), "it has claimed and fenced", timeout_s=40)
            cluster.send(id="b", add=1)
            successor.kill()
            began = time.monotonic()
            cluster.wait_leader(second, third)
            assert time.monotonic() - began < LONG_SESSION_S / 2
            cluster.wait_total(2)
        assert cluster.check_log().total == 2


def test_all_nodes_restarted_one_after_the_other_under_load(cluster: CounterCluster) -> None:
    nodes = ("n1", "n2", "n3")

    def start(node: str) -> PartitionHost:
        return cluster.host(node, session_timeout_s=LONG_SESSION_S, give_back_after_s=2.0)

    for node in nodes:
        start(node)
    wait_until(lambda: settled(cluster), "all is led and followed")
    with Load(cluster) as load:
        for node in nodes:
            wait_until(lambda: settled(cluster), "all is led and followed")
            assert cluster.hosts[node].stop(20)
            del cluster.hosts[node]
            for number in range(PARTITIONS):
                cluster.wait_leader(partition=number)
            start(node)
        wait_until(lambda: settled(cluster), "all is led and followed")
    sum_up(cluster, [load.sent] * PARTITIONS)
    for number in range(PARTITIONS):
        # Far above what it takes: a takeover that waited for a session would need twenty seconds.
        assert longest_gap_ms(cluster, number) < LONG_SESSION_S * 1000 / 4


def test_a_leader_killed_while_zookeeper_is_away_is_replaced_when_it_is_back(
    own_brokers: StartBrokers, cluster_name: str
) -> None:
    """Nobody can claim meanwhile; the proof of death must not be forgotten until then."""
    brokers = own_brokers()
    with counter_cluster(brokers, cluster_name) as cluster:
        given = {"kafka": cluster.kafka, "zookeeper": cluster.zookeeper, "cluster": cluster.name}
        with CounterProcess(**given, node="n1", session_timeout_s=LONG_SESSION_S) as victim:
            victim.wait_role(Role.LEADING)
            host = cluster.host("n2", session_timeout_s=LONG_SESSION_S)
            wait_until(lambda: host.views()[0].candidates == ("n2",), "n2 is hot")
            cluster.wait_pulse("n2", of="n1")
            brokers.zookeeper_servers[0].kill()
            cluster.send(id="a", add=1)
            cluster.wait_applied("n2", 2)
            victim.kill()
            cluster.send(id="b", add=1)
            time.sleep(2)
            assert cluster.role("n2") == Role.STANDBY
            brokers.zookeeper_servers[0].restart()
            _answers(brokers.zookeeper)
            back = time.monotonic()
            cluster.wait_leader("n2")
            assert time.monotonic() - back < LONG_SESSION_S / 2
            cluster.wait_total(2)
            assert host.takeovers()[-1].cause is Cause.PULSE
        assert cluster.check_log().total == 2


def _answers(zookeeper: str) -> None:
    witness = ZooKeeper(zookeeper, 5, lambda _: None, lambda _: None)
    witness.start()
    assert witness.wait_connected(30)
    witness.close(5)
