"""Stands by for one partition: applies its log as it grows, so that a takeover finds the state ready.

A standby is hot once it has read all that was stable at some moment; from then on it only has to keep up.
It is the one that reads on when this node takes over: behind the fence the new leader writes a barrier, the
standby applies the log up to it and stops there, and what it has built goes to the leader as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.observer import Observer
from relevo_partitions.pace import Pace
from relevo_partitions.ports import PartitionIO, Reader
from relevo_partitions.runtime import THREADS, Runtime
from relevo_partitions.settings import StandbySettings
from relevo_partitions.snapshots.loading import set_apart
from relevo_partitions.snapshots.ports import Manifest
from relevo_partitions.statemachine import Incoming, LogDamaged, MachineFactory, StateMachine
from relevo_partitions.term.barrier import find_barrier, is_barrier
from relevo_partitions.term.endings import Ending, TermOver
from relevo_partitions.term.held_back import HeldBackWatch
from relevo_partitions.term.stuck_reader import StuckReaderWatch

log: Final = logging.getLogger(__name__)

AWAITED_WAIT_S: Final = 0.02
"""Longest wait for a record while a takeover waits for this standby to stop."""
BUSY_WAIT_S: Final = 0.001
PIECE: Final = 64
"""So many events are a millisecond's work."""
UNHURRIED_S: Final = 30.0
"""After so long it rests no more: with a log that grows nearly as fast as it reads it would never be done."""
SILENCE_S: Final = 2.0
"""A standby that has never caught up and reads nothing for so long asks whether the topic is there: nobody
would say so. Not sooner, since it takes a moment until all brokers know of a new one."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A machine that holds the state of some moment, and where to read on."""

    machine: StateMachine
    log_offset: int
    manifest: Manifest | None = None
    """Of the snapshot that it comes from, None where it comes from the log's beginning."""


Load = Callable[[int, Pace], Beginning]
"""Makes the machine of a partition from what is kept of it, at some pace. May block, and raise
`KafkaUnavailable` and `LogDamaged`."""


def from_the_beginning(make_machine: MachineFactory) -> Load:
    """An empty machine, and the whole log."""
    return lambda partition, _pace: Beginning(make_machine(partition), 0)


@dataclass(slots=True)
class Replica:
    """A machine and the reader that goes on where it stands. Belongs to one thread at a time."""

    machine: StateMachine
    reader: Reader
    next_offset: int
    """Of the next record to be read."""
    met: str | None = None
    """Nonce of the barrier that it was read up to."""


class SnapshotTurns(Protocol):
    """Takes snapshots in small slices between a standby's batches."""

    @property
    def busy(self) -> bool:
        """Whether the next slice should come soon."""

    def loaded(self, manifest: Manifest | None) -> None:
        """The snapshot that the machine was loaded from."""

    def turn(self, machine: StateMachine, next_log_offset: int) -> None:
        """A slice of some milliseconds at most."""

    def stop(self) -> None:
        """Give up what is under way; the machine is somebody else's from now on. Quick."""

    def close(self) -> None:
        """Let the clients go."""


