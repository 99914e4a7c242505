"""Replication at work, and where it ends: two of three brokers away, a stale one elected, a tail lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import PartitionMetadata  # type: ignore[attr-defined] # its stubs re-export silently
from confluent_kafka.cimpl import NewTopic

import relevo
from relevo_engine.api.client import ApiClient
from relevo_engine.local.brokers import LocalBrokers
from relevo_engine.local.kafka import admin
from relevo_engine.local.server import Server
from relevo_engine.local.zookeeper import ask
from relevo_engine.topic_admin import TopicAdmin
from relevo_partitions.outcomes import Committed
from relevo_partitions.term.roles import Role
from tests.integration.test_local_brokers import read_all, write_one, zookeeper
from tests.support.batches import Batches, Ledger
from tests.support.broker_files import cut_tail
from tests.support.brokers import unique_cluster_name
from tests.support.counter_cluster import CounterCluster
from tests.support.nodes import NodeProcess
from tests.support.waiting import wait_until

WAIT_S = 90.0
LEADER_CHANGES = int(os.environ.get("RELEVO_TEST_LEADER_CHANGES", "1"))
AWAY_S = 5.0
"""Nothing is accepted for so long. Two brokers that are away can't come back in between: they are dead."""


@pytest.fixture(scope="module")
def three() -> Iterator[LocalBrokers]:
    with LocalBrokers(3, 3) as brokers:
        yield brokers


def restart(brokers: LocalBrokers, *servers: Server, all_run: bool = True) -> None:
    """All at once: they may need each other to agree on who controls the cluster."""
    for server in servers:
        server.spawn()
    for server in servers:
        server.await_ready()
    if all_run:
        brokers.await_brokers()


def committed(node: NodeProcess) -> int:
    """Transactions of the node that Kafka has committed."""
    text = ApiClient(node.address)._ask("/metrics", None)[2].decode()
    (line,) = [one for one in text.splitlines() if one.startswith("relevo_transactions_total{")]
    return int(float(line.rpartition(" ")[2]))


def leader_of(brokers: LocalBrokers, topic: str) -> int:
    found = admin(brokers.kafka).list_topics(topic, timeout=10).topics[topic]
    return int(found.partitions[0].leader)


def test_three_of_each_survive_the_loss_of_one(three: LocalBrokers) -> None:
    """A cluster of three that stops when one of them is killed is no better than a single server."""
    write_one(three.kafka, "kept", b"before", replicas=3)
    leading = next(one for one in three.zookeeper_servers if "Mode: leader" in ask(one.port, "srvr"))
    with zookeeper(three.zookeeper) as client:
        client.create("/kept", b"before")
        three.kafka_servers[0].kill()
        leading.kill()
        write_one(three.kafka, "kept", b"while away", replicas=3)
        wait_until(
            lambda: any("Mode: leader" in ask(one.port, "srvr") for one in three.zookeeper_servers),
            "a new leader",
        )
        assert client.retry(client.get, "/kept")[0] == b"before"
    leading.restart()
    three.kafka_servers[0].restart()
    three.await_brokers()
    three.check()
    assert read_all(three.kafka, "kept") == [b"before", b"while away"]


def test_nothing_is_accepted_or_decided_without_two_of_three(three: LocalBrokers) -> None:
    """What one broker alone has confirmed is gone with its disk, and somebody was told that it is safe."""
    name = unique_cluster_name("two-away")
    TopicAdmin(three.kafka, name).init(1, ["mail"], allow_unsafe=False)
    flags = (
        "--node-id", "a", "--kafka", three.kafka, "--zookeeper", three.zookeeper, "--cluster", name,
        "--partitions", "1",
    )  # fmt: skip
    with NodeProcess(*flags) as node, relevo.Client(three.kafka, cluster=name) as client:
        node.await_ready()
        api = ApiClient(node.address)
        client.create("mail", key="with three", wait="decided")
        stays = leader_of(three, f"{name}.commands")  # it could say yes at once
        second, third = (server for server in three.kafka_servers if server.number != stays)
        third.kill()
        client.create("mail", key="with two", wait="decided", timeout=WAIT_S)
        client.create("mail", key="due", delay=2, wait="decided", timeout=WAIT_S)
        second.kill()
        before = committed(node)
        with pytest.raises(relevo.OutcomeUnknown):
            client.create("mail", key="with one", timeout=AWAY_S)
        assert committed(node) == before, "a job was due, and nobody else keeps a copy of what became of it"
        restart(three, second, third)
        client.create("mail", key="with one", wait="decided", timeout=WAIT_S)
        for key in ("with three", "with two", "due", "with one"):
            wait_until(partial(is_handed_out, api, key), f"{key!r} is handed out", timeout_s=WAIT_S)


