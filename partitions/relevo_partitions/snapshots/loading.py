"""A partition's state from what is kept of it: a snapshot and what follows in the log, or the whole log.

What doesn't fit is refused with a diagnosis, and never made to fit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Final

from relevo_partitions.observer import Observer
from relevo_partitions.pace import AT_ONCE, Pace
from relevo_partitions.snapshots.ports import LogBounds, Manifest, SnapshotStore
from relevo_partitions.statemachine import (
    LogDamaged,
    MachineFactory,
    SnapshotFacts,
    SnapshotUnfit,
    StateMachine,
)
from relevo_partitions.term.barrier import is_barrier

TRIAL_RECORDS: Final = 500
"""So many records of the log show whether they go on where a snapshot ends."""
TRIAL_BEFORE: Final = 50
"""So many offsets before its end are looked at too: among them is the last event that it holds. A log that
lost its tail and grew again differs there, though all numbers go on as they should."""
LARGE: Final = 10_000
"""So many open jobs are worth setting apart."""
PIECE_BYTES: Final = 16 * 1024
"""About two hundred jobs, a millisecond's work or two."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A machine that holds the state of some moment, and where to read on."""

    machine: StateMachine
    log_offset: int
    """Of the next record of the log."""
    manifest: Manifest | None
    """Of the snapshot that it comes from, None where it comes from the log's beginning."""


def load(
    partition: int,
    machine_factory: MachineFactory,
    store: SnapshotStore,
    observer: Observer,
    pace: Pace = AT_ONCE,
) -> Loaded:
    """Make the machine of a partition; blocks.

    Another node may trim the log meanwhile, behind a newer snapshot than those that were looked at: then
    nothing that was found out holds, and all of it is done again.

    Args:
        partition: Number of the partition.
        machine_factory: Makes an empty machine.
        store: Of snapshots.
        observer: Told which snapshot was taken, and which were refused.
        pace: At which to do it.

    Raises:
        LogDamaged: No snapshot can be used, and the log doesn't begin at its beginning any more.
        KafkaUnavailable: Kafka doesn't answer.
    """
    while True:
        try:
            return _load(partition, machine_factory, store, observer, pace)
        except _Trimmed:
            continue


class _Trimmed(Exception):  # noqa: N818 - named for what happened
    """The log doesn't begin any more where it did when its bounds were asked for."""


def _check_not_trimmed(store: SnapshotStore, bounds: LogBounds) -> None:
    if store.log_bounds().begin != bounds.begin:
        raise _Trimmed


def _load(
    partition: int,
    machine_factory: MachineFactory,
    store: SnapshotStore,
    observer: Observer,
    pace: Pace,
) -> Loaded:
    bounds = store.log_bounds()
    tried: dict[str, str] = {}
    for thorough in (False, True):
        for manifest in store.newest(thorough=thorough):
            if manifest.name in tried:
                continue
            try:
                loaded = _restored(partition, machine_factory, store, manifest, bounds, pace)
            except SnapshotUnfit as unfit:
                _check_not_trimmed(store, bounds)
                tried[manifest.name] = str(unfit)
                observer.note(
                    "snapshot_refused", partition=partition, snapshot=manifest.name, reason=str(unfit)
                )
                continue
            observer.note(
                "snapshot_loaded",
                partition=partition,
                snapshot=manifest.name,
                taken_at=manifest.taken_at,
                seq=manifest.seq,
                bytes=manifest.size,
                count=manifest.count,
                log_offset=manifest.log_offset,
            )
            return loaded
    _check_not_trimmed(store, bounds)
    if bounds.begin > 0:
        snapshots = "; ".join(f"snapshot {name}: {why}" for name, why in tried.items()) or "there is none"
        raise LogDamaged(
            f"partition {partition}: the log begins at offset {bounds.begin}, what was before is deleted, "
            f"and no snapshot can take its place: {snapshots}"
        )
    return Loaded(machine_factory(partition), 0, None)


