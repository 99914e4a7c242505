"""Kafka or ZooKeeper go away under a running cluster, and come back."""

from __future__ import annotations

import time

from relevo_partitions.term.roles import Role
from tests.support.counter_cluster import SESSION_TIMEOUT_S, counter_cluster
from tests.support.fixtures import StartBrokers
from tests.support.waiting import wait_until


def test_zookeeper_away_for_everybody_stops_takeovers_not_work(
    own_brokers: StartBrokers, cluster_name: str
) -> None:
    """No leadership moves, nothing stands still; a leader that ends meanwhile is replaced later."""
    brokers = own_brokers()
    with counter_cluster(brokers, cluster_name, partitions=2) as cluster:
        for node in ("n1", "n2"):
            cluster.host(node, give_back_after_s=1_000.0)  # nothing else moves a partition either
        leaders = {partition: cluster.wait_leader(partition=partition) for partition in (0, 1)}
        terms = {partition: cluster.check_log(partition).epoch for partition in (0, 1)}
        brokers.zookeeper_servers[0].kill()
        until = time.monotonic() + 3 * SESSION_TIMEOUT_S
        sent = 0
        while time.monotonic() < until:
            sent += 1
            for partition in (0, 1):
                cluster.send(partition, id=f"c{sent}", add=1)
                if sent % 10 == 0:
                    cluster.wait_total(sent, partition)
        for partition in (0, 1):
            cluster.wait_total(sent, partition)
            assert cluster.leaders(partition) == [leaders[partition]]
        brokers.zookeeper_servers[0].restart()
        time.sleep(2 * SESSION_TIMEOUT_S)  # long enough for a session that wasn't taken up again to end
        for partition in (0, 1):
            cluster.send(partition, id="after", add=1)
            cluster.wait_total(sent + 1, partition)
            assert cluster.leaders(partition) == [leaders[partition]]
            assert cluster.check_log(partition).epoch == terms[partition]
        victim = leaders[0]
        assert cluster.hosts[victim].stop(10)
        other = {"n1": "n2", "n2": "n1"}[victim]
        cluster.wait_leader(other)


def test_kafka_away_in_mid_run_loses_nothing_and_work_goes_on(
    own_brokers: StartBrokers, cluster_name: str
) -> None:
    brokers = own_brokers()
    with counter_cluster(brokers, cluster_name) as cluster:
        cluster.host("n1")
        cluster.wait_leader("n1")
        cluster.send(id="before", add=1)
        cluster.wait_total(1)
        brokers.kafka_servers[0].kill()
        cpu = time.process_time()
        time.sleep(4)
        assert time.process_time() - cpu < 2, "a busy loop"
        read = cluster.hosts["n1"].read(0, lambda machine: machine.total)
        assert not read.done(), "a read that nothing proves"
        brokers.kafka_servers[0].restart()
        brokers.await_brokers()
        cluster.send(id="after", add=10)
        cluster.wait_total(11, timeout_s=60)
        assert read.exception(30) is not None or read.result() in (1, 11)
        assert cluster.check_log().total == 11


def test_kafka_away_for_longer_than_a_transaction_may_last(
    own_brokers: StartBrokers, cluster_name: str
) -> None:
    """The term may end; when Kafka is back somebody leads again, from the log."""
    brokers = own_brokers()
    with counter_cluster(brokers, cluster_name) as cluster:
        cluster.host("n1")
        cluster.wait_leader("n1")
        cluster.send(id="before", add=1)
        cluster.wait_total(1)
        brokers.kafka_servers[0].freeze()
        read = cluster.hosts["n1"].read(0, lambda machine: machine.total)
        wait_until(
            lambda: cluster.diaries["n1"].kinds() & {"commit_unclear", "aborted", "fenced"},
            "the leader noticed",
            timeout_s=60,
        )
        brokers.kafka_servers[0].thaw()
        cluster.send(id="after", add=10)
        cluster.wait_total(11, timeout_s=90)
        assert read.exception(30) is not None or read.result() in (1, 11)
        assert cluster.check_log().total == 11


def test_stopping_ends_in_time_though_kafka_hangs(own_brokers: StartBrokers, cluster_name: str) -> None:
    brokers = own_brokers()
    with counter_cluster(brokers, cluster_name) as cluster:
        host = cluster.host("n1")
        cluster.wait_leader("n1")
        brokers.kafka_servers[0].freeze()
        host.read(0, lambda machine: machine.total)  # puts the leader into a commit
        began = time.monotonic()
        host.stop(4)
        assert time.monotonic() - began < 12
        assert cluster.role("n1") == Role.STOPPED
        brokers.kafka_servers[0].thaw()


def test_a_broker_restarted_again_and_again_costs_no_record(
    own_brokers: StartBrokers, cluster_name: str
) -> None:
    """Disconnects, lost answers and lone producers that are called fenced, in every order."""
    brokers = own_brokers()
    with counter_cluster(brokers, cluster_name) as cluster:
        for node in ("n1", "n2"):
            cluster.host(node)
        cluster.wait_leader()
        sent = 0
        for _ in range(3):
            for _ in range(20):
                sent += 1
                cluster.send(id=f"c{sent}", add=1)
            brokers.kafka_servers[0].restart()
            brokers.await_brokers()
        cluster.wait_total(sent, timeout_s=60)
        assert cluster.check_log().total == sent
