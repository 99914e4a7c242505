"""What the brokers guarantee, on which everything else rests, and how quickly a successor gets through."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.connection import Connection
from relevo_partitions.kafka.fence import ProducerPool, fence
from relevo_partitions.kafka.writer import TransactionalWriter
from relevo_partitions.outcomes import Committed, Fenced
from relevo_partitions.statemachine import Write
from tests.support.brokers import Brokers
from tests.support.counter_cluster import read_all
from tests.support.waiting import wait_until


class Bench:
    """One log topic and its writers."""

    def __init__(self, kafka: str, name: str) -> None:
        self.kafka, self.topic, self.connection = kafka, f"{name}.log", Connection(kafka)
        self.name = name
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(30)

    def writer(self) -> TransactionalWriter:
        pool = ProducerPool(self.connection, f"{self.name}-0", self.topic)
        producer, faults = fence(pool, lambda: False)
        return TransactionalWriter(producer, faults, self.connection, self.topic)

    def plain(self, **settings: object) -> Producer:
        """A foreign producer with the same transactional id, initialised."""
        conf = {
            "bootstrap.servers": self.kafka,
            "transactional.id": f"{self.name}-0",
            "log_level": 0,
            **settings,
        }
        producer = Producer(conf)
        producer.init_transactions(30)
        return producer

    def write(self, value: bytes) -> Write:
        return Write(self.topic, 0, b"k", value)

    def committed(self) -> list[bytes]:
        return read_all(self.kafka, self.topic, 0)


@pytest.fixture
def bench(brokers: Brokers, cluster_name: str) -> Bench:
    return Bench(brokers.kafka, cluster_name)


def test_a_zombies_commit_is_refused(bench: Bench) -> None:
    """A backend that lets an old producer commit would make every takeover unsafe."""
    old = bench.writer()
    assert isinstance(old.commit([bench.write(b"old 1")]), Committed)
    new = bench.writer()
    assert isinstance(old.commit([bench.write(b"old 2")]), Fenced)
    assert isinstance(new.commit([bench.write(b"new 1")]), Committed)
    assert bench.committed() == [b"old 1", b"new 1"]


def test_a_zombies_open_transaction_is_aborted_by_the_fence(bench: Bench) -> None:
    old = bench.plain()
    old.begin_transaction()
    old.produce(bench.topic, b"half done")
    old.flush(30)
    new = bench.writer()
    assert isinstance(new.commit([bench.write(b"new")]), Committed)
    with pytest.raises(KafkaException):
        old.commit_transaction(30)
    assert bench.committed() == [b"new"]


def test_open_and_aborted_records_are_hidden_from_readers(bench: Bench) -> None:
    """A reader that got them would build on what never happened."""
    producer = bench.plain()
    producer.begin_transaction()
    producer.produce(bench.topic, b"aborted")
    producer.flush(30)
    assert bench.committed() == []
    assert read_all(bench.kafka, bench.topic, 0, "read_uncommitted") == [b"aborted"]
    producer.abort_transaction(30)
    assert bench.committed() == []
    producer.begin_transaction()
    producer.produce(bench.topic, b"open")
    producer.flush(30)
    assert bench.committed() == []


def test_the_transaction_timeout_is_enforced(bench: Bench) -> None:
    """A leader that sleeps in a transaction would hold back every reader without end."""
    sleeper = bench.plain(**{"transaction.timeout.ms": 1000})
    sleeper.begin_transaction()
    sleeper.produce(bench.topic, b"asleep")
    sleeper.flush(30)
    foreign = Producer({"bootstrap.servers": bench.kafka})
    foreign.produce(bench.topic, b"behind it")
    foreign.flush(30)
    wait_until(lambda: bench.committed() == [b"behind it"], "the broker aborted the transaction")
    with pytest.raises(KafkaException):
        sleeper.commit_transaction(30)


def test_twenty_megabytes_of_log_are_kept(bench: Bench) -> None:
    """A backend that trims quietly would lose the head of the log."""
    writer = bench.writer()
    for index in range(20):
        block = b"%02d" % index + bytes(100_000)
        assert isinstance(writer.commit([bench.write(block)] * 10), Committed)
    assert [value[:2] for value in bench.committed()] == [b"%02d" % (i // 10) for i in range(200)]


KILLED_IN_A_TRANSACTION = """
import sys, time
from confluent_kafka import Producer
kafka, topic, transactional_id = sys.argv[1:]
producer = Producer({"bootstrap.servers": kafka, "transactional.id": transactional_id})
producer.init_transactions(30)
producer.begin_transaction()
for _ in range(100):
    producer.produce(topic, b"never committed", partition=0)
producer.flush(30)
print("open", flush=True)
time.sleep(600)
"""


def leave_a_transaction_open(bench: Bench) -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", KILLED_IN_A_TRANSACTION, bench.kafka, bench.topic, f"{bench.name}-0"],
        stdout=subprocess.PIPE,
    )
    assert leader.stdout is not None
    assert leader.stdout.readline() == b"open\n"
    leader.kill()
    leader.wait(30)
    leader.stdout.close()


def connected(pool: ProducerPool) -> bool:
    return len(pool) == 4


def test_the_throw_away_producer_beats_the_clients_fixed_wait(bench: Bench) -> None:
    """The successor of a leader killed within a transaction would stand still for half a second."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for throw_away in (True, False) * 3:
        leave_a_transaction_open(bench)
        pool = ProducerPool(bench.connection, f"{bench.name}-0", bench.topic)
        pool.keep(4)
        wait_until(partial(connected, pool), "producers are connected")
        began = time.monotonic()
        producer, faults = fence(pool, lambda: False, throw_away=throw_away)
        seconds[throw_away].append(time.monotonic() - began)
        writer = TransactionalWriter(producer, faults, bench.connection, bench.topic)
        assert isinstance(writer.commit([bench.write(b"new")]), Committed)
    assert min(seconds[False]) > 0.4, "the client's wait is gone: the trick isn't needed any more"
    assert min(seconds[True]) < min(seconds[False]) / 2, seconds
    assert bench.committed() == [b"new"] * 6


def test_fencing_without_kafka_says_so_and_ends() -> None:
    pool = ProducerPool(Connection("127.0.0.1:9"), "nobody-0", "nobody.log")
    with pytest.raises(KafkaUnavailable, match=r"Kafka isn't reachable at 127\.0\.0\.1:9 .*refused"):
        fence(pool, lambda: False)
    pool.keep(0)
