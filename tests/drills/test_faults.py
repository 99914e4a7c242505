"""Each fault does what it says to a real cluster, is undone again, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo.testing import DrillCluster, DrillError, DrillServers, FaultRefused, Kind, guard
from relevo_engine.local.processes import is_frozen, is_running
from relevo_engine.local.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def shared() -> Iterator[DrillCluster]:
    """Three nodes with proxies on every side."""
    # Whoever leads stays the leader until a test hurts it.
    settings = {"session_timeout_s": 1.0, "give_back_after_s": 1_000.0}
    with DrillCluster(3, 2, name="faults", types=["a"], kafka_proxies=True, settings=settings) as running:
        yield running


@pytest.fixture
def cluster(shared: DrillCluster) -> Iterator[DrillCluster]:
    """It, and well again afterwards."""
    yield shared
    shared.heal()


def await_ready(cluster: DrillCluster) -> None:
    """Waits until every node is registered and settled."""
    wait_until(lambda: set(cluster.health().values()) == {"ready"}, "every node is ready", timeout_s=60)


def broker(cluster: DrillCluster) -> Server:
    """Its only broker."""
    assert cluster.servers is not None
    return cluster.servers.broker(1)


def test_a_killed_leader_is_gone_and_comes_back_by_the_same_name(cluster: DrillCluster) -> None:
    """A drill that kills the wrong node, or none, proves nothing."""
    leader = cluster.await_leader(0)
    pid = cluster.node(leader).pid
    mark = cluster.kill_leader(0)
    assert (mark.kind, mark.target, mark.partition) == (Kind.KILL, leader, 0)
    assert not is_running(pid)
    assert cluster.health()[leader] == "down"
    assert cluster.await_leader(0, not_=leader) != leader
    with pytest.raises(DrillError, match="is not running"):
        cluster.kill(leader)
    cluster.start(leader)
    assert cluster.node(leader).pid != pid
    wait_until(lambda: cluster.health()[leader] == "ready", "it serves again")
    assert [each.kind for each in cluster.faults[-2:]] == [Kind.KILL, Kind.START]


def test_a_frozen_leader_stands_still_and_is_replaced(cluster: DrillCluster) -> None:
    """A process that still answers a little is another fault than the one in the report."""
    mark = cluster.freeze_leader(1)
    assert is_frozen(cluster.node(mark.target).pid)
    assert cluster.frozen == {mark.target}
    assert cluster.health()[mark.target] == "frozen"
    cluster.await_leader(1, not_=mark.target)
    cluster.thaw(mark.target)
    assert cluster.frozen == set()
    with pytest.raises(DrillError, match="not frozen"):
        cluster.thaw(mark.target)


@pytest.mark.parametrize("silent", [True, False])
def test_one_node_alone_is_cut_off_from_zookeeper(cluster: DrillCluster, silent: bool) -> None:
    """A cut that reaches the neighbours too would be an outage of ZooKeeper."""
    mark = cluster.cut_leader(0, silent=silent)
    others = set(cluster.nodes) - {mark.target}
    wait_until(lambda: cluster.health()[mark.target] == "not ready", "the node notices")
    cluster.await_leader(0, not_=mark.target)
    wait_until(lambda: {cluster.health()[name] for name in others} == {"ready"}, "the others are well")
    assert cluster.health()[mark.target] == "not ready"
    cluster.mend(mark.target)
    wait_until(lambda: cluster.health()[mark.target] == "ready", "it is back")


def test_one_node_alone_is_cut_off_from_kafka(cluster: DrillCluster) -> None:
    """Brokers tell their addresses to clients: a proxy that is passed by cuts nothing."""
    victim, other = cluster.await_leader(0), cluster.await_leader(1)
    mark = cluster.cut(victim, "kafka")
    assert mark.kind == Kind.CUT_KAFKA
    wait_until(lambda: victim not in cluster.leaders().values(), "it can't prove that it leads")
    if other != victim:
        assert cluster.leaders().get(1) == other
    cluster.mend(victim)
    cluster.await_all_led()


def test_zookeeper_and_a_broker_restart_under_the_cluster(cluster: DrillCluster) -> None:
    """What is said to be down is down, and what is said to be back serves."""
    before = cluster.await_all_led()
    cluster.stop_zookeeper()
    wait_until(lambda: set(cluster.health().values()) == {"not ready"}, "every node notices")
    assert cluster.await_all_led() == before
    cluster.start_zookeeper()
    await_ready(cluster)
    pid = broker(cluster).pid
    cluster.restart_broker()
    assert broker(cluster).pid != pid
    cluster.await_all_led()
    with pytest.raises(DrillError, match="no broker 7"):
        cluster.kill_broker(7)


def test_standbys_and_takeovers_are_told(cluster: DrillCluster) -> None:
    """A drill that waits for a standby that nobody tells of, or takes an old takeover for its own."""
    assert cluster.await_all_hot()
    standby = cluster.await_hot_standby(0)
    before = {each["epoch"] for each in cluster.takeovers() if each["partition"] == 0}
    mark = cluster.kill_leader(0)
    told = cluster.await_takeover(0, since=mark)
    assert (told["node"], told["previous"]) == (standby, mark.target)
    assert told["epoch"] not in before
    assert cluster.takeovers(mark.at_wall + 3_600_000) == []


def test_a_rolling_restart_gives_every_node_a_new_process(cluster: DrillCluster) -> None:
    """One node that is left out makes the drill's gap look short."""
    before = {name: cluster.node(name).pid for name in cluster.nodes}
    seen: list[str] = []
    marks = cluster.rolling_restart(seen.append)
    assert seen == cluster.nodes
    assert [mark.kind for mark in marks] == [Kind.STOP, Kind.START] * 3
    assert all(cluster.node(name).pid != pid for name, pid in before.items())
    await_ready(cluster)