def check_fit(manifest: Manifest, partition: int, bounds: LogBounds) -> None:
    """Whether a snapshot belongs to the log as it is now.

    Raises:
        SnapshotUnfit: It doesn't; the text says what was expected and what was found.
    """
    if manifest.partition != partition:
        raise SnapshotUnfit(
            f"expected a snapshot of partition {partition}, found one of {manifest.partition}"
        )
    if manifest.generation != manifest.seq:
        raise SnapshotUnfit(f"expected generation {manifest.seq}, its last event, not {manifest.generation}")
    if manifest.log_topic_id != bounds.topic_id:
        raise SnapshotUnfit(
            f"expected a snapshot of the log topic with id {bounds.topic_id}, found one of "
            f"{manifest.log_topic_id}: the topic was deleted and made anew"
        )
    if not bounds.begin <= manifest.log_offset <= bounds.end:
        raise SnapshotUnfit(
            f"the log goes on at offset {manifest.log_offset}, but Kafka holds {bounds.begin} to {bounds.end}"
        )


def check_facts(manifest: Manifest, found: SnapshotFacts) -> None:
    """Whether the content of a snapshot is what its manifest says.

    Raises:
        SnapshotUnfit: It isn't.
    """
    for field in fields(SnapshotFacts):
        name, said, read = field.name, getattr(manifest.facts, field.name), getattr(found, field.name)
        if said != read:
            raise SnapshotUnfit(f"expected {name} {said} in the content, found {read}")


def _restored(
    partition: int,
    machine_factory: MachineFactory,
    store: SnapshotStore,
    manifest: Manifest,
    bounds: LogBounds,
    pace: Pace,
) -> Loaded:
    check_fit(manifest, partition, bounds)
    machine = machine_factory(partition)
    with collector_paused():
        machine.restore(pace.through(cut(store.read(manifest))))
    # The content's own hash was compared with what was read; making it anew from the machine takes seconds.
    found = SnapshotFacts(
        machine.last_seq, machine.epoch, machine.position, machine.count, manifest.state_hash
    )
    check_facts(manifest, found)
    try:
        _try_on(machine, store, manifest, bounds)
    except LogDamaged as damage:
        raise SnapshotUnfit(f"the log doesn't go on where it ends: {damage}") from damage
    # Whoever reads on may look for a barrier that stands among these records.
    machine.reread()
    return Loaded(machine, manifest.log_offset, manifest)


def cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same content in pieces of at most `PIECE_BYTES`."""
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE_BYTES):
            yield chunk[start : start + PIECE_BYTES]


def _try_on(machine: StateMachine, store: SnapshotStore, manifest: Manifest, bounds: LogBounds) -> None:
    """Apply the log from somewhat before the snapshot's end: it must be the one that the snapshot was of.

    Raises:
        LogDamaged: It isn't.
    """
    offset, left = max(bounds.begin, manifest.log_offset - TRIAL_BEFORE), TRIAL_RECORDS
    while offset < bounds.end and left > 0:
        records = store.peek(offset, left)
        if not records:
            return
        events = [record for record in records if not is_barrier(record.value)]
        machine.replay([record for record in events if record.offset < manifest.log_offset])
        if offset < manifest.log_offset and machine.last_seq != manifest.seq:
            raise LogDamaged(
                f"below offset {manifest.log_offset}: expected events up to seq {manifest.seq}, found seq "
                f"{machine.last_seq}"
            )
        machine.replay([record for record in events if record.offset >= manifest.log_offset])
        offset = records[-1].offset + 1
        left -= max(len(records), TRIAL_RECORDS // 4)  # where a look shows little, few are enough


def set_apart(machine: StateMachine) -> None:
    """Spare Python's collector a large state that was just built up: a walk through it is a pause."""
    if machine.count >= LARGE:
        gc.freeze()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Spares Python's collector millions of objects that are made at once and stay.

    It would walk through all of them again and again while they are made. Afterwards they are set apart, so
    that it doesn't look at them for as long as the process lives; they go all the same once nothing refers to
    them. What refers to them in a circle never goes, nor does whatever was garbage of that kind by then: so
    nothing that is done with a state may be part of a circle, exceptions and their tracebacks among it.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