def is_handed_out(api: ApiClient, key: str) -> bool:
    return bool(api.job(key)["state"] == "ACTIVE")


class ReplicatedCluster(CounterCluster):
    """Its log stands on some of the brokers, the first of which leads; the commands are on all."""

    def __init__(self, brokers: LocalBrokers, name: str, on: list[int], config: dict[str, str]) -> None:
        self._on, self._config = on, config
        super().__init__(brokers.kafka, brokers.zookeeper, unique_cluster_name(name))

    def create_topics(self, *names: str) -> None:
        topics = [
            NewTopic(self.topic(name), 1, replica_assignment=[self._on], config=self._config)
            if name == "log"
            else NewTopic(self.topic(name), 1, 3)
            for name in names
        ]
        for made in self.admin.create_topics(topics).values():
            made.result(30)

    def led_by(self) -> int:
        return int(self._partition().leader)

    def in_sync(self) -> list[int]:
        return sorted(self._partition().isrs)

    def settle(self, count: int, what: str) -> None:
        """A leader and a hot standby, and events that stay."""
        self.host("n1", give_back_after_s=1_000.0)
        self.wait_leader("n1")
        self._add(count, what)
        self.wait_total(count)
        self.host("n2", give_back_after_s=1_000.0)
        wait_until(lambda: self.role("n2") == Role.STANDBY, "n2 is hot")
        self.wait_applied("n2", count + 1)

    def decide(self, count: int, what: str) -> None:
        """Further events, which Kafka confirms; leader and standby have applied them."""
        before = self.total("n1")
        self._add(count, what)
        self.wait_total(before + count, timeout_s=WAIT_S)
        self.wait_applied("n2", before + count + 1)

    def notice_and_go_on(self) -> None:
        """The loss is told; the next leaders build on what the log holds, and on nothing else."""
        told = self.diaries["n2"].faults
        wait_until(
            lambda: any("it was truncated" in detail for _, _, detail in told), "it is told", timeout_s=WAIT_S
        )
        leader = self.wait_leader(timeout_s=WAIT_S)
        # Where the position in the commands goes back with the log, they are decided again.
        self.send(id="after", add=100)
        wait_until(lambda: "after" in str(self.events()), "work goes on", timeout_s=WAIT_S)
        assert self.check_log().total == 160
        self.wait_total(160, timeout_s=WAIT_S)
        wait_until(lambda: self.hosts[leader].views()[0].candidates, "one is hot", timeout_s=WAIT_S)
        assert self.hosts[leader].stop(10)
        self.wait_leader(timeout_s=WAIT_S)
        self.wait_total(160, timeout_s=WAIT_S)
        assert self.check_log().total == 160

    def end(self) -> int:
        """Of the log, behind the last commit."""
        reader = Consumer({"bootstrap.servers": self.kafka, "group.id": "end", "log_level": 0})
        bounds = reader.get_watermark_offsets(TopicPartition(self.topic("log"), 0), timeout=10)
        reader.close()
        assert bounds is not None
        return bounds[1]

    def refuses_a_write(self) -> bool:
        """Whether Kafka refuses a record for the log, rather than wait for a copy; it must not say yes."""
        codes: list[int | None] = []

        def answered(error: KafkaError | None, _record: object) -> None:
            codes.append(error.code() if error is not None else None)

        settings = {"bootstrap.servers": self.kafka, "acks": "all", "retries": 0, "log_level": 0}
        writer = Producer({**settings, "request.timeout.ms": 1_000})
        writer.produce(self.topic("log"), b"", partition=0, on_delivery=answered)
        assert writer.flush(30) == 0
        assert codes != [None], "a record was accepted of which there is one copy"
        return codes == [KafkaError.NOT_ENOUGH_REPLICAS]

    def _partition(self) -> PartitionMetadata:
        return self.admin.list_topics(self.topic("log"), timeout=10).topics[self.topic("log")].partitions[0]

    def _add(self, count: int, what: str) -> None:
        for number in range(count):
            self.send(id=f"{what} {number}", add=1)


