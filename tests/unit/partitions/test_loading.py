"""What a cold start takes its state from, what it refuses, and what it says of it."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.observer import Observer
from relevo_partitions.snapshots.loading import LARGE, load, set_apart
from relevo_partitions.statemachine import Incoming, LogDamaged
from tests.unit.partitions.test_snapshotter import Bench, Heard, make


def bench_with(snapshots: int) -> Bench:
    bench = Bench()
    for _ in range(snapshots):
        bench.one_more()
    bench.grow(3)
    return bench


def refusals(heard: Heard) -> list[str]:
    return [fields["reason"] for event, fields in heard.notes if event == "snapshot_refused"]


def test_without_snapshots_the_whole_log_is_read() -> None:
    bench = bench_with(0)
    loaded = load(0, make, bench.store, Observer())
    assert (loaded.log_offset, loaded.manifest, loaded.machine.last_seq) == (0, None, 0)
    bench.check_recovery()


def test_a_large_state_is_set_apart_from_what_the_collector_walks_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A standby that is hot would pause for a walk through a million jobs."""
    small, large = make(0), make(0)
    monkeypatch.setattr(type(large), "count", property(lambda machine: LARGE if machine is large else 0))
    frozen = gc.get_freeze_count()
    try:
        set_apart(small)
        assert gc.get_freeze_count() <= frozen
        set_apart(large)
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_the_newest_is_taken() -> None:
    bench, heard = bench_with(3), Heard()
    loaded = load(0, make, bench.store, heard)
    assert loaded.manifest == bench.store.manifests[-1]
    ((event, said),) = heard.notes
    assert (event, said["snapshot"]) == ("snapshot_loaded", loaded.manifest.name)
    assert loaded.log_offset == bench.store.manifests[-1].log_offset
    bench.check_recovery()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"log_topic_id": "log-0"}, "found one of log-0: the topic was deleted and made anew"),
        ({"partition": 3}, "expected a snapshot of partition 0, found one of 3"),
        ({"generation": 5_000}, "expected generation"),
        ({"log_offset": 10_000}, "the log goes on at offset 10000, but Kafka holds"),
        ({"log_offset": 2}, "the log goes on at offset 2, but Kafka holds"),
        ({"count": 1}, "expected count 1 in the content"),
        ({"epoch": 7}, "expected epoch 7 in the content"),
        ({"position": 7}, "expected position 7 in the content"),
        ({"digest": "00"}, "expected digest 00"),
    ],
)
def test_one_that_does_not_fit_is_refused_and_the_older_one_taken(changes: dict[str, Any], why: str) -> None:
    bench = bench_with(3)
    newest = bench.store.manifests[-1]
    changed = replace(newest, **changes)
    bench.store.manifests[-1] = changed
    bench.store.content[changed.name] = bench.store.content[newest.name]
    heard = Heard()
    loaded = load(0, make, bench.store, heard)
    assert loaded.manifest == bench.store.manifests[0]
    assert any(why in reason for reason in refusals(heard)), refusals(heard)
    bench.check_recovery()


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "swapped"])
def test_one_that_is_damaged_is_refused_and_the_older_one_taken(damage: str) -> None:
    """A snapshot whose content never reached the disk, though its manifest did."""
    bench = bench_with(3)
    name = bench.store.manifests[-1].name
    content = b"".join(bench.store.content[name])
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    pieces = bench.store.content[name]
    bench.store.content[name] = {
        "empty": [],
        "cut": [content[:-9]],
        "flipped": [bytes(flipped)],
        "swapped": [pieces[1], pieces[0], *pieces[2:]],
    }[damage]
    heard = Heard()
    assert load(0, make, bench.store, heard).manifest == bench.store.manifests[0]
    assert len(refusals(heard)) == 1
    bench.check_recovery()


def test_one_that_the_log_does_not_go_on_from_is_refused() -> None:
    """The log was truncated and written anew: offsets fit, the events are others."""
    bench = bench_with(3)
    newest = bench.store.manifests[-1]
    at = newest.log_offset
    bench.store.manifests[-1] = ahead = replace(newest, log_offset=at + 2)
    heard = Heard()
    assert load(0, make, bench.store, heard).manifest == bench.store.manifests[0]
    assert "the log doesn't go on where it ends" in refusals(heard)[0]
    assert ahead.name not in {each.name for each in bench.store.manifests[:-1]}


def test_where_none_can_be_used_and_the_log_is_whole_the_log_is_read() -> None:
    bench = bench_with(1)
    bench.store.content.clear()
    loaded = load(0, make, bench.store, Observer())
    assert (loaded.manifest, loaded.log_offset) == (None, 0)
    bench.check_recovery()


def test_where_none_can_be_used_and_the_log_was_trimmed_the_error_says_what_was_tried() -> None:
    bench = bench_with(3)
    for pieces in bench.store.content.values():
        pieces.pop()
    with pytest.raises(LogDamaged) as refused:
        load(0, make, bench.store, Observer())
    said = str(refused.value)
    assert f"the log begins at offset {bench.log.begin}" in said
    for manifest in bench.store.manifests:
        assert f"snapshot {manifest.name}: expected digest" in said
    bench.store.manifests.clear()
    with pytest.raises(LogDamaged, match="no snapshot can take its place: there is none"):
        load(0, make, bench.store, Observer())


@pytest.mark.parametrize("looked", [1, 2])
def test_a_log_that_is_trimmed_meanwhile_is_looked_at_anew(looked: int) -> None:
    """What another node verified and trimmed would pass for damage, and this one would keep out."""
    bench = bench_with(looked)
    before, read = bench.log.begin, iter([True])

    def trimmed() -> None:
        bench.store.on_read = lambda: None
        if next(read, False):
            bench.one_more()
            bench.one_more()

    bench.store.on_read = trimmed
    heard = Heard()
    loaded = load(0, make, bench.store, heard)
    assert bench.log.begin > before
    assert loaded.manifest == bench.store.manifests[-1]
    assert refusals(heard) == []
    bench.check_recovery()


def test_kafka_that_is_away_is_not_taken_for_damage() -> None:
    bench = bench_with(3)
    bench.store.failing = {"read"}
    with pytest.raises(KafkaUnavailable):
        load(0, make, bench.store, Observer())


def test_older_ones_are_looked_for_when_the_last_three_are_of_no_use() -> None:
    bench = bench_with(2)
    good = bench.store.manifests[0]
    for n in range(4):
        bench.store.manifests.append(replace(good, generation=1000 + n, writer=f"x{n}"))
    heard = Heard()
    assert load(0, make, bench.store, heard).manifest == bench.store.manifests[1]
    assert len(refusals(heard)) == 4


def test_whoever_reads_on_sees_each_record_that_follows() -> None:
    """A barrier that somebody waits for may be among the first."""
    bench = bench_with(1)
    loaded = load(0, make, bench.store, Observer())
    rest = bench.log.records[loaded.log_offset :]
    assert len(rest) == 3
    loaded.machine.replay(rest[:1])
    loaded.machine.replay(rest[1:])
    assert loaded.machine.state_hash() == bench.live.state_hash()
    with pytest.raises(LogDamaged):
        loaded.machine.replay([Incoming(99, b"", rest[0].value)])
