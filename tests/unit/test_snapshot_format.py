"""Snapshots as bytes: crashes between any two events, damage anywhere, and what is replayed on top."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Sequence
from typing import Any

import fastavro
import pytest

from relevo_engine import snapshot_format
from relevo_engine.core import snapshot
from relevo_engine.machine import PartitionMachine
from relevo_partitions.statemachine import Incoming, LogDamaged, SnapshotUnfit, StateMachine
from relevo_schemas import events as ev
from relevo_schemas.codec import decode, encode
from relevo_schemas.records import Event
from tests.unit.core.harness import Partition, incoming
from tests.unit.core.test_state import busy


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BATCH", 2)
    monkeypatch.setattr(snapshot_format, "BATCH", 2)


def pieces_of(machine: StateMachine, items_max: int = 1) -> list[bytes]:
    frozen = machine.freeze()
    found = []
    while (piece := frozen.next(items_max)) is not None:
        found.append(piece)
    return found


def restored(p: Partition, pieces: Iterable[bytes]) -> PartitionMachine:
    machine = p.fresh()
    machine.restore(pieces)
    return machine


def test_a_snapshot_is_read_with_plain_fastavro() -> None:
    p = busy()
    content = io.BytesIO(b"".join(pieces_of(p.owner)))
    found: list[Any] = list(fastavro.reader(content, return_record_name=True))
    names = [name for name, _ in found]
    assert names[0] == "relevo.SnapshotHeader"
    assert names[-1] == "relevo.SnapshotEnd"
    keys = [key for name, record in found if name == "relevo.SnapshotJobs" for key in record["keys"]]
    assert keys == list(p.state.jobs)


@pytest.mark.parametrize("items_max", [1, 4, 1_000])
def test_the_size_of_the_slices_changes_nothing(items_max: int) -> None:
    p = busy()
    pieces = pieces_of(p.owner, items_max)
    assert restored(p, pieces).state_hash() == p.owner.state_hash()
    facts = p.fresh().examine(pieces)
    assert (facts.seq, facts.epoch, facts.position) == (p.owner.last_seq, p.owner.epoch, p.owner.position)
    assert (facts.count, facts.state_hash) == (p.owner.count, p.owner.state_hash())


def test_a_piece_may_be_cut_anywhere() -> None:
    """Kafka's chunks end where they are full."""
    p = busy()
    content = b"".join(pieces_of(p.owner))
    for size in (1, 7, 100):
        chunks = [content[at : at + size] for at in range(0, len(content), size)]
        assert restored(p, chunks).state_hash() == p.owner.state_hash()


def test_a_crash_after_any_event_is_survived_by_snapshot_and_log() -> None:
    """State and position that part by one event lose a command, or decide it twice."""
    p = busy()
    machine = p.fresh()
    straight: list[tuple[str, int]] = [(machine.state_hash(), machine.position)]
    snapshots = [pieces_of(machine)]
    log = incoming(p.log)
    for record in log:
        machine.replay([record])
        straight.append((machine.state_hash(), machine.position))
        snapshots.append(pieces_of(machine))
    for at, pieces in enumerate(snapshots):
        again = restored(p, pieces)
        assert (again.state_hash(), again.position) == straight[at]
        first = max(0, at - 3)
        for record in log[first:]:
            again.replay([record])
            assert (again.state_hash(), again.position) == straight[max(at, record.offset + 1)]


def test_what_is_missing_or_another_after_a_snapshot_stops_the_replay() -> None:
    p = busy()
    pieces, log = pieces_of(p.owner), incoming(p.log)
    at = len(log)
    p.create("k20")
    p.create("k21")
    more = incoming(p.log)[at:]
    assert restored_and_fed(p, pieces, [*log[-3:], *more]).state_hash() == p.owner.state_hash()
    for records, found in (
        (more[1:], f"expected seq {at + 1}"),  # a hole right behind it
        ([log[-3], log[-1]], f"expected seq {at - 1}"),  # a hole in what is held already
        ([log[-3], *more], f"expected seq {at - 1}"),
        ([*log[-2:], log[-1]], f"expected seq {at + 1}"),  # a repeat
        ([rewritten(log[-1]), *more], "the event that the snapshot ends with"),
        ([rewritten(log[-2], epoch=9)], "an epoch up to 1"),
    ):
        with pytest.raises(LogDamaged, match=found):
            restored_and_fed(p, pieces, records)