class Standby:
    """Follows the log from `run`, on a thread of its own, until it is stopped, fails, or meets a barrier.

    Everything but `run` may be called from any thread.

    Args:
        partition: Number of the partition.
        io: Kafka.
        load: Makes the machine to begin with.
        observer: Hears of a log that doesn't move.
        changed: Told when `hot` changes and when `run` has ended, on the standby's thread; only enqueues.
        settings: Bounds.
        snapshots: Takes them, where this node is to.
        runtime: Clocks and waiting.
    """

    def __init__(
        self,
        partition: int,
        *,
        io: PartitionIO,
        load: Load,
        observer: Observer,
        changed: Callable[[Standby], None],
        settings: StandbySettings,
        snapshots: SnapshotTurns | None = None,
        runtime: Runtime = THREADS,
    ) -> None:
        self.partition = partition
        self.hot = False
        """Whether it has caught up, and kept up since."""
        self.lag = -1
        """Records of the log that it hasn't applied yet, -1 where unknown."""
        self.applied = 0
        """Records that it has applied."""
        self.position: int | None = None
        """Where the commands go on as far as it has read; they go on no earlier. None before it has begun."""
        self.waited_for = True
        """Whether the partition has no leader: until this standby is hot, nobody may be able to take over."""
        self.takes_snapshots = False
        """Whether it is the one that is to begin snapshots; one standby of each partition is enough."""
        self.replica: Replica | None = None
        """What it has built, once it has met the barrier that it was to stop at; see `hand_out`."""
        self.over: TermOver | None = None
        """Why it ended without; `Ending.STOPPED` where it was told to."""
        self._io = io
        self._load = load
        self._observer = observer
        self._changed = changed
        self._settings = settings
        self._snapshots = snapshots
        self._now = runtime.monotonic
        self._runtime = runtime
        self._unhurried_until = runtime.monotonic() + UNHURRIED_S
        self._nonce: str | None = None
        self._stopping = runtime.signal()
        self._ended = runtime.signal()
        self._behind_since: float | None = None
        self.held_back = HeldBackWatch(io.log_topic, partition, settings.held_back_s, observer, self._now)

    def stop(self) -> None:
        """Let `run` end and drop what it has built. Returns at once."""
        self._stopping.set()

    def meet(self, nonce: str | None) -> None:
        """Stop at the barrier with ``nonce``, which isn't written yet; None: at none."""
        self._nonce = nonce

    def await_end(self, timeout_s: float) -> bool:
        """Whether `run` has ended, within ``timeout_s``."""
        return self._ended.wait(timeout_s)

    def hand_out(self) -> Replica | None:
        """What it has built, once `run` has ended; the standby has it no more.

        A large state must not be kept by whoever is done with it: see `collector_paused`.
        """
        replica, self.replica = self.replica, None
        return replica

    def _hurries(self) -> bool:
        """Whether there is no time for those who lead in this process; always once it has caught up."""
        return self.waited_for or self._nonce is not None or self._now() >= self._unhurried_until

    def run(self) -> None:
        """Follow. Never raises."""
        reader: Reader | None = None
        over = TermOver(Ending.STOPPED, "")
        # Not an attribute: it would refer to this object, and this object to it.
        pace = Pace(self._runtime, self._hurries)
        try:
            beginning = self._load(self.partition, pace)
            reader = self._io.log()
            if not self._stopping.is_set():
                self._begin(reader, beginning)
                self.replica = self._follow(Replica(beginning.machine, reader, beginning.log_offset), pace)
        except LogDamaged as damage:
            over = TermOver(Ending.LOG_DAMAGED, str(damage))
        except KafkaUnavailable as problem:
            over = TermOver(Ending.KAFKA_UNAVAILABLE, str(problem))
        except Exception as error:  # the last line: whatever a machine raises ends it
            log.exception("Partition %d: the standby's state machine failed", self.partition)
            over = TermOver(Ending.MACHINE_FAILED, f"{type(error).__name__}: {error}")
        finally:
            if self._snapshots is not None:
                self._snapshots.stop()
            if self.replica is None:
                if reader is not None:
                    reader.close()
                self.over = over
            self.held_back.close()
            self.hot = self.hot and self.replica is not None
            self._ended.set()
            self._changed(self)
            if self._snapshots is not None:
                self._snapshots.close()

    def _begin(self, reader: Reader, beginning: Beginning) -> None:
        reader.start(beginning.log_offset)
        if self._snapshots is not None:
            self._snapshots.loaded(beginning.manifest)

    def _follow(self, replica: Replica, pace: Pace) -> Replica | None:
        """Read and apply, in bounded batches: nobody who waits for this standby waits long for one."""
        reader, log_topic = replica.reader, self._io.log_topic
        stuck = StuckReaderWatch(reader, log_topic, lambda: self._io.stable_end(log_topic))
        moved_at = looked_at = self._now()
        while not self._stopping.is_set():
            records = reader.read(self._wait_s(), self._settings.batch_max)
            # Read behind the read: a barrier is written only after its nonce was made known here.
            nonce = self._nonce
            if records:
                moved_at = looked_at = self._now()
                end = find_barrier(records, nonce) if nonce is not None else None
                self._apply(replica, records[:end], pace)
                if end is not None:
                    replica.next_offset, replica.met = records[end].offset + 1, nonce
                    return replica
                replica.next_offset = records[-1].offset + 1
            elif nonce is not None and self._now() - moved_at > self._settings.stall_s:
                moved_at = self._now()
                self._look_why(replica)
            elif not self.hot and self._now() - moved_at > SILENCE_S:
                moved_at = self._now()
                reader.check(replica.next_offset)
            if self._now() - looked_at > self._settings.stall_s:
                looked_at = self._now()
                stuck.look()
            self.position = replica.machine.position
            was_hot = self.hot
            self._weigh(reader, replica.next_offset)
            if self.hot and not was_hot:
                self._unhurried_until = self._now()
                set_apart(replica.machine)
            self.held_back.look(reader)
            snapshots = self._snapshots
            if snapshots is not None and nonce is None and (self.takes_snapshots or snapshots.busy):
                snapshots.turn(replica.machine, replica.next_offset)
        return None

    def _wait_s(self) -> float:
        if self._nonce is not None:
            return AWAITED_WAIT_S
        if self._snapshots is not None and self._snapshots.busy:
            return BUSY_WAIT_S
        return self._settings.idle_wait_s

    def _apply(self, replica: Replica, records: list[Incoming], pace: Pace) -> None:
        events = [record for record in records if not is_barrier(record.value)]
        pieces = (events[start : start + PIECE] for start in range(0, len(events), PIECE))
        for piece in pace.through(pieces):
            replica.machine.replay(piece)
            self.applied += len(piece)

    def _look_why(self, replica: Replica) -> None:
        replica.reader.check(replica.next_offset)
        self._observer.fault(
            self.partition,
            "log_stalled",
            f"nothing to read for {self._settings.stall_s:g} s although a barrier was written: "
            "an open transaction of another producer holds the log back",
        )

    def _weigh(self, reader: Reader, next_offset: int) -> None:
        """Tell how far behind this standby is, and whether it counts as hot."""
        end = reader.end_offset()
        if reader.at_end:
            self.lag = 0
        elif end >= 0:
            self.lag = max(0, end - next_offset)
        now = self._now()
        hot = self.hot
        if reader.at_end or 0 <= self.lag <= self._settings.lag_max:
            self._behind_since = None
            # Where records come one after the other, the end is never quite reached.
            hot = hot or reader.at_end or self.lag <= self._settings.lag_hot
        elif self._behind_since is None or self.lag < 0:
            self._behind_since = now
        elif now - self._behind_since > self._settings.behind_s:
            hot = False
        if hot is not self.hot:
            self.hot = hot
            self._changed(self)
