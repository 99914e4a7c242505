"""Reading one partition: what isn't there any more stops it, with an error that says what is wrong."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.connection import Connection
from relevo_partitions.kafka.fence import ProducerPool, fence
from relevo_partitions.kafka.log import PartitionReader
from relevo_partitions.kafka.writer import TransactionalWriter
from relevo_partitions.outcomes import Committed
from relevo_partitions.runtime import THREADS
from relevo_partitions.statemachine import Incoming, LogDamaged, Term
from relevo_partitions.term.barrier import make_barrier
from relevo_partitions.term.replay import replay_to_barrier
from relevo_partitions.term.stuck_reader import StuckReaderWatch
from tests.support.brokers import Brokers
from tests.support.counter_machine import CounterMachine
from tests.support.fixtures import StartBrokers


class Bench:
    """A log of counter events, written in transactions."""

    def __init__(self, kafka: str, name: str) -> None:
        self.kafka, self.name, self.topic = kafka, name, f"{name}.log"
        self.connection = Connection(kafka)
        self.admin = AdminClient({"bootstrap.servers": kafka})
        self.create()
        self.live = CounterMachine(0, name)

    def create(self) -> None:
        self.admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(30)

    def delete(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(30)

    def writer(self) -> TransactionalWriter:
        pool = ProducerPool(self.connection, f"{self.name}-0", self.topic)
        producer, faults = fence(pool, lambda: False)
        return TransactionalWriter(producer, faults, self.connection, self.topic)

    def foreign(self, **settings: object) -> Producer:
        """Another transactional producer, in a transaction."""
        conf = {
            "bootstrap.servers": self.kafka,
            "transactional.id": f"{self.name}-0",
            "log_level": 0,
            **settings,
        }
        producer = Producer(conf)
        producer.init_transactions(30)
        producer.begin_transaction()
        return producer

    def grow(self, writer: TransactionalWriter, count: int = 1) -> None:
        """``count`` transactions of one event each."""
        if self.live.epoch == 0:
            assert isinstance(writer.commit(self.live.lead(Term("n1", "i1"), 1)), Committed)
        for _ in range(count):
            name = f"c{self.live.seq}"
            command = Incoming(self.live.position, b"", b'{"id": "%s", "add": 1}' % name.encode())
            assert isinstance(writer.commit(self.live.step([command], 1)), Committed)

    def trim(self, offset: int) -> None:
        where = TopicPartition(self.topic, 0, offset)
        self.admin.delete_records([where])[where].result(30)

    def reader(self, offset: int = 0) -> PartitionReader:
        reader = PartitionReader(self.connection, self.topic, 0, "readers", verify_checksums=True)
        reader.start(offset)
        return reader

    def take_over(self) -> tuple[CounterMachine, float]:
        """Fence, barrier, replay; the machine and the seconds from the fence's end."""
        writer = self.writer()
        began = time.monotonic()
        reader = self.reader()
        nonce = THREADS.token()
        barrier = make_barrier(self.topic, 0, "n2", "i2", nonce)
        assert isinstance(writer.commit([barrier]), Committed)
        machine = CounterMachine(0, self.name)
        try:
            assert replay_to_barrier(
                machine,
                reader,
                nonce,
                cancelled=lambda: False,
                stall_s=10,
                stalled=lambda _: None,
                stuck=StuckReaderWatch(reader, self.topic, lambda: 0),
            )
        finally:
            reader.close()
        return machine, time.monotonic() - began


@pytest.fixture
def bench(brokers: Brokers, cluster_name: str) -> Bench:
    return Bench(brokers.kafka, cluster_name)


def read_some(reader: PartitionReader, timeout_s: float = 20.0) -> list[Incoming]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        records = reader.read(0.2, 100)
        if records:
            return records
    raise AssertionError("nothing to read")


@pytest.mark.parametrize(
    "tail", ["empty", "commit marker", "abort marker", "aborted records", "open transaction"]
)
def test_the_end_of_the_log_is_found_whatever_stands_there(bench: Bench, tail: str) -> None:
    """Control records and hidden records make every comparison of offsets wrong: too early, or for ever."""
    if tail != "empty":
        bench.grow(bench.writer(), 3)
    if tail in ("abort marker", "aborted records"):
        producer = bench.foreign()
        for _ in range(1000 if tail == "aborted records" else 1):
            producer.produce(bench.topic, b"aborted", partition=0)
        producer.flush(30)
        producer.abort_transaction(30)
    elif tail == "open transaction":
        producer = bench.foreign()
        producer.produce(bench.topic, b"never committed", partition=0)
        producer.flush(30)
    machine, seconds = bench.take_over()
    assert (machine.total, machine.seq) == (bench.live.total, bench.live.seq)
    assert seconds < 10


def test_a_log_whose_head_was_deleted_is_refused(bench: Bench) -> None:
    bench.grow(bench.writer(), 5)
    bench.trim(3)
    with pytest.raises(LogDamaged, match=r"offset 0 was due, but Kafka holds records from 3 on"):
        read_some(bench.reader())


def test_records_deleted_in_mid_replay_are_noticed(bench: Bench) -> None:
    """A reader that jumped to the next record would build a state with a hole."""
    bench.grow(bench.writer(), 3)
    reader = bench.reader()
    assert read_some(reader)
    bench.grow(bench.writer(), 3)
    bench.trim(14)
    reader2 = bench.reader()
    with pytest.raises(LogDamaged, match="were deleted"):
        read_some(reader2)