def restored_and_fed(p: Partition, pieces: Sequence[bytes], records: Sequence[Incoming]) -> PartitionMachine:
    machine = restored(p, pieces)
    machine.replay(records)
    return machine


def rewritten(record: Incoming, **changes: int) -> Incoming:
    """Another event at the same place, as after a truncation."""
    event = decode(record.value)
    assert isinstance(event, Event)
    epoch = changes.get("epoch", event.epoch)
    other = ev.JobDue(event.seq, epoch, event.at + 1, event.source, "another")
    return Incoming(record.offset, record.key, encode(other))


def test_a_snapshot_that_is_cut_anywhere_is_refused() -> None:
    p = busy()
    content = b"".join(pieces_of(p.owner))
    for end in [*range(0, len(content), 7), len(content) - 1]:
        with pytest.raises(SnapshotUnfit):
            p.fresh().restore([content[:end]])
        with pytest.raises(SnapshotUnfit):
            p.fresh().examine([content[:end]])


def test_a_flipped_byte_is_never_taken_for_another_state() -> None:
    p = busy()
    content = b"".join(pieces_of(p.owner))
    whole = p.owner.state_hash()
    seed = random.Random(4)
    refused = 0
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= seed.randrange(1, 256)
        machine = p.fresh()
        try:
            machine.restore([bytes(damaged)])
        except SnapshotUnfit:
            refused += 1
        else:  # a text for people only: the schema's, for one
            assert machine.state_hash() == whole
    assert refused > len(content) // 2


def test_pieces_out_of_order_are_refused() -> None:
    p = busy()
    pieces = pieces_of(p.owner)
    for at in range(len(pieces) - 1):
        swapped = [*pieces[:at], pieces[at + 1], pieces[at], *pieces[at + 2 :]]
        with pytest.raises(SnapshotUnfit):
            p.fresh().restore(swapped)


def test_a_newer_format_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    p = busy()
    monkeypatch.setattr(snapshot, "FORMAT", 2)
    pieces = pieces_of(p.owner)
    with pytest.raises(SnapshotUnfit, match="expected format 1, found format 2; a newer version can read it"):
        p.fresh().restore(pieces)


@pytest.mark.parametrize("content", [b"", b"Obj\x01", b"{}", b"\x00" * 4_000])
def test_what_is_no_snapshot_is_refused(content: bytes) -> None:
    with pytest.raises(SnapshotUnfit):
        busy().fresh().restore([content])


def test_another_avro_file_is_refused() -> None:
    out = io.BytesIO()
    schema = {"type": "record", "name": "Song", "fields": [{"name": "title", "type": "string"}]}
    fastavro.writer(out, fastavro.parse_schema(schema), [{"title": "x"}])
    with pytest.raises(SnapshotUnfit):
        busy().fresh().restore([out.getvalue()])


def test_the_hash_of_a_copy_is_known_at_its_end_only() -> None:
    frozen = busy().owner.freeze()
    with pytest.raises(RuntimeError, match="isn't complete"):
        frozen.state_hash()
    frozen.cancel()
    assert frozen.next(1) is None


def test_what_the_giver_of_pieces_raises_is_not_taken_for_damage() -> None:
    def pieces() -> Iterable[bytes]:
        yield b"Obj\x01"
        raise ConnectionError("Kafka is away")

    with pytest.raises(ConnectionError, match="Kafka is away"):
        busy().fresh().restore(pieces())
