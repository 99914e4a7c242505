"""Snapshots in a real topic: written, found, read back, retired; and what damage and crashes leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.connection import Connection
from relevo_partitions.observer import Observer
from relevo_partitions.snapshots import store as snapshots
from relevo_partitions.snapshots.loading import load
from relevo_partitions.snapshots.ports import Draft, Manifest
from relevo_partitions.snapshots.records import chunk_key, manifest_key, pack_chunk, pack_manifest
from relevo_partitions.snapshots.scan import SnapshotScan
from relevo_partitions.snapshots.store import KafkaSnapshots
from relevo_partitions.statemachine import LogDamaged, SnapshotFacts, SnapshotUnfit
from tests.support.brokers import Brokers
from tests.support.snapshot_process import EVENTS, SnapshotBench, straight
from tests.support.waiting import wait_until

FACTS = SnapshotFacts(7, 1, 3, 2, "00")


class Bench(SnapshotBench):
    """With its topics, and a hand in them."""

    def __init__(self, kafka: str, cluster: str) -> None:
        super().__init__(kafka, cluster)
        self.kafka = kafka
        self.admin = AdminClient({"bootstrap.servers": kafka})
        self.create("log", "commands")
        self.create("snapshots", **{"cleanup.policy": "compact"})

    def create(self, *names: str, **config: str) -> None:
        topics = [NewTopic(f"{self.cluster}.{name}", 1, 1, config=config) for name in names]
        for made in self.admin.create_topics(topics).values():
            made.result(30)

    def delete(self, name: str) -> None:
        topic = f"{self.cluster}.{name}"
        self.admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: topic not in self.admin.list_topics(timeout=10).topics, f"{topic} is gone")

    def trim(self, offset: int) -> None:
        where = TopicPartition(f"{self.cluster}.log", 0, offset)
        self.admin.delete_records([where])[where].result(30)

    def put(self, key: bytes, value: bytes | None) -> None:
        self.producer.produce(f"{self.cluster}.snapshots", value, key, 0)
        assert self.producer.flush(30) == 0

    def write(self, content: bytes, generation: int = 7) -> Manifest:
        """A snapshot of anything."""
        sink = self.store.begin(generation)
        for at in range(0, len(content), 100_000):
            sink.add(content[at : at + 100_000])
        facts = replace(FACTS, seq=generation)
        return sink.finish(Draft(self.store.log_bounds().topic_id, 0, facts, 1))

    def keys(self) -> dict[bytes, bool]:
        """All keys in the topic, and whether the last record of each is more than a tombstone."""
        with SnapshotScan(self.connection, f"{self.cluster}.snapshots", 0) as scan:
            begin, end = scan.bounds() or (0, 0)
            return {found.key: found.value is not None for found in scan.records(begin, end)}


@pytest.fixture
def bench(brokers: Brokers, cluster_name: str) -> Iterator[Bench]:
    made = Bench(brokers.kafka, cluster_name)
    yield made
    made.store.close()


def test_a_snapshot_of_many_chunks_is_read_back(bench: Bench) -> None:
    content = os.urandom(2_700_000)
    manifest = bench.write(content)
    assert (manifest.chunks, manifest.size) == (6, len(content))
    assert bench.store.newest() == [manifest]
    assert b"".join(bench.store.read(manifest)) == content
    empty = bench.write(b"", generation=8)
    assert list(bench.store.read(empty)) == [b""]
    assert bench.store.newest() == [empty, manifest]


def test_manifests_are_found_from_the_end_without_reading_what_lies_between(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that reads every generation there ever was takes minutes."""
    monkeypatch.setattr(snapshots, "WINDOW", 2)
    written = [bench.write(os.urandom(1_600_000), generation) for generation in (7, 8, 9, 10)]
    read: list[int] = []
    records = SnapshotScan.records

    def counted(self: SnapshotScan, begin: int, end: int) -> Iterator[Any]:
        for found in records(self, begin, end):
            read.append(found.offset)
            yield found

    monkeypatch.setattr(SnapshotScan, "records", counted)
    assert bench.store.newest() == written[:0:-1]
    assert len(read) <= 6
    assert bench.store.newest(thorough=True) == written[::-1]


def test_an_unfinished_one_is_none(bench: Bench) -> None:
    sink = bench.store.begin(9)
    sink.add(os.urandom(1_200_000))
    wait_until(lambda: sink.room and len(bench.keys()) == 2, "the chunks are written")
    sink.abandon()
    assert bench.store.newest(thorough=True) == []
    with pytest.raises(KafkaUnavailable, match="was given up"):
        sink.add(os.urandom(1_200_000))