def test_a_found_cluster_can_be_hurt_as_far_as_its_processes_can_be_reached(cluster: DrillCluster) -> None:
    """A drill against a user's cluster must not find out in the middle that it can't go on."""
    await_ready(cluster)
    with DrillCluster.attach(cluster.kafka, cluster.zookeeper, cluster.name) as found:
        assert found.partitions == 2
        assert found.nodes == cluster.nodes
        found.require(Kind.KILL, Kind.FREEZE, Kind.THAW, Kind.STOP, Kind.START)
        with pytest.raises(FaultRefused, match=r"that was given: .*with a proxy.*`relevo dev` ends"):
            found.require(Kind.KILL, Kind.CUT_ZOOKEEPER, Kind.BROKER_KILL)
        with pytest.raises(FaultRefused):
            found.restart_broker()
        frozen = found.freeze_leader(0).target
        found.await_leader(0, not_=frozen)
        pid = cluster.node(frozen).pid
    assert not is_frozen(pid), "leaving thaws"


def test_what_was_killed_in_a_found_cluster_goes_on_afterwards(cluster: DrillCluster) -> None:
    """A user's cluster that is one node smaller after each drill, or has the same node twice."""
    await_ready(cluster)
    with DrillCluster.attach(cluster.kafka, cluster.zookeeper, cluster.name) as found:
        killed = found.kill_leader(0).target
        wait_until(lambda: not cluster.node(killed).running, "its starter notices")
        found.await_leader(0, not_=killed)
        cluster.start(killed)
        found.start(killed)
        assert found.node(killed).pid == cluster.node(killed).pid, "it was back already"
        found.kill(killed)
    pid = found.node(killed).pid
    try:
        found.node(killed).await_ready()
        assert found.node(killed).pid == pid
        assert not cluster.node(killed).running, "it is no child of its first starter"
    finally:
        found.node(killed).stop()
    assert not is_running(pid)


def test_a_node_that_was_started_again_ends_with_its_first_owner(tmp_path: Path) -> None:
    """Nodes of a `relevo dev` that was ended would go on for ever, without a Kafka."""
    order = {"command": ["sleep", "600"], "environment": {}, "folder": "/", "log": str(tmp_path / "log")}
    with subprocess.Popen(["sleep", "600"]) as owner:
        try:
            command = [sys.executable, guard.__file__, str(owner.pid)]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as guarding:
                assert guarding.stdin is not None
                assert guarding.stdout is not None
                guarding.stdin.write(json.dumps(order))
                guarding.stdin.close()
                pid = int(guarding.stdout.readline())
                os.kill(pid, signal.SIGSTOP)
                wait_until(lambda: is_frozen(pid), "it is frozen")
                owner.kill()
                guarding.wait(30)
                assert not is_running(pid)
        finally:
            owner.kill()


