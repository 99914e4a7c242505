"""Whole terms on real brokers: who leads, what stands in the log, and what is left when a term is over."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest
from confluent_kafka import Producer, TopicPartition

from relevo.testing.proxy import TcpProxy
from relevo_partitions.election.zookeeper import ZooKeeper
from relevo_partitions.errors import (
    ConfigMismatch,
    NodeIdTaken,
    NotLeader,
    UsedAfterFork,
    ZooKeeperUnavailable,
)
from relevo_partitions.term.roles import Role
from tests.support.brokers import Brokers
from tests.support.counter_cluster import SESSION_TIMEOUT_S, CounterCluster, counter_cluster, threads_named
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until


@pytest.fixture
def cluster(brokers: Brokers, cluster_name: str) -> Iterator[CounterCluster]:
    with counter_cluster(brokers, cluster_name) as cluster:
        yield cluster


@pytest.fixture
def proxy(brokers: Brokers) -> Iterator[TcpProxy]:
    """Between one node and ZooKeeper."""
    with TcpProxy(brokers.zookeeper) as proxy:
        yield proxy


def elected(cluster: CounterCluster, partition: int = 0) -> list[tuple[str, int]]:
    return [(e["node"], e["epoch"]) for e in cluster.events(partition) if e["kind"] == "elected"]


def test_leadership_and_state_move_to_the_next_node(cluster: CounterCluster) -> None:
    cluster.host("n1")
    cluster.wait_leader("n1")
    cluster.send(id="a", add=5)
    cluster.wait_total(5)
    cluster.host("n2")
    assert cluster.hosts["n1"].stop(10)
    cluster.wait_leader("n2")
    cluster.send(id="b", add=6)
    cluster.wait_total(11)
    assert elected(cluster) == [("n1", 1), ("n2", 2)]
    assert cluster.check_log().total == 11
    wait_until(
        lambda: (leader := cluster.hosts["n2"].leader_of(0)) and leader.address == "n2.example:1",
        "it names itself",
    )

    def told() -> bool:
        view = cluster.hosts["n2"].views()[0]
        seen = (view.role, view.leader, view.epoch, view.position, view.lag)
        return seen == ("LEADING", "n2", 2, 2, 0)

    wait_until(told, "its view says how far it has come")


def test_a_read_of_a_node_that_does_not_lead_names_the_leader(cluster: CounterCluster) -> None:
    cluster.host("n1")
    cluster.wait_leader("n1")
    cluster.host("n2")
    wait_until(lambda: cluster.hosts["n2"].leader_of(0), "n2 sees the leader")
    with pytest.raises(NotLeader, match="ask node 'n1'"):
        cluster.hosts["n2"].read(0, lambda machine: machine.total).result(5)


def test_a_cut_off_leader_works_on_until_its_successors_fence_and_never_fences_back(
    cluster: CounterCluster, proxy: TcpProxy
) -> None:
    """A client that can't reach ZooKeeper never hears that its session ended."""
    cluster.host("n1", zookeeper=proxy.address)
    cluster.wait_leader("n1")
    cluster.host("n2")
    cluster.send(id="before", add=1)
    cluster.wait_total(1)
    proxy.cut()
    sent = 0

    def works_until(fact: Callable[[], object], what: str) -> None:
        def sends_on() -> object:
            nonlocal sent
            sent += 1
            cluster.send(id=f"cut {sent}", add=1)
            return fact()

        wait_until(sends_on, what)

    works_until(lambda: cluster.role("n2") == Role.LEADING, "n2 leads")
    works_until(lambda: "term_fenced" in cluster.diaries["n1"].kinds(), "n1 has heard of it")
    works_until(lambda: cluster.role("n1") in (Role.STANDBY, Role.OUT), "n1 leads no longer")
    behind = sent + 100
    works_until(lambda: sent >= behind, "commands for both to claim")
    cluster.wait_leader("n2")
    cluster.wait_total(1 + sent)
    assert cluster.role("n1") in (Role.STANDBY, Role.OUT)
    # One announcement each: n1 didn't come back. Its last event lies before n2's first.
    assert elected(cluster) == [("n1", 1), ("n2", 2)]
    events = cluster.events()
    gap_ms = max(after["at"] - before["at"] for before, after in pairwise(events[2:]))
    assert gap_ms < 3000, f"nobody worked for {gap_ms} ms"
    with pytest.raises(NotLeader):
        cluster.total("n1")
    assert "fenced" in cluster.diaries["n1"].kinds()
    proxy.heal()
    wait_until(lambda: cluster.diaries["n1"].path(0)[-1] == Role.STANDBY, "n1 stands by again")
    cluster.hosts["n2"].stop(10)
    cluster.wait_leader("n1")
    assert cluster.check_log().total == 1 + sent