def altered(bench: Bench, manifest: Manifest, how: str) -> Manifest:
    """Another snapshot of the same content, written by hand and damaged."""
    chunks = list(bench.store.read(manifest))
    keys = [chunk_key(0, 9, "hand", nth) for nth in range(len(chunks))]
    values: list[bytes | None] = [pack_chunk(key, chunk) for key, chunk in zip(keys, chunks, strict=True)]
    if how == "flipped":
        values[1] = (values[1] or b"")[:-1] + b"?"
    elif how == "removed":
        values[1] = None
    elif how == "empty":
        values[1] = b""
    elif how == "swapped":
        values[0], values[1] = values[1], values[0]
    elif how == "another content":
        values[1] = pack_chunk(keys[1], b"x" * len(chunks[1]))
    records = list(zip(keys, values, strict=True))
    if how == "missing":
        del records[1]
    elif how == "out of order":
        records[0], records[1] = records[1], records[0]
    elif how == "cut":
        records.pop()
    with SnapshotScan(bench.connection, f"{bench.cluster}.snapshots", 0) as scan:
        end = (scan.bounds() or (0, 0))[1]
    for key, value in records:
        bench.put(key, value)
    made = replace(manifest, generation=9, seq=9, writer="hand", first_offset=end)
    bench.put(manifest_key(0, 9, "hand"), pack_manifest(made))
    return made


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("flipped", "is damaged"),
        ("removed", "was removed"),
        ("empty", "is damaged"),
        ("swapped", "is damaged"),
        ("another content", "expected 1300000 bytes with digest"),
        ("missing", "expected chunk 1 of 3, found none"),
        ("out of order", "expected chunk 0 of 3, found none"),
        ("cut", "expected chunk 2 of 3, found none"),
    ],
)
def test_a_damaged_snapshot_is_refused(bench: Bench, how: str, why: str) -> None:
    """Compacted topics have kept what was gone and lost what was there: nothing is believed unchecked."""
    manifest = bench.write(os.urandom(1_300_000))
    made = altered(bench, manifest, how)
    assert bench.store.newest()[0] == made
    with pytest.raises(SnapshotUnfit, match=why):
        list(bench.store.read(made))
    assert list(bench.store.read(manifest))


def test_a_damaged_manifest_is_passed_over(bench: Bench) -> None:
    manifest = bench.write(b"content")
    bench.put(manifest_key(0, 9, "hand"), b"{}")
    bench.put(b"nonsense", b"{}")
    assert bench.store.newest() == [manifest]


def test_older_generations_and_what_was_left_unfinished_are_removed(bench: Bench) -> None:
    first = bench.write(b"1" * 600_000, generation=5)
    bench.put(chunk_key(0, 6, "dead", 0), b"left by a crash")
    second, third = bench.write(b"2", generation=7), bench.write(b"3", generation=8)
    bench.put(chunk_key(0, 9, "other", 0), b"of another node, which is writing it now")
    assert bench.store.retire(second) == first.chunks + 1 + 1
    left = {key for key, there in bench.keys().items() if there}
    assert left == {
        chunk_key(0, 7, second.writer, 0),
        manifest_key(0, 7, second.writer),
        chunk_key(0, 8, third.writer, 0),
        manifest_key(0, 8, third.writer),
        chunk_key(0, 9, "other", 0),
    }
    assert bench.store.newest() == [third, second]
    assert bench.store.retire(second) == 0
    with pytest.raises(SnapshotUnfit):
        list(bench.store.read(replace(first, first_offset=third.first_offset)))


def test_a_start_from_a_snapshot_reads_only_what_follows(bench: Bench) -> None:
    snapshotter = bench.snapshotter()
    for _ in range(3):
        bench.grow()
        bench.take(snapshotter)
    bench.grow(5)
    assert bench.heard.faults == []
    newest, older = bench.store.newest()
    assert bench.store.log_bounds().begin == older.log_offset == 2 * EVENTS
    machine = bench.recovered()
    assert (
        machine.state_hash() == bench.live.state_hash() == straight(bench.cluster, machine.seq).state_hash()
    )
    assert load(0, bench.make, bench.store, Observer()).manifest == newest


def test_records_deleted_beyond_the_snapshots_are_told(bench: Bench) -> None:
    """A client that jumps to the next record builds a state with a hole."""
    snapshotter = bench.snapshotter()
    for _ in range(2):
        bench.grow()
        bench.take(snapshotter)
    bench.grow()
    newest, older = bench.store.newest()
    bench.trim(older.log_offset + 1)
    assert bench.recovered().state_hash() == bench.live.state_hash()
    bench.trim(newest.log_offset + 1)
    with pytest.raises(LogDamaged) as refused:
        load(0, bench.make, bench.store, Observer())
    assert f"the log begins at offset {newest.log_offset + 1}" in str(refused.value)
    assert f"snapshot {newest.name}: the log goes on at offset {newest.log_offset}" in str(refused.value)


