"""A log that loses its tail, and goes on differently: nobody may believe in what isn't there any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relevo_engine.local.brokers import LocalBrokers
from relevo_partitions.observer import Observer
from relevo_partitions.snapshots.loading import load
from relevo_partitions.statemachine import Incoming, Term
from relevo_partitions.term.roles import Role
from tests.support.broker_files import lose_tail
from tests.support.brokers import unique_cluster_name
from tests.support.counter_cluster import counter_cluster
from tests.support.counter_machine import CounterMachine
from tests.support.snapshot_process import EVENTS, SnapshotBench
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def one_broker() -> Iterator[LocalBrokers]:
    """Not one that is lent: behind a cut it recovers all that it holds, and those hold much."""
    with LocalBrokers() as brokers:
        yield brokers


class Bench(SnapshotBench):
    """With its topics, and a second course of events."""

    def __init__(self, kafka: str, cluster: str) -> None:
        super().__init__(kafka, cluster)
        admin = AdminClient({"bootstrap.servers": kafka})
        topics = [NewTopic(f"{cluster}.{name}", 1, 1) for name in ("log", "commands")]
        topics.append(NewTopic(f"{cluster}.snapshots", 1, 1, config={"cleanup.policy": "compact"}))
        for made in admin.create_topics(topics).values():
            made.result(30)

    def write(self, count: int, term: str = "", add: int = 1) -> None:
        """A new term where one is named, and additions; each event a batch of its own."""
        for nth in range(count):
            now = self.live.last_at + add
            if term and nth == 0:
                writes = list(self.live.lead(Term(term, term), now))
            else:
                value = b'{"id": "%d by %d", "add": %d}' % (self.live.seq, add, add)
                writes = list(self.live.step([Incoming(self.live.position, b"", value)], now))
            for write in writes:
                self.producer.produce(write.topic, write.value, partition=0)
            assert self.producer.flush(30) == 0
            self.next_offset += 1

    def rewind(self, end: int) -> None:
        """Go on from the first ``end`` events, as the log does."""
        self.live, self.next_offset = CounterMachine(0, self.cluster), end
        records: list[Incoming] = []
        while len(records) < end:
            records += self.store.peek(len(records), 1_000)
        self.live.replay(records)


@pytest.mark.parametrize("terms", [1, 2], ids=["in one term", "with a term that was cut off"])
def test_a_snapshot_of_what_was_cut_off_is_not_believed(one_broker: LocalBrokers, terms: int) -> None:
    """Numbers of events and terms begin again where the cut is: they alone say that it fits."""
    bench = Bench(one_broker.kafka, unique_cluster_name("cut-snapshot"))
    bench.write(40, "n1")
    bench.write(EVENTS, "n2" if terms == 2 else "")
    bench.take(bench.snapshotter())
    (manifest,) = bench.store.newest()
    assert (manifest.seq, manifest.epoch) == (40 + EVENTS, terms)
    bench.write(5)
    lose_tail(one_broker, f"{bench.cluster}.log", 40)
    bench.rewind(40)
    bench.write(2 * EVENTS, "n3", add=1_000)
    said: list[str] = []

    class Heard(Observer):
        def note(self, event: str, **fields: object) -> None:
            said.append(f"{event} {fields.get('reason', '')}")

    loaded = load(0, bench.make, bench.store, Heard())
    assert loaded.manifest is None, said
    assert said[0].startswith("snapshot_refused"), said
    assert bench.recovered().state_hash() == bench.live.state_hash()


def test_leader_and_standby_go_on_from_what_the_log_holds(one_broker: LocalBrokers) -> None:
    """Both have applied events that are gone, and that others, written since, stand in place of."""
    with counter_cluster(one_broker, unique_cluster_name("cut-standby")) as cluster:
        cluster.host("n1", give_back_after_s=1_000.0)
        cluster.wait_leader("n1")
        for number in range(30):
            cluster.send(id=f"kept {number}", add=1)
        cluster.wait_total(30)
        cluster.host("n2", give_back_after_s=1_000.0)
        wait_until(lambda: cluster.role("n2") == Role.STANDBY, "n2 is hot")
        kept = len(cluster.log()) * 2  # each transaction of one record has an offset for its commit
        for number in range(30):
            cluster.send(id=f"lost {number}", add=1)
        cluster.wait_total(60)
        cluster.wait_applied("n2", 61)
        lose_tail(one_broker, cluster.topic("log"), kept)
        assert "lost 29" not in str(cluster.events())
        told = cluster.diaries["n2"].faults
        wait_until(lambda: any("it was truncated" in detail for _, _, detail in told), "the loss is told")
        leader = cluster.wait_leader(timeout_s=90)
        # Where the position in the commands goes back with the log, they are decided again.
        cluster.send(id="after", add=100)
        wait_until(lambda: "after" in str(cluster.events()), "work goes on", timeout_s=60)
        machine = cluster.check_log()
        cluster.wait_total(machine.total, timeout_s=60)
        assert machine.total == 160
        wait_until(lambda: cluster.hosts[leader].views()[0].candidates, "a standby is hot", timeout_s=60)
        assert cluster.hosts[leader].stop(10)
        cluster.wait_leader(timeout_s=60)
        cluster.wait_total(160, timeout_s=60)
        assert cluster.check_log().total == 160


def test_a_leader_alone_tells_that_its_own_log_is_shorter(one_broker: LocalBrokers) -> None:
    """Nobody stands by who had read what is gone, and what is left is sound."""
    with counter_cluster(one_broker, unique_cluster_name("cut-alone")) as cluster:
        cluster.host("n1")
        cluster.wait_leader("n1")
        for number in range(10):
            cluster.send(id=f"c{number}", add=1)
            cluster.wait_total(number + 1)
        # About half: each record is a transaction of its own, and has a second offset for its commit.
        lose_tail(one_broker, cluster.topic("log"), len(cluster.log()) // 2 * 2)
        cluster.send(id="after", add=100)
        told = cluster.diaries["n1"].faults
        wait_until(lambda: "log_tail_lost" in str(told), "the loss is told", timeout_s=90)
        cluster.wait_total(110, timeout_s=60)
        assert cluster.check_log().total == 110