def test_healing_undoes_everything_at_once(cluster: DrillCluster) -> None:
    """After a drill that failed half-way the next one must find a cluster that is well."""
    first, second, third = cluster.nodes
    cluster.cut(first, "kafka")
    cluster.delay(third, 0.2)
    cluster.kill(second)
    cluster.freeze(third)
    cluster.kill_broker()
    assert not broker(cluster).running
    assert cluster.leaders() == {}, "nobody can prove anything without Kafka"
    cluster.stop_zookeeper()
    cluster.heal()
    assert cluster.running == cluster.nodes
    await_ready(cluster)


def test_the_leader_of_three_zookeepers_is_killed_and_another_found() -> None:
    """A killed follower is not the fault that was asked for."""
    with DrillServers(0, 3) as servers:
        idle = DrillCluster(servers=servers)
        first = idle.kill_zookeeper_leader().target
        second = idle.kill_zookeeper_leader  # two of three make a quorum
        wait_until(lambda: servers.zookeeper_leader() is not None, "the two have a leader")
        leader = servers.zookeeper_leader()
        assert leader is not None
        assert leader.name != first
        idle.start_zookeeper()
        assert all(server.running for server in servers.local.zookeeper_servers)
        assert second().target == leader.name


HOLDER = """
import json, sys, time
from relevo.testing import DrillCluster
with DrillCluster(2, 1, name="orphans", kafka_proxies=True) as cluster:
    frozen = cluster.freeze_leader(0).target
    killed = next(name for name in cluster.nodes if name != frozen)
    servers = cluster.servers.local.servers
    pids = [cluster.node(name).pid for name in cluster.nodes] + [server.pid for server in servers]
    print(json.dumps({"frozen": cluster.node(frozen).pid, "pids": pids}), flush=True)
    time.sleep(600)
"""


def test_breaking_off_ends_what_is_frozen_cut_and_dead(shared: DrillCluster) -> None:
    """A drill that ends with Ctrl-C in its middle leaves no process, and the shared brokers alone."""
    pids: list[int] = []

    def broken_off() -> None:
        with DrillCluster(3, 1, name="broken-off", servers=shared.servers) as cluster:
            pids.extend(cluster.node(name).pid for name in cluster.nodes)
            first, second, third = cluster.nodes
            cluster.freeze(first)
            cluster.cut(second)
            cluster.kill(third)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert len(pids) == 3
    assert not any(is_running(pid) for pid in pids)
    assert broker(shared).running


def test_nothing_outlives_a_process_that_is_killed() -> None:
    """A test run that is killed leaves no frozen node, no broker, no port taken."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert holder.stdout is not None
        told = json.loads(holder.stdout.readline())
        assert is_frozen(told["frozen"])
        holder.kill()
        holder.wait(60)
        wait_until(
            lambda: not any(is_running(pid) for pid in told["pids"]), "all of them are gone", timeout_s=60
        )
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


def test_what_is_impossible_is_refused_before_anything_starts() -> None:
    """A drill that fails in its middle has hurt the cluster for nothing."""
    cluster = DrillCluster()
    cluster.require(Kind.KILL, Kind.CUT_ZOOKEEPER, Kind.BROKER_RESTART)
    with pytest.raises(FaultRefused, match=r"kafka_proxies.*zookeepers=3"):
        cluster.require(Kind.CUT_KAFKA, Kind.ZOOKEEPER_KILL)
    with pytest.raises(DrillError, match="from 'zookeeper' or 'kafka'"):
        cluster.cut("node-1", "redis")  # type: ignore[arg-type]
    with pytest.raises(DrillError, match="no node 'node-9'"):
        cluster.kill("node-9")
    with pytest.raises(DrillError, match="can cut 0 node"):
        DrillCluster(servers=DrillServers(), kafka_proxies=True)
    with pytest.raises(DrillError, match=r"no ZooKeeper answers at 127\.0\.0\.1:1"):
        DrillCluster.attach("127.0.0.1:1", "127.0.0.1:1")
    cluster.close()
