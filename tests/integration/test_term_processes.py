"""Leaders that are frozen in the middle of something, or killed, and what comes after."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from relevo_partitions.term.roles import Role
from tests.support.brokers import Brokers
from tests.support.counter_cluster import SESSION_TIMEOUT_S, CounterCluster, counter_cluster
from tests.support.counter_process import CounterProcess
from tests.support.waiting import wait_until


@pytest.fixture
def cluster(brokers: Brokers, cluster_name: str) -> Iterator[CounterCluster]:
    with counter_cluster(brokers, cluster_name) as cluster:
        yield cluster


def child(cluster: CounterCluster, node: str, **more: object) -> CounterProcess:
    return CounterProcess(
        kafka=cluster.kafka,
        zookeeper=cluster.zookeeper,
        cluster=cluster.name,
        node=node,
        session_timeout_s=SESSION_TIMEOUT_S,
        **more,
    )


@pytest.mark.parametrize(
    "point", ["begin", "commit", "committed", "fenced", "verified", "barrier", "replayed"]
)
def test_a_frozen_leader_wakes_up_as_a_standby_and_writes_nothing(
    cluster: CounterCluster, point: str
) -> None:
    """Whoever sleeps longer than its claim lives must not go on where it was."""
    in_takeover = point in ("fenced", "verified", "barrier", "replayed")
    with child(cluster, "n1", freeze_at=point) as sleeper:
        sleeper.wait_role(Role.LEADING)
        if not in_takeover:
            cluster.send(id="before", add=1)
            wait_until(lambda: [e for e in cluster.events() if e["kind"] == "added"], "it decides")
        sleeper.send_signal(signal.SIGUSR1)
        wait_until(lambda: sleeper.heard("armed"), "it will freeze")
        if in_takeover:
            _fence_from_outside(cluster)  # a lone leader goes through the steps of a takeover again
        else:
            cluster.send(id="asleep", add=10)
        wait_until(lambda: sleeper.heard("frozen"), "it froze itself", timeout_s=40)
        cluster.host("n2")
        cluster.wait_leader("n2")
        cluster.send(id="meanwhile", add=100)
        total = 100 if in_takeover else 111
        cluster.wait_total(total)
        stood = cluster.log()
        sleeper.send_signal(signal.SIGCONT)
        wait_until(
            lambda: sleeper.roles()[-1:] == [Role.STANDBY], f"a standby: {sleeper.told[-6:]}", timeout_s=40
        )
        sleeper.ask("read")
        wait_until(lambda: sleeper.heard("read"), "it answers")
        assert sleeper.heard("read") == [None], "no reply from a term that is over"
        cluster.wait_total(total)
        assert cluster.check_log().total == total
        written = cluster.events()[-1]["epoch"]
        assert {e["node"] for e in cluster.events() if e["kind"] == "elected" and e["epoch"] == written} == {
            "n2"
        }
        assert cluster.log()[: len(stood)] == stood


def _fence_from_outside(cluster: CounterCluster) -> None:
    foreign = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": f"{cluster.name}-0"})
    foreign.init_transactions(30)
    cluster.send(id="wake", add=0)


def test_a_killed_leader_is_followed_and_nothing_is_lost(cluster: CounterCluster) -> None:
    """Its open transaction, its znodes and its node id are left behind."""
    with child(cluster, "n1") as victim:
        victim.wait_role(Role.LEADING)
        cluster.host("n2")
        for index in range(50):
            cluster.send(id=f"c{index}", add=1)
        victim.kill()
        for index in range(50, 100):
            cluster.send(id=f"c{index}", add=1)
        cluster.wait_leader("n2")
        cluster.wait_total(100)
    with child(cluster, "n1") as successor:  # the same id at once: the old registration is waited for
        successor.wait_role(Role.STANDBY)
    assert cluster.check_log().total == 100


def test_a_leader_killed_again_and_again_loses_nothing(cluster: CounterCluster) -> None:
    sent = 0
    for round_ in range(3):
        with child(cluster, f"n{round_}") as leader:
            leader.wait_role(Role.LEADING)
            for _ in range(20):
                sent += 1
                cluster.send(id=f"c{sent}", add=1)
            leader.kill()
    cluster.host("last")
    cluster.wait_leader("last")
    cluster.wait_total(sent)
    machine = cluster.check_log()
    assert machine.epoch == 4
    added = [e["id"] for e in cluster.events() if e["kind"] == "added"]
    assert added == [f"c{n}" for n in range(1, sent + 1)]