def test_no_read_is_answered_by_a_leader_whose_successor_has_written(
    cluster: CounterCluster, proxy: TcpProxy
) -> None:
    cluster.host("n1", zookeeper=proxy.address)
    cluster.wait_leader("n1")
    cluster.host("n2")
    proxy.cut()
    cluster.wait_leader("n1", "n2")
    wait_until(lambda: cluster.role("n2") == Role.LEADING, "n2 leads")
    cluster.send(id="new", add=10)
    cluster.wait_total(10)
    with pytest.raises(NotLeader):
        assert cluster.total("n1") == 10


def test_everything_a_term_owned_is_gone_though_zookeeper_never_answers(
    cluster: CounterCluster, proxy: TcpProxy
) -> None:
    """Threads that outlive a term act beside the next leader's."""
    cluster.host("n1", zookeeper=proxy.address)
    cluster.wait_leader("n1")
    thread = cluster.hosts["n1"]._supervisor.posts[0].thread
    assert thread is not None
    proxy.cut()
    cluster.host("n2")
    wait_until(lambda: cluster.role("n2") == Role.LEADING, "n2 leads")
    cluster.send(id="a", add=1)
    wait_until(lambda: not thread.is_alive(), "the old term's thread is gone")
    wait_until(lambda: len(threads_named("relevo-partition-0")) == 1, "one term's thread in the process")
    wait_until(lambda: threads_named("relevo-drop") == [], "its clients are closed")


def test_a_lone_leader_that_kafka_calls_fenced_goes_on(cluster: CounterCluster) -> None:
    """A broker's hiccup, or a foreign producer with our id: ZooKeeper says that we lead, so we do."""
    cluster.host("n1")
    cluster.wait_leader("n1")
    for round_ in range(3):
        foreign = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": f"{cluster.name}-0"})
        foreign.init_transactions(30)
        cluster.send(id=f"r{round_}", add=1)
        cluster.wait_total(round_ + 1)
    assert elected(cluster) == [("n1", 1), ("n1", 2), ("n1", 3), ("n1", 4)]
    assert cluster.diaries["n1"].kinds() == {"fenced"}
    cluster.check_log()


def test_a_topic_that_cannot_be_written_holds_up_only_itself(cluster: CounterCluster) -> None:
    cluster.create_topics("good")
    cluster.host("n1")
    cluster.wait_leader("n1")
    cluster.send(id="a", add=1, to=cluster.topic("missing"))
    cluster.send(id="b", add=2, to=cluster.topic("good"))
    cluster.wait_total(3)
    assert cluster.blocked == {cluster.topic("missing")}
    assert [e["id"] for e in cluster.events() if e["kind"] == "added"] == ["a", "b"]
    cluster.check_log()


def test_garbage_on_the_commands_topic_is_refused_and_the_partition_goes_on(cluster: CounterCluster) -> None:
    cluster.host("n1")
    raw = Producer({"bootstrap.servers": cluster.kafka})
    for value in (b"\xff\x00", b"", b"[]", b'{"id": 1}', None):
        raw.produce(cluster.topic("commands"), value, partition=0)
    raw.flush(30)
    cluster.send(id="a", add=1)
    cluster.wait_total(1)
    assert len([e for e in cluster.events() if e["kind"] == "refused"]) == 5


