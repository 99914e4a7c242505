"""Takes snapshots of one partition in small slices between its replica's other work.

What waits for Kafka is done by a thread of its own: before the copy, to ask which log it is of; after it, to
write the manifest, to read everything back, and only then to remove what is older and to trim the log. A
crash between any two steps leaves the older snapshot, and a log that begins before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.observer import Observer
from relevo_partitions.pace import Pace
from relevo_partitions.runtime import THREADS, Runtime, Task
from relevo_partitions.snapshots.loading import check_facts, check_fit, cut
from relevo_partitions.snapshots.ports import Draft, LogBounds, Manifest, SnapshotSink, SnapshotStore
from relevo_partitions.statemachine import (
    Frozen,
    LogDamaged,
    MachineFactory,
    SnapshotFacts,
    SnapshotUnfit,
    StateMachine,
)

log: Final = logging.getLogger(__name__)

ITEMS_PER_PIECE: Final = 256
"""About a millisecond's work."""
KEPT: Final = 2
"""Verified snapshots that are kept."""
JOBS_PER_EVENT: Final = 4
"""Replaying an event takes twice as long as loading a job (docs/adr/0013-snapshots.md): with one event for so
many jobs a start spends a third of its time on the events."""
REST: Final = 4
"""So many times as long as a snapshot took nothing is done about the next: a fifth of a core at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """When snapshots are taken, and what is kept; times in seconds."""

    events: int = 5_000
    """A snapshot is due after so many events since the last one, or one for every four open jobs where that
    is more. A start replays about so many."""
    interval_s: float = 30.0
    """But not sooner than this after the last one was begun, nor within four times as long as it took."""
    log_keep_s: float = 7 * 24 * 3600.0
    """Records of the log are deleted no sooner than this after they were written: others read it too."""
    slice_s: float = 0.003
    """Longest time that one turn spends on copying; at least one piece is made."""


class _Phase(Enum):
    IDLE = "idle"
    PREPARING = "preparing"
    """The thread asks which log it is."""
    COPYING = "copying"
    FINISHING = "finishing"
    """The thread writes the manifest, verifies, retires, trims."""
    STOPPED = "stopped"


@dataclass(slots=True)
class _Copy:
    """One snapshot under way."""

    frozen: Frozen
    sink: SnapshotSink
    bounds: LogBounds
    log_offset: int
    taken_at: int
    began: float
    slice_max_s: float
    complete: bool = False


class Snapshotter:
    """One partition's snapshots, as its replica takes them. Used by the replica's thread.

    Args:
        partition: Number of the partition.
        store: Where they are kept; not closed here.
        machine_factory: Makes the empty machine that reads a snapshot back.
        observer: Told what happens: notes ``snapshot_begun``, ``_written``, ``_verified``, ``_retired``, and
            the fault ``snapshot_failed``.
        settings: When, and what is kept.
        runtime: Time and threads.
        checkpoint: Called with a name after each step, for tests that stop the process there.
    """

    def __init__(
        self,
        partition: int,
        store: SnapshotStore,
        machine_factory: MachineFactory,
        observer: Observer,
        settings: SnapshotSettings | None = None,
        runtime: Runtime = THREADS,
        checkpoint: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._partition = partition
        self._store = store
        self._machine_factory = machine_factory
        self._observer = observer
        self._settings = settings or SnapshotSettings()
        self._runtime = runtime
        self._checkpoint = checkpoint
        self._phase = _Phase.IDLE
        self._verified: list[Manifest] = []
        self._last_seq = self._last_count = 0
        self._began = self._not_before = runtime.monotonic()
        self._task: Task | None = None
        self._stopping = runtime.signal()
        # Set by the thread as its last act, taken by a turn.
        self._bounds: LogBounds | None = None
        self._failure: str | None = None
        self._commits: int | None = None
        self._copy: _Copy | None = None

    @property
    def busy(self) -> bool:
        """Whether a copy is under way: the next turn should come soon, since what changes is kept twice."""
        return self._phase is _Phase.COPYING

    @property
    def verified(self) -> list[Manifest]:
        """The verified snapshots that this replica knows of, the newest first."""
        return list(self._verified)

    def loaded(self, manifest: Manifest | None) -> None:
        """The snapshot that the machine was loaded from, which is verified thereby."""
        self._verified = [manifest] if manifest is not None else []
        self._last_seq, self._last_count = (manifest.seq, manifest.count) if manifest is not None else (0, 0)

    def turn(self, machine: StateMachine, next_log_offset: int) -> None:
        """A standby's slice: some milliseconds at most.

        Args:
            machine: Holds every event below ``next_log_offset``, and none from there on.
            next_log_offset: Where the standby reads on.
        """
        if self._phase is _Phase.PREPARING and self._prepared():
            self._begin(machine, next_log_offset)
        self._go_on(machine)

    def turn_leading(self, machine: StateMachine, commits: int) -> None:
        """A leader's slice, for a partition without a standby: some milliseconds at most.

        A leader doesn't know the offsets of its events. It asks for the log's end; what was there is in its
        state if it commits once more afterwards, because nobody can have written in between: a later leader
        fences first.

        Args:
            machine: Nothing in it is uncommitted.
            commits: Transactions that the leader has committed so far.
        """
        if self._phase is _Phase.PREPARING and self._prepared():
            if self._commits is None:
                self._commits = commits
            elif commits > self._commits and self._bounds is not None:
                self._begin(machine, self._bounds.end)
        self._go_on(machine)

    def stop(self, timeout_s: float = 0.0) -> None:
        """Give up what is under way; to be called on the replica's thread while its machine is its own.

        Args:
            timeout_s: How long to wait for the thread; it ends by itself soon.
        """
        self._stopping.set()
        self._phase = _Phase.STOPPED
        if self._copy is not None:
            self._give_up(self._copy)
        if self._task is not None and timeout_s > 0:
            self._task.join(timeout_s)

    # Steps on the replica's thread

    def _go_on(self, machine: StateMachine) -> None:
        if self._phase is _Phase.COPYING:
            self._slice()
        elif self._phase is _Phase.FINISHING and self._ended():
            self._phase = _Phase.IDLE
            now = self._runtime.monotonic()
            self._not_before = max(self._not_before, now + REST * (now - self._began))
        elif self._phase is _Phase.IDLE and self._is_due(machine):
            self._not_before = self._runtime.monotonic() + self._settings.interval_s
            self._phase = _Phase.PREPARING
            self._bounds, self._commits = None, None
            self._in_background(self._prepare)

    def _is_due(self, machine: StateMachine) -> bool:
        # A log that was replaced, or a machine that fell back, has fewer events than the last snapshot.
        events = abs(machine.last_seq - self._last_seq)
        enough = max(self._settings.events, self._last_count // JOBS_PER_EVENT)
        return events >= enough and self._runtime.monotonic() >= self._not_before

    def _prepared(self) -> bool:
        """Whether the thread has found out which log it is; where it failed, the next turn may begin anew."""
        if not self._ended():
            return False
        if self._bounds is None:
            self._phase = _Phase.IDLE
        return self._bounds is not None

    def _ended(self) -> bool:
        return self._task is None or not self._task.is_alive()

    def _begin(self, machine: StateMachine, log_offset: int) -> None:
        bounds = self._bounds
        if bounds is None:
            return
        began = self._began = self._runtime.monotonic()
        frozen = machine.freeze()
        sink = self._store.begin(frozen.seq)
        took = self._runtime.monotonic() - began
        taken_at = int(self._runtime.wall() * 1000)
        self._copy = _Copy(frozen, sink, bounds, log_offset, taken_at, began, took)
        self._phase = _Phase.COPYING
        self._note("begun", seq=frozen.seq, count=frozen.count, log_offset=log_offset, pause_ms=_ms(took))
        self._checkpoint("frozen")

    def _slice(self) -> None:
        copy = self._copy
        if copy is None:
            return
        began = now = self._runtime.monotonic()
        try:
            while copy.sink.room and now - began < self._settings.slice_s:
                piece = copy.frozen.next(ITEMS_PER_PIECE)
                if piece is None:
                    copy.complete = True
                    break
                copy.sink.add(piece)
                now = self._runtime.monotonic()
                self._checkpoint("piece")
        except KafkaUnavailable as problem:
            self._give_up(copy)
            self._failed(str(problem))
            self._phase = _Phase.IDLE
            return
        copy.slice_max_s = max(copy.slice_max_s, self._runtime.monotonic() - began)
        if copy.complete:
            self._copy = None
            self._last_seq, self._last_count = copy.frozen.seq, copy.frozen.count
            self._phase = _Phase.FINISHING
            self._in_background(lambda: self._finish(copy))

    def _give_up(self, copy: _Copy) -> None:
        copy.frozen.cancel()
        copy.sink.abandon()
        self._copy = None

    # Steps on the thread

    def _in_background(self, step: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                step()
            except (KafkaUnavailable, SnapshotUnfit, LogDamaged) as problem:
                self._failed(str(problem))
            except Exception as error:  # the last line: whatever fails here must be seen, and harms nothing
                log.exception("Partition %d: taking a snapshot failed", self._partition)
                self._failed(f"{type(error).__name__}: {error}")

        self._task = self._runtime.spawn(f"relevo-snapshot-{self._partition}", guarded)

    def _prepare(self) -> None:
        self._bounds = self._store.log_bounds()

    def _finish(self, copy: _Copy) -> None:
        frozen = copy.frozen
        facts = SnapshotFacts(frozen.seq, frozen.epoch, frozen.position, frozen.count, frozen.state_hash())
        manifest = copy.sink.finish(Draft(copy.bounds.topic_id, copy.log_offset, facts, copy.taken_at))
        self._note(
            "written",
            snapshot=manifest.name,
            bytes=manifest.size,
            chunks=manifest.chunks,
            seconds=round(self._runtime.monotonic() - copy.began, 3),
            slice_max_ms=_ms(copy.slice_max_s),
        )
        self._checkpoint("written")
        if self._verify(manifest):
            self._verified = [manifest, *self._verified][:KEPT]
            self._checkpoint("verified")
            if len(self._verified) == KEPT:
                self._clear_away(self._verified[-1])

    def _verify(self, manifest: Manifest) -> bool:
        """Read everything back; False where this replica ended meanwhile."""
        began = self._runtime.monotonic()
        check_fit(manifest, self._partition, self._store.log_bounds())
        machine = self._machine_factory(self._partition)
        try:
            found = machine.examine(self._unhurried(self._store.read(manifest)))
        except SnapshotUnfit:
            if self._stopping.is_set():
                return False
            raise
        check_facts(manifest, found)
        self._note(
            "verified",
            snapshot=manifest.name,
            taken_at=manifest.taken_at,
            seq=manifest.seq,
            bytes=manifest.size,
            seconds=round(self._runtime.monotonic() - began, 3),
        )
        return True

    def _unhurried(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Leaves every other moment to the replica; ends early where that has ended."""
        for piece in Pace(self._runtime).through(cut(pieces)):
            if self._stopping.is_set():
                return
            yield piece

    def _clear_away(self, oldest: Manifest) -> None:
        """Everything below ``oldest`` has had its day: two that are verified are there."""
        retired = self._store.retire(oldest)
        self._checkpoint("retired")
        log_begin, commands_begin = self._store.trim(oldest, self._settings.log_keep_s)
        self._note(
            "retired",
            oldest=oldest.name,
            records=retired,
            log_begin=log_begin,
            commands_begin=commands_begin,
        )
        self._checkpoint("trimmed")

    def _failed(self, reason: str) -> None:
        self._observer.fault(self._partition, "snapshot_failed", reason)

    def _note(self, what: str, **fields: object) -> None:
        self._observer.note(f"snapshot_{what}", partition=self._partition, **fields)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
