"""Standbys on real brokers: who follows, how far behind, and what a takeover by one has to read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from relevo_partitions.election.ranking import ranking
from relevo_partitions.term.roles import Role
from relevo_partitions.term.takeover import Cause
from tests.support.brokers import Brokers
from tests.support.counter_cluster import CounterCluster, counter_cluster, threads_named
from tests.support.counter_machine import CounterMachine
from tests.support.counter_process import CounterProcess
from tests.support.waiting import wait_until

LONG_SESSION_S = 20.0


@pytest.fixture
def cluster(brokers: Brokers, cluster_name: str) -> Iterator[CounterCluster]:
    with counter_cluster(brokers, cluster_name) as cluster:
        yield cluster


class Counting(CounterMachine):
    """Counts the records that it replays, over all machines of one node."""

    applied: dict[str, int]
    node: str

    def replay(self, records: Any) -> None:
        self.applied[self.node] = self.applied.get(self.node, 0) + len(records)
        super().replay(records)


def counting(cluster: CounterCluster, node: str, applied: dict[str, int]) -> Any:
    def make(partition: int) -> Counting:
        machine = Counting(partition, cluster.name)
        machine.node, machine.applied = node, applied
        return machine

    return make


def wait_hot(cluster: CounterCluster, *nodes: str, partition: int = 0) -> None:
    for node in nodes:
        wait_until(
            lambda node=node: cluster.role(node, partition) == Role.STANDBY,  # type: ignore[misc]
            f"{node} is hot",
        )


def wait_candidates(cluster: CounterCluster, *nodes: str) -> None:
    """Every node sees these and no others as hot."""

    def seen() -> bool:
        return all(set(host.views()[0].candidates) == set(nodes) for host in cluster.hosts.values())

    wait_until(seen, f"the candidates are {nodes}")


def test_a_standby_takes_over_without_reading_the_log_again(cluster: CounterCluster) -> None:
    """With a million jobs that would take as long as a restart."""
    applied: dict[str, int] = {}
    cluster.host("n1")
    cluster.wait_leader("n1")
    cluster.send_many(2_000)
    cluster.wait_total(2_000)
    host = cluster.host("n2", machine=counting(cluster, "n2", applied))
    wait_hot(cluster, "n2")
    wait_until(lambda: host.views()[0].standby_lag == 0, "it lacks nothing")
    assert applied["n2"] == 2_001
    cluster.send(id="after", add=1)
    wait_until(lambda: applied["n2"] == 2_002, "it follows")
    wait_until(lambda: host.views()[0].candidates == ("n2",), "it is a candidate")
    assert cluster.hosts["n1"].stop(10)
    cluster.wait_leader("n2")
    cluster.wait_total(2_001)
    assert applied["n2"] == 2_002, "the takeover has replayed something"
    takeover = host.takeovers()[-1]
    assert (takeover.standby, takeover.epoch, takeover.previous, takeover.cause, takeover.replayed) == (
        True, 2, "n1", Cause.HAND_OVER, 0,
    )  # fmt: skip


def test_a_node_that_is_neither_leader_nor_standby_spends_nothing(cluster: CounterCluster) -> None:
    """With hundreds of partitions, consumers and copies on every node would be most of its cost."""
    first, second, third = ranking(0, ["n1", "n2", "n3"])
    made: dict[str, int] = {}
    for node in (first, second):
        cluster.host(node, machine=counting(cluster, node, made))
    wait_until(lambda: cluster.leaders(), "somebody leads")
    wait_candidates(cluster, next(node for node in (first, second) if node not in cluster.leaders()))
    machines: list[int] = []

    def make(partition: int) -> CounterMachine:
        machines.append(partition)
        return CounterMachine(partition, cluster.name)

    before = len(threads_named("relevo-standby-0"))
    host = cluster.host(third, machine=make)
    wait_until(lambda: host.leader_of(0), "it has looked")
    cluster.send(id="a", add=1)
    cluster.wait_total(1)
    assert cluster.role(third) == Role.OUT
    assert machines == []
    assert len(threads_named("relevo-standby-0")) == before
    assert len(host._supervisor.posts[0].io.pool) == 0  # type: ignore[attr-defined]


def test_a_standby_is_dismissed_once_its_replacement_is_hot(cluster: CounterCluster) -> None:
    """Letting go before would leave a while without anybody who can take over."""
    first, second, third = ranking(0, ["n1", "n2", "n3"])
    cluster.host(first)
    cluster.wait_leader(first)
    cluster.host(third)
    wait_candidates(cluster, third)
    gate = threading.Event()

    def slowly(partition: int) -> CounterMachine:
        assert gate.wait(60)
        return CounterMachine(partition, cluster.name)

    cluster.host(second, machine=slowly)
    wait_until(lambda: cluster.role(second) == Role.FOLLOWING, "the better one loads")
    cluster.send(id="a", add=1)
    cluster.wait_total(1)
    assert cluster.role(third) == Role.STANDBY
    gate.set()
    wait_candidates(cluster, second)
    wait_until(lambda: cluster.role(third) == Role.OUT, "the replaced one lets go")
    wait_until(lambda: len(threads_named("relevo-standby-0")) == 1, "its thread is gone")


def test_only_a_standby_that_has_caught_up_is_a_candidate(cluster: CounterCluster) -> None:
    """One that claimed while it loads would keep the partition waiting."""
    cluster.host("n1")
    cluster.wait_leader("n1")
    gate, loads = threading.Event(), threading.Event()

    class Slow(CounterMachine):
        def replay(self, records: Any) -> None:
            loads.set()
            assert gate.wait(60)
            super().replay(records)

    host = cluster.host("n2", machine=lambda number: Slow(number, cluster.name))
    wait_until(loads.is_set, "it loads")
    cluster.send(id="a", add=1)
    cluster.wait_total(1)
    wait_until(lambda: host.leader_of(0), "it has seen what stands in ZooKeeper")
    assert cluster.role("n2") == Role.FOLLOWING
    assert all(each.views()[0].candidates == () for each in cluster.hosts.values())
    gate.set()
    wait_candidates(cluster, "n2")


def test_where_the_standby_cannot_read_the_log_another_steps_in(cluster: CounterCluster) -> None:
    """The node placed first fails on the log; the partition must not stay without anybody to take over."""
    first, second, third = ranking(0, ["n1", "n2", "n3"])

    class Broken(CounterMachine):
        def replay(self, records: Any) -> None:
            raise ZeroDivisionError("a mistake")

    cluster.host(first)
    cluster.wait_leader(first)
    cluster.host(second, machine=lambda number: Broken(number, cluster.name))
    wait_until(lambda: "standby_machine_failed" in cluster.diaries[second].kinds(), "it failed")
    cluster.host(third)
    wait_candidates(cluster, third)
    cluster.hosts[first].stop(10)
    cluster.wait_leader(third)


def child(cluster: CounterCluster, node: str, **more: object) -> CounterProcess:
    given = {"kafka": cluster.kafka, "zookeeper": cluster.zookeeper, "cluster": cluster.name, "node": node}
    return CounterProcess(**{**given, "session_timeout_s": LONG_SESSION_S, **more})


def test_a_killed_leader_is_replaced_long_before_its_session_ends(cluster: CounterCluster) -> None:
    """Its kernel closes its connections; nobody has to wait until ZooKeeper misses it."""
    cluster.create_topics("activations")
    with child(cluster, "n1") as victim:
        victim.wait_role(Role.LEADING)
        host = cluster.host("n2", session_timeout_s=LONG_SESSION_S)
        wait_candidates(cluster, "n2")
        cluster.send(id="a", add=1)
        cluster.wait_applied("n2", 2)
        cluster.wait_pulse("n2", of="n1")
        began = time.monotonic()
        victim.kill()
        cluster.wait_leader("n2")
        assert time.monotonic() - began < LONG_SESSION_S / 2
        cluster.send(id="b", add=2, to=cluster.topic("activations"))
        cluster.wait_total(3)
        takeover = host.takeovers()[-1]
        assert (takeover.cause, takeover.previous, takeover.standby) == (Cause.PULSE, "n1", True)
        record = takeover.as_dict()
        moments = [
            record[f"{name}_at"]
            for name in (
                "noticed",
                "claimed",
                "fenced",
                "verified",
                "caught_up",
                "announced",
                "first_activation",
            )
        ]
        assert moments == sorted(moments)
        wait_until(lambda: [node.node for node in host.nodes()] == ["n2"], "its registration is gone too")
    with child(cluster, "n1", give_back_after_s=1_000) as successor:
        successor.wait_role(Role.STANDBY)
    assert cluster.check_log().total == 3


def test_all_killed_at_once_are_followed_by_whoever_starts(cluster: CounterCluster) -> None:
    """Nobody saw them die, so their sessions have to end by themselves."""
    with (
        child(cluster, "n1", session_timeout_s=2.0) as one,
        child(cluster, "n2", session_timeout_s=2.0) as two,
    ):
        wait_until(lambda: Role.LEADING in one.roles() + two.roles(), "one leads", timeout_s=40)
        wait_until(
            lambda: Role.STANDBY in (one.roles()[-1:] + two.roles()[-1:]), "the other is hot", timeout_s=40
        )
        cluster.send(id="a", add=1)
        wait_until(lambda: [e for e in cluster.events() if e["kind"] == "added"], "it was decided")
        one.kill()
        two.kill()
    cluster.host("n3")
    cluster.wait_leader("n3")
    cluster.wait_total(1)


@pytest.mark.parametrize("times", [1, 3])
def test_a_false_proof_of_death_costs_a_leader_its_partition_and_nothing_else(
    cluster: CounterCluster, times: int
) -> None:
    """Something between the nodes may close a connection and refuse the next while the process lives."""
    for node in ("n1", "n2", "n3"):
        cluster.host(node, session_timeout_s=LONG_SESSION_S, give_back_after_s=1_000.0, replicas=2)
    cluster.wait_leader()
    sent = 0
    for _ in range(times):
        leader = cluster.wait_leader()
        others = [node for node in cluster.hosts if node != leader]
        wait_candidates(cluster, *others)
        incarnation = cluster.hosts[leader]._settings.incarnation
        for _ in range(20):
            sent += 1
            cluster.send(id=f"c{sent}", add=1)
        for other in others:
            pulse = cluster.hosts[other]._supervisor._pulse
            pulse._on_death(leader, incarnation, time.monotonic())  # type: ignore[union-attr]
        began = time.monotonic()
        cluster.wait_leader(*others)
        assert time.monotonic() - began < LONG_SESSION_S / 2
        for _ in range(20):
            sent += 1
            cluster.send(id=f"c{sent}", add=1)
        cluster.wait_total(sent)
        wait_hot(cluster, leader)
    assert cluster.check_log().total == sent
    wait_until(
        lambda: all(len(host.nodes()) == 3 for host in cluster.hosts.values()), "all are registered again"
    )


def test_nodes_that_come_and_go_do_not_disturb_a_standby_that_loads(cluster: CounterCluster) -> None:
    """Who reads what must not depend on who else is there: a load that begins anew each time never ends."""
    first, second, *others = ranking(0, ["n1", "n2", "n3", "n4"])
    cluster.host(first)
    cluster.wait_leader(first)
    cluster.send_many(50)
    cluster.wait_total(50)
    gate, made = threading.Event(), []

    class Slow(CounterMachine):
        def replay(self, records: Any) -> None:
            assert gate.wait(60)
            super().replay(records)

    def make(partition: int) -> CounterMachine:
        made.append(Slow(partition, cluster.name))
        return made[-1]

    host = cluster.host(second, machine=make)
    wait_until(lambda: made, "it loads")
    for node in others * 2:
        cluster.host(node)
        cluster.send(id=f"while {node} is there {len(cluster.diaries[node].roles)}", add=0)
        wait_until(lambda node=node: len(cluster.hosts[node].nodes()) == 3, f"{node} is there")  # type: ignore[misc]
        assert cluster.hosts.pop(node).stop(10)
    assert cluster.role(second) == Role.FOLLOWING
    gate.set()
    wait_hot(cluster, second)
    assert len(made) == 1
    wait_until(lambda: host.views()[0].standby_lag == 0, "it lacks nothing")
    assert made[0].total == 50