def test_a_log_made_anew_does_not_take_the_old_ones_snapshots(bench: Bench) -> None:
    snapshotter = bench.snapshotter()
    bench.grow()
    bench.take(snapshotter)
    (manifest,) = bench.store.newest()
    bench.delete("log")
    bench.create("log")
    bench.live, bench.next_offset = straight(bench.cluster, 0), 0
    again = SnapshotBench(bench.kafka, bench.cluster)
    again.grow(3 * EVENTS)
    loaded = load(0, bench.make, bench.store, Observer())
    assert (loaded.manifest, loaded.log_offset) == (None, 0)
    assert bench.recovered().state_hash() == again.live.state_hash()
    with pytest.raises(SnapshotUnfit, match="nothing is deleted"):
        bench.store.trim(manifest, 0.0)


def test_the_log_is_kept_for_its_readers_and_commands_are_not(bench: Bench) -> None:
    bench.grow()
    for nth in range(10):
        bench.producer.produce(f"{bench.cluster}.commands", b"%d" % nth, partition=0)
    bench.producer.flush(30)
    topic_id = bench.store.log_bounds().topic_id
    oldest = replace(bench.write(b"x"), log_offset=30, position=4, log_topic_id=topic_id)
    assert bench.store.trim(oldest, 3600.0) == (0, 4)
    assert bench.store.trim(oldest, 0.0) == (30, 4)
    assert bench.store.trim(oldest, 0.0) == (30, 4)
    assert bench.store.log_bounds() == replace(bench.store.log_bounds(), begin=30, end=EVENTS)
    assert bench.store.peek(30, 5)[0].offset == 30
    assert bench.store.peek(EVENTS, 5) == []
    with pytest.raises(LogDamaged, match="were deleted"):
        bench.store.peek(3, 5)


def test_without_the_topic_a_partition_lives_from_its_log(bench: Bench) -> None:
    bench.delete("snapshots")
    bench.grow()
    assert bench.store.newest() == []
    assert bench.recovered().state_hash() == bench.live.state_hash()
    with pytest.raises(KafkaUnavailable, match=r"\.snapshots"):
        bench.write(b"x")
    bench.delete("log")
    with pytest.raises(LogDamaged, match="doesn't exist"):
        bench.store.log_bounds()


def test_kafka_out_of_reach_is_told_in_words() -> None:
    store = KafkaSnapshots(Connection("127.0.0.1:9"), "c", 0, "n1")
    calls: list[Callable[[], Any]] = [store.newest, store.log_bounds]
    for call in calls:
        with pytest.raises(KafkaUnavailable, match=r"127\.0\.0\.1:9"):
            call()
    store.close()


@pytest.mark.parametrize(
    ("step", "nth"),
    [
        ("frozen", 1),
        ("frozen", 3),
        ("piece", 2),
        ("piece", 8),
        ("written", 1),
        ("written", 3),
        ("verified", 1),
        ("verified", 3),
        ("retired", 1),
        ("retired", 2),
        ("trimmed", 1),
        ("trimmed", 2),
    ],
)
def test_a_kill_at_any_step_leaves_what_a_start_needs(bench: Bench, step: str, nth: int) -> None:
    """An announced snapshot without content, or a log trimmed below nothing: the partition would be lost."""
    command = [
        sys.executable,
        "-m",
        "tests.support.snapshot_process",
        bench.kafka,
        bench.cluster,
        step,
        str(nth),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == -signal.SIGKILL, ran
    machine = bench.recovered()
    end = bench.store.log_bounds().end
    assert machine.seq == end, "every event of the log is in the state"
    assert machine.state_hash() == straight(bench.cluster, end).state_hash()
    # The next replica goes on where this one was stopped.
    loaded = load(0, bench.make, bench.store, Observer())
    bench.live, bench.next_offset = machine, end
    snapshotter = bench.snapshotter()
    snapshotter.loaded(loaded.manifest)
    for _ in range(3):
        bench.grow()
        bench.take(snapshotter)
    bench.store.retire(bench.store.newest()[1])
    there = [key for key, there in bench.keys().items() if there]
    assert len([key for key in there if key.endswith(b"/manifest")]) == 2, "nothing older is left behind"
    assert bench.recovered().state_hash() == bench.live.state_hash()