def test_a_start_beyond_the_end_is_refused(bench: Bench) -> None:
    """The client's default would silently begin at 0 again."""
    bench.grow(bench.writer(), 2)
    with pytest.raises(
        LogDamaged, match=r"offset 99 was due, but the partition ends at \d+: it was truncated"
    ):
        bench.reader().check(99)


def test_a_truncated_log_is_told_although_its_end_is_not_known_yet(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader answers so until its followers have followed. Read anew, what is left would look sound."""

    def not_caught_up(_reader: PartitionReader) -> tuple[int, int]:
        raise KafkaUnavailable("Leader high watermark is not caught up")

    bench.grow(bench.writer(), 2)
    reader = bench.reader()
    monkeypatch.setattr(PartitionReader, "_bounds", not_caught_up)
    reader.start(99)
    with pytest.raises(LogDamaged, match=r"offset 99 was due.*it was truncated.*high watermark"):
        read_some(reader)


def test_a_start_before_the_first_record_is_refused(bench: Bench) -> None:
    bench.grow(bench.writer(), 5)
    bench.trim(6)
    with pytest.raises(LogDamaged, match="offset 2 was due, but Kafka holds records from 6 on"):
        bench.reader().check(2)


def test_a_missing_topic_is_named(bench: Bench) -> None:
    """A consumer that waits for its records never hears of it."""
    bench.delete()
    with pytest.raises(LogDamaged, match=rf"{bench.topic} \[0\] doesn't exist"):
        bench.reader().check(0)


def test_a_topic_made_anew_under_the_reader_is_noticed(bench: Bench) -> None:
    """Its offsets begin again: what comes now has nothing to do with what was read."""
    bench.grow(bench.writer(), 5)
    reader = bench.reader()
    machine = CounterMachine(0, bench.name)
    records = read_some(reader)
    machine.replay(records)
    bench.delete()
    deadline = time.monotonic() + 20
    while True:  # the broker frees the name a moment later
        try:
            bench.create()
            break
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    bench.live = CounterMachine(0, bench.name)
    bench.grow(bench.writer(), 2)
    with pytest.raises(LogDamaged):
        read_on(reader, machine, records[-1].offset + 1)


def read_on(reader: PartitionReader, machine: CounterMachine, offset: int) -> None:
    """Read until an error ends it."""
    while True:
        records = reader.read(0.2, 100)
        machine.replay(records)
        reader.check(records[-1].offset + 1 if records else offset)


def test_batches_come_at_once_and_in_order(bench: Bench) -> None:
    bench.grow(bench.writer(), 20)
    reader = bench.reader()
    records: list[Incoming] = []
    while len(records) < 21:
        records += read_some(reader)
    assert [record.offset for record in records] == sorted({record.offset for record in records})
    machine = CounterMachine(0, bench.name)
    machine.replay(records)
    assert machine.total == 20
    assert reader.read(0, 100) == []
    assert reader.end_offset() >= records[-1].offset + 1
    reader.check(5)


def test_kafka_out_of_reach_is_told_in_words() -> None:
    reader = PartitionReader(Connection("127.0.0.1:9"), "t", 0, "g")
    with pytest.raises(KafkaUnavailable, match=r"Kafka isn't reachable at 127\.0\.0\.1:9"):
        reader.check(5)
    reader.close()


def test_a_published_position_is_seen_by_lag_tools(bench: Bench) -> None:
    from confluent_kafka import Consumer

    bench.grow(bench.writer(), 2)
    reader = bench.reader()
    read_some(reader)
    reader.note_position(2)
    asker = Consumer({"bootstrap.servers": bench.kafka, "group.id": "readers"})
    deadline = time.monotonic() + 20
    while asker.committed([TopicPartition(bench.topic, 0)], timeout=10)[0].offset != 2:
        assert time.monotonic() < deadline
        reader.read(0.1, 1)
    asker.close()
    reader.close()


@pytest.mark.timeout(300)
def test_a_bit_that_flips_on_the_disk_stops_the_reader(own_brokers: StartBrokers, cluster_name: str) -> None:
    """The client fetches a damaged batch again and again: a replay would wait for ever, and nobody lead."""
    brokers = own_brokers(1, 0)
    bench = Bench(brokers.kafka, cluster_name)
    producer = Producer({"bootstrap.servers": brokers.kafka})
    for number in range(10):
        producer.produce(bench.topic, b"record-%d" % number, partition=0)
        assert producer.flush(30) == 0  # each a batch of its own
    (server,) = brokers.kafka_servers
    server.stop()
    (segment,) = brokers.home.rglob(f"{bench.topic}-0/*.log")
    data = bytearray(segment.read_bytes())
    data[data.rindex(b"record-4") + 3] ^= 1
    segment.write_bytes(data)
    server.restart()
    brokers.await_brokers()
    reader = PartitionReader(bench.connection, bench.topic, 0, "g", verify_checksums=True)
    reader.start(0)
    with pytest.raises(LogDamaged, match=rf"{cluster_name}\.log \[0\]: the batch at offset 4 is damaged"):
        read_all(reader, 10)
    reader.close()


def read_all(reader: PartitionReader, count: int) -> list[Incoming]:
    """The next ``count`` records."""
    read: list[Incoming] = []
    while len(read) < count:
        read += reader.read(1.0, 100)
    return read