def test_an_unsound_log_is_not_led_and_harms_no_other_partition(brokers: Brokers, cluster_name: str) -> None:
    with counter_cluster(brokers, cluster_name, partitions=2) as cluster:
        cluster.host("n1")
        for partition in (0, 1):
            cluster.wait_leader("n1", partition=partition)
            cluster.send(partition, id="a", add=1)
            cluster.wait_total(1, partition)
        cluster.hosts["n1"].stop(10)
        head = TopicPartition(cluster.topic("log"), 0, 3)
        cluster.admin.delete_records([head])[head].result(30)
        cluster.host("n2")
        cluster.wait_leader("n2", partition=1)
        cluster.send(1, id="b", add=1)
        cluster.wait_total(2, partition=1)
        wait_until(lambda: cluster.role("n2") == Role.DAMAGED, "partition 0 is refused")
        wait_until(
            lambda: "Kafka holds records from 3 on" in str(cluster.hosts["n2"].views()[0].fault),
            "its view says why",
        )
        # It may look again now and then, and claims the partition for as long as that takes.
        wait_until(lambda: cluster.hosts["n2"].leader_of(0) is None, "nobody holds partition 0")


def test_commands_that_were_trimmed_unread_are_noticed(cluster: CounterCluster) -> None:
    """Beginning at what is left would lose jobs without a word."""
    for index in range(3):
        cluster.send(id=f"c{index}", add=1)
    head = TopicPartition(cluster.topic("commands"), 0, 2)
    cluster.admin.delete_records([head])[head].result(30)
    cluster.host("n1")
    wait_until(lambda: cluster.role("n1") == Role.DAMAGED, "refused to lead")
    wait_until(
        lambda: (
            "offset 0 was due, but Kafka holds records from 2 on" in str(cluster.hosts["n1"].views()[0].fault)
        ),
        "its view says why",
    )
    assert cluster.events() == []


def test_a_missing_log_is_named(cluster: CounterCluster) -> None:
    cluster.admin.delete_topics([cluster.topic("log")])[cluster.topic("log")].result(30)
    cluster.host("n1")
    wait_until(lambda: cluster.role("n1") == Role.DAMAGED, "refused to lead")
    wait_until(
        lambda: f"{cluster.topic('log')} [0] doesn't exist" in str(cluster.hosts["n1"].views()[0].fault),
        "its view says why",
    )


def test_a_machine_that_raises_stops_its_partition_only(brokers: Brokers, cluster_name: str) -> None:
    class Fragile(CounterMachine):
        def step(self, commands, now, heard=None):  # type: ignore[no-untyped-def]
            if self.partition == 0 and commands:
                raise ZeroDivisionError("a mistake")
            return super().step(commands, now, heard)

    with counter_cluster(brokers, cluster_name, partitions=2) as cluster:
        cluster.host("n1", machine=lambda number: Fragile(number, cluster.name))
        cluster.wait_leader("n1", partition=0)
        cluster.send(0, id="a", add=1)
        wait_until(lambda: "term_machine_failed" in cluster.diaries["n1"].kinds(), "the failure was told")
        cluster.send(1, id="a", add=1)
        cluster.wait_total(1, partition=1)


@pytest.mark.parametrize("what", ["leader", "candidate"])
def test_a_znode_of_an_earlier_term_in_a_live_session_is_removed(cluster: CounterCluster, what: str) -> None:
    """A clean-up that failed while the session lived on would leave a partition without a leader for good."""
    may_lead = threading.Event()
    host = cluster.host("n1", eligible=lambda _partition: may_lead.is_set())
    election = host._supervisor._election
    if what == "leader":
        assert election.claim(0, "of-an-earlier-term") is not None
    else:
        election.enroll(0)
        wait_until(lambda: election.look(0).candidates == (), "the candidate was removed")
    may_lead.set()
    cluster.host("n2")
    cluster.wait_leader("n1", "n2")
    if what == "leader":
        assert "leftover" in cluster.diaries["n1"].kinds()
    wait_until(lambda: cluster.diaries["n1"].leaderless_now == 0, "n1 sees that it is led")


