"""What Kafka can do to a log before and while it is verified: trim it, grow it, lose a bit of it on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from relevo_engine.errors import UnreachableError
from relevo_engine.local.brokers import LocalBrokers
from relevo_engine.local.kafka import admin
from relevo_engine.topic_admin import TopicAdmin
from relevo_engine.topics import engine_group
from relevo_engine.verify import Invariant, LogRecord, verify_log
from relevo_engine.verify import reader as verify_reader
from relevo_engine.verify.witnesses import find_witnesses
from relevo_partitions.kafka.connection import Connection
from relevo_partitions.kafka.log import PartitionReader
from relevo_partitions.snapshots.ports import Draft
from relevo_partitions.snapshots.store import KafkaSnapshots
from relevo_partitions.statemachine import SnapshotFacts
from relevo_schemas import events as ev
from tests.support.broker_files import lose_tail
from tests.support.brokers import Brokers
from tests.support.fixtures import StartBrokers
from tests.support.nodes import relevo as run_relevo
from tests.support.waiting import wait_until
from tests.unit.engine.verify_logs import Written


def write(kafka: str, cluster: str, records: list[LogRecord]) -> None:
    """Write each record as a batch of its own."""
    producer = Producer({"bootstrap.servers": kafka})
    for each in records:
        producer.produce(f"{cluster}.log", each.value, each.key, partition=each.partition)
        assert producer.flush(30) == 0


def jobs(count: int) -> Written:
    """A term with so many jobs."""
    log = Written()
    log.add(ev.LeaderElected)
    for n in range(count):
        log.add(ev.JobCreated, f"job-{n}")
    return log


def make_topics(brokers: Brokers, cluster: str) -> None:
    TopicAdmin(brokers.kafka, cluster).init(1, [], allow_unsafe=True)


def test_a_trimmed_log_is_verified_from_where_it_begins(brokers: Brokers, cluster_name: str) -> None:
    make_topics(brokers, cluster_name)
    log = jobs(8)
    log.add(ev.JobCancelled, "job-0")
    log.add(ev.JobCancelled, "job-7")
    write(brokers.kafka, cluster_name, log.records)
    trim = TopicPartition(f"{cluster_name}.log", 0, 6)
    client = admin(brokers.kafka)
    for trimmed in client.delete_records([trim]).values():
        trimmed.result(30)
    report = verify_log(brokers.kafka, cluster_name, expected_keys=["job-0", "job-1", "job-6"])
    assert report.ok, report.violations
    where = report.partitions[0]
    assert (where.start, where.trimmed, where.first_seq, where.last_seq) == (6, True, 7, 11)
    assert report.expected is not None
    expected = report.expected
    assert (expected.ended_otherwise, expected.before_start, expected.open) == (1, 1, 1)


def test_commands_that_are_deleted_before_they_are_read_are_told_apart(
    brokers: Brokers, cluster_name: str
) -> None:
    """An engine at work deletes them; anything else that fails must end the verification."""
    make_topics(brokers, cluster_name)
    topic = f"{cluster_name}.commands"
    producer = Producer({"bootstrap.servers": brokers.kafka})
    for number in range(5):
        producer.produce(topic, b"value", f"job-{number}", partition=0)
    assert producer.flush(30) == 0
    reader = verify_reader.TopicReader(brokers.kafka, None)
    _, bounds = reader.bounds(topic)
    client = admin(brokers.kafka)  # kept until the answer is there
    for trimmed in client.delete_records([TopicPartition(topic, 0, 3)]).values():
        trimmed.result(30)
    with pytest.raises(verify_reader.TrimmedError, match="was trimmed while it was read"):
        list(reader.read(topic, {0: (0, bounds[0].end)}))
    assert len([each for batch in reader.read(topic, {0: (3, bounds[0].end)}) for each in batch]) == 2


@pytest.fixture
def endless(brokers: Brokers, cluster_name: str) -> Iterator[threading.Event]:
    """Somebody who writes good events as fast as it goes; sets the event with each that was acknowledged."""
    make_topics(brokers, cluster_name)
    stop, written = threading.Event(), threading.Event()

    def write_on() -> None:
        producer = Producer({"bootstrap.servers": brokers.kafka, "linger.ms": 0})
        log = Written()
        log.add(ev.LeaderElected)
        while not stop.is_set():
            log.add(ev.JobCreated, f"job-{log.seq}")
            for each in log.records:
                producer.produce(f"{cluster_name}.log", each.value, each.key, partition=0)
            log.records.clear()
            if producer.flush(30) == 0:
                written.set()

    thread = threading.Thread(target=write_on)
    thread.start()
    yield written
    stop.set()
    thread.join(60)


def test_a_log_that_grows_all_the_time_is_read_to_where_it_ended(
    brokers: Brokers, cluster_name: str, endless: threading.Event
) -> None:
    """A verifier that follows a busy cluster's end never comes to a verdict."""
    for _ in range(3):
        endless.clear()
        assert endless.wait(30)
        report = verify_log(brokers.kafka, cluster_name)
        assert report.ok, report.violations
        assert report.counts.records == report.partitions[0].end > 0