def test_a_stale_replica_that_is_elected_is_noticed(three: LocalBrokers) -> None:
    """Kafka forgets what it has acknowledged, as the topic's settings allow it to, and tells nobody."""
    first, second, _ = three.kafka_servers
    unsafe = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    with ReplicatedCluster(three, "stale", [1, 2], unsafe) as cluster:
        cluster.settle(30, "kept")
        second.kill()
        wait_until(lambda: cluster.in_sync() == [1], "the other replica falls behind", timeout_s=WAIT_S)
        cluster.decide(30, "lost")
        first.kill()
        restart(three, second, all_run=False)
        wait_until(lambda: cluster.led_by() == 2, "the stale replica leads", timeout_s=WAIT_S)
        restart(three, first)
        cluster.notice_and_go_on()


def test_a_tail_that_the_elected_replica_has_lost_is_noticed(three: LocalBrokers) -> None:
    """Both copies were in step. The one that Kafka goes on with loses some, and the other cuts it off."""
    first, second, _ = three.kafka_servers
    with ReplicatedCluster(three, "tail", [1, 2], {"min.insync.replicas": "2"}) as cluster:
        cluster.settle(30, "kept")
        kept = cluster.end()
        cluster.decide(30, "lost")
        second.kill()
        wait_until(lambda: cluster.in_sync() == [1], "one copy is left", timeout_s=WAIT_S)
        # Its leader hears of it a little later than others, and would wait for the copy until then.
        wait_until(cluster.refuses_a_write, "nothing is accepted below the minimum", timeout_s=WAIT_S)
        first.kill()
        cut_tail(three, 1, cluster.topic("log"), kept)
        # Neither has ended in order, so Kafka trusts neither any more: whoever led last leads again. Until
        # the other has followed, it says that it hasn't got the records, and not where its log ends.
        restart(three, first, all_run=False)
        restart(three, second)
        wait_until(lambda: cluster.led_by() == 1, "the one that has lost its tail leads", timeout_s=WAIT_S)
        cluster.notice_and_go_on()


def test_a_change_of_leader_takes_nothing_out_of_a_transaction(three: LocalBrokers) -> None:
    """Between records and commit: away from a broker that dies, and back to it once it has caught up."""
    first = three.kafka_servers[0]
    batches = Batches(three.kafka, three.kafka, unique_cluster_name("leader-change"), [[1, 2, 3], [2, 3, 1]])
    ledger = Ledger(batches)
    numbers = count()

    def write(many: int) -> None:
        for number in islice(numbers, many):
            ledger.write(number)

    def write_one(then: Callable[[], None]) -> None:
        """A transaction in the midst of which something happens."""

        def at(point: str) -> None:
            if point == "commit":
                batches.at = lambda _point: None
                then()

        batches.at = at
        write(1)

    moved = [TopicPartition(topic, 0) for topic in (batches.log, batches.other)]

    def partitions() -> list[PartitionMetadata]:
        topics = batches.admin.list_topics(timeout=10).topics
        return [topics[each.topic].partitions[each.partition] for each in moved]

    def lead_again() -> None:
        refused = batches.admin.elect_leaders(ElectionType.PREFERRED, moved).result(30)
        assert not any(refused.values()), refused
        wait_until(lambda: [each.leader for each in partitions()] == [1, 1], "it leads again")

    for _ in range(LEADER_CHANGES):
        write(10)
        write_one(then=first.kill)
        write(10)
        assert all(each.leader in (2, 3) for each in partitions())
        restart(three, first)
        wait_until(
            lambda: all(len(each.isrs) == 3 for each in partitions()), "it is in step", timeout_s=WAIT_S
        )
        write_one(then=lead_again)
        write(10)
    ledger.works_on(next(numbers) + 1)
    ledger.check()
    assert len(ledger.told[Committed]) >= 20 * LEADER_CHANGES, ledger.told