@pytest.mark.parametrize("role", ["leader", "standby"])
@pytest.mark.parametrize("fault", ["none", "cut", "refuse"])
def test_stopping_ends_in_time_and_leaves_no_znode(
    cluster: CounterCluster, proxy: TcpProxy, brokers: Brokers, role: str, fault: str
) -> None:
    """Stopping can hang where ZooKeeper doesn't answer, and a forgotten znode keeps others waiting."""
    if role == "standby":
        cluster.host("n0")
        cluster.wait_leader("n0")
    host = cluster.host("n1", zookeeper=proxy.address)
    if role == "leader":
        cluster.wait_leader("n1")
        cluster.send(id="a", add=1)
    if fault != "none":
        getattr(proxy, fault)()
    began = time.monotonic()
    host.stop(6)
    assert time.monotonic() - began < 12
    assert cluster.role("n1") == Role.STOPPED
    witness = ZooKeeper(brokers.zookeeper, 5, lambda _: None, lambda _: None)
    witness.start()
    assert witness.wait_connected(20)
    root = f"/{cluster.name}/partitions/0"
    wait_until(lambda: "n1" not in (witness.children(f"{root}/candidates") or []), "the candidate is gone")
    if role == "leader":
        wait_until(lambda: witness.get(f"{root}/leader") is None, "the claim is gone")
    witness.close(5)
    assert threads_named("relevo-partition-0") == (
        [] if role == "leader" else threads_named("relevo-partition-0")
    )


def test_each_partition_has_exactly_one_leader_after_a_storm_of_lost_connections(
    brokers: Brokers, cluster_name: str
) -> None:
    """All wait, or the one elected doesn't know it."""
    dice = random.Random(20)
    partitions = 4
    with ExitStack() as stack:
        cluster = stack.enter_context(counter_cluster(brokers, cluster_name, partitions))
        proxies = [stack.enter_context(TcpProxy(brokers.zookeeper)) for _ in range(3)]
        for index, proxy in enumerate(proxies):
            cluster.host(f"n{index}", zookeeper=proxy.address)
        for round_ in range(28):
            proxy = dice.choice(proxies)
            proxy.refuse()
            if dice.random() < 0.2:  # long enough for the session to end
                time.sleep(SESSION_TIMEOUT_S * 1.5)
            proxy.heal()
            time.sleep(dice.random() * 0.2)
            cluster.send(round_ % partitions, id=f"r{round_}", add=1)
        for partition in range(partitions):
            cluster.wait_leader(partition=partition)
            cluster.wait_total(7, partition)

        def agreed(partition: int) -> bool:
            said = {leader.node for host in cluster.hosts.values() if (leader := host.leader_of(partition))}
            return said == set(cluster.leaders(partition)) and len(said) == 1

        wait_until(lambda: all(map(agreed, range(partitions))), "each has one leader, as every node sees it")
        for partition in range(partitions):
            assert cluster.check_log(partition).total == 7
        wait_until(
            lambda: {diary.leaderless_now for diary in cluster.diaries.values()} == {0}, "nobody misses one"
        )


def test_a_host_without_zookeeper_says_so(cluster: CounterCluster) -> None:
    with pytest.raises(ZooKeeperUnavailable, match=r"ZooKeeper isn't reachable at 127\.0\.0\.1:9 "):
        cluster.host("n1", start=False, zookeeper="127.0.0.1:9").start(2)
    assert "zookeeper" in cluster.diaries["n1"].kinds()


def test_a_host_without_kafka_says_so_and_goes_on_when_it_comes(cluster: CounterCluster) -> None:
    cluster.host("n1", kafka="127.0.0.1:9")
    wait_until(
        lambda: "standby_kafka_unavailable" in cluster.diaries["n1"].kinds(), "it can't follow", timeout_s=40
    )
    wait_until(
        lambda: "Kafka isn't reachable at 127.0.0.1:9" in str(cluster.hosts["n1"].views()[0].fault),
        "its view says why",
    )
    cluster.host("n2")
    cluster.wait_leader("n2", timeout_s=60)


def test_a_second_node_of_one_id_does_not_start(cluster: CounterCluster) -> None:
    cluster.host("n1")
    with pytest.raises(NodeIdTaken):
        cluster.host("n1", start=False).start(30)


def test_a_node_of_another_partition_count_does_not_start(cluster: CounterCluster) -> None:
    cluster.host("n1")
    with pytest.raises(ConfigMismatch, match="partitions: the cluster has 1, this node 3"):
        cluster.host("n2", start=False, partitions=3).start(30)


def test_a_host_used_in_a_forked_child_says_so(
    cluster: CounterCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = cluster.host("n1", start=False)
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(UsedAfterFork):
            host.start()