def test_progress_is_told(brokers: Brokers, cluster_name: str) -> None:
    make_topics(brokers, cluster_name)
    write(brokers.kafka, cluster_name, jobs(5).records)
    told: list[tuple[int, int]] = []
    assert verify_log(brokers.kafka, cluster_name, progress=lambda *both: told.append(both)).ok
    assert told[-1] == (6, 6)
    assert told == sorted(told)


@pytest.mark.timeout(300)
def test_a_bit_that_flips_on_the_disk_is_found(own_brokers: StartBrokers, cluster_name: str) -> None:
    """Kafka hands out what it finds; the checksum of the batch tells, whatever the bit means."""
    brokers: LocalBrokers = own_brokers(1, 0)
    make_topics(brokers, cluster_name)
    write(brokers.kafka, cluster_name, jobs(20).records)
    assert verify_log(brokers.kafka, cluster_name).ok
    (server,) = brokers.kafka_servers
    server.stop()
    (segment,) = brokers.home.rglob(f"{cluster_name}.log-0/*.log")
    data = bytearray(segment.read_bytes())
    data[data.rindex(b"job-7") + 4] ^= 1
    segment.write_bytes(data)
    server.restart()
    brokers.await_brokers()
    report = verify_log(brokers.kafka, cluster_name)
    first = report.partitions[0].first_violation
    assert first is not None
    assert (first.invariant, first.offset) == (Invariant.CHECKSUM, 8)
    assert report.violation_count == 1, "nobody can read past it"


def test_a_broker_that_falls_silent_is_not_waited_for_for_ever(
    own_brokers: StartBrokers, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers: LocalBrokers = own_brokers(1, 0)
    make_topics(brokers, cluster_name)
    write(brokers.kafka, cluster_name, jobs(3).records)
    monkeypatch.setattr(verify_reader, "STALL_S", 2.0)
    reader = verify_reader.TopicReader(brokers.kafka, None)
    _, bounds = reader.bounds(f"{cluster_name}.log")
    brokers.kafka_servers[0].kill()
    with pytest.raises(UnreachableError, match=rf"gave nothing more of {cluster_name}\.log partition"):
        list(reader.read(f"{cluster_name}.log", {0: (0, bounds[0].end)}))


@pytest.mark.timeout(300)
def test_a_tail_that_a_broker_lost_is_found(
    own_brokers: StartBrokers, cluster_name: str, tmp_path: Path
) -> None:
    """The log that is left is sound in itself: snapshots and a published position tell of the rest."""
    # Not one that is lent: behind a cut it recovers all that it holds, and those hold much.
    brokers: LocalBrokers = own_brokers(1, 0, home=tmp_path)
    make_topics(brokers, cluster_name)
    log = jobs(0)
    for n in range(8):
        log.add(ev.JobCreated, f"job-{n}", source=n)
    write(brokers.kafka, cluster_name, log.records)
    connection = Connection(brokers.kafka)
    reader = PartitionReader(connection, f"{cluster_name}.commands", 0, engine_group(cluster_name))
    reader.note_position(8)
    wait_until(
        lambda: len(find_witnesses(connection, cluster_name, None).of[0]) == 1, "the position is published"
    )
    assert verify_log(brokers.kafka, cluster_name).ok
    lose_tail(brokers, f"{cluster_name}.log", 6)
    report = verify_log(brokers.kafka, cluster_name)
    first = report.partitions[0].first_violation
    assert first is not None
    assert (first.invariant, first.offset, first.seq) == (Invariant.TRUNCATED, 6, 6)
    assert "the commands below offset 8" in first.expected
    store = KafkaSnapshots(connection, cluster_name, 0, "n1")
    facts = SnapshotFacts(8, 1, 7, 7, "hash")
    store.begin(8).finish(Draft(store.log_bounds().topic_id, 8, facts, 1_000))
    store.begin(99).finish(Draft("the id of a log that was deleted", 99, facts, 1_000))
    report = verify_log(brokers.kafka, cluster_name)
    assert report.by_invariant == {Invariant.TRUNCATED: 1}
    first = report.partitions[0].first_violation
    assert first is not None
    assert "the log to reach to offset 8 with event 8 of epoch 1" in first.expected
    assert report.unheard == []
    ran = run_relevo("verify", "--kafka", brokers.kafka, "--cluster", cluster_name)
    assert ran.code == 8, ran
    assert f"first: {cluster_name}.log partition 0 offset 6: TRUNCATED" in ran.out
    reader.close()
    store.close()
