"""`PartitionMachine`: the job state machine as the owner of a partition drives it, bytes in and bytes out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from relevo_engine.core.appliers import apply
from relevo_engine.core.channels import Channels
from relevo_engine.core.dispatch import Handover
from relevo_engine.core.errors import InvariantBroken, OutOfOrder
from relevo_engine.core.job import JobState
from relevo_engine.core.machine import JobMachine
from relevo_engine.core.overlap import Overlap
from relevo_engine.core.refusals import Reason
from relevo_engine.core.rules import Rules
from relevo_engine.core.views import View
from relevo_engine.snapshot_format import FrozenState, examine, restore
from relevo_engine.topics import activations_prefix, log_topic
from relevo_partitions.statemachine import Heard, Incoming, LogDamaged, SnapshotFacts, Term, Write
from relevo_schemas.codec import Codec, default_codec
from relevo_schemas.delivery import Activation, Barrier
from relevo_schemas.errors import RecordError
from relevo_schemas.events import JobCreated, LeaderElected
from relevo_schemas.records import Command, Event

UNREADABLE: Final = "UNREADABLE"
"""`CommandRejected.command` for a value that can't be read."""

# Write(...) by way of its Python-level constructor costs three times as much, four times per job.
_write: Final[Callable[[tuple[str, int, bytes, bytes]], Write]] = partial(tuple.__new__, Write)
_log = logging.getLogger(__name__)

BugReport = Callable[[int, int, Exception], None]
"""Told about a command whose decision failed: (partition, offset, error). Must not raise."""


def log_bug(partition: int, offset: int, error: Exception) -> None:
    """Write the failed decision to the log, with its traceback: it is a bug of the engine."""
    _log.error(
        "Command %d of partition %d was refused: deciding it failed", offset, partition, exc_info=error
    )


class PartitionMachine:
    """One partition's `JobMachine`, with records in Kafka's form.

    It is the `relevo_partitions.statemachine.StateMachine` of this engine.

    Args:
        rules: The partition's rules.
        channels: What is known about activation topics.
        cluster: Name of the cluster, which the topics' names begin with.
        report_bug: Told when deciding a command failed; the command is refused and the partition goes on.
        codec: Reads and writes the records.
    """

    def __init__(
        self,
        rules: Rules,
        channels: Channels,
        *,
        cluster: str = "relevo",
        report_bug: BugReport = log_bug,
        codec: Codec | None = None,
    ) -> None:
        self._rules = rules
        self._partition = rules.partition
        self._machine = JobMachine(rules, channels)
        self._codec = codec or default_codec()
        self._report_bug = report_bug
        self._overlap: Overlap | None = None
        self._log_topic = log_topic(cluster)
        self._activations = activations_prefix(cluster)

    @property
    def position(self) -> int:
        """Offset of the first command that no event of the log speaks of."""
        return self._machine.state.position

    @property
    def epoch(self) -> int:
        """Number of the last term in the log, 0 before the first."""
        return self._machine.state.epoch

    @property
    def last_at(self) -> int:
        """Time of the last event, in milliseconds since the Unix epoch."""
        return self._machine.state.last_at

    @property
    def last_seq(self) -> int:
        """Number of the last event applied, 0 before the first."""
        return self._machine.state.last_seq

    @property
    def count(self) -> int:
        """Open jobs."""
        return len(self._machine.state.jobs)

    # Snapshots

    def freeze(self) -> FrozenState:
        """Begin a copy of the state as it is now."""
        return FrozenState(self._machine.copy(), self._machine.release)

    def restore(self, pieces: Iterable[bytes]) -> None:
        """Fill an empty machine from the pieces of a copy.

        Raises:
            SnapshotUnfit: They aren't a whole copy. The machine must be thrown away.
        """
        restore(self._machine, pieces)
        self.reread()

    def reread(self) -> None:
        """The next records replayed may be older, as after `restore`: those it holds are left out."""
        self._overlap = Overlap(self._machine.state)

    def examine(self, pieces: Iterable[bytes]) -> SnapshotFacts:
        """Read a copy to its end without keeping it; from any thread.

        Raises:
            SnapshotUnfit: The pieces aren't a whole copy.
        """
        return examine(pieces)

    # Replay

    def replay(self, records: Sequence[Incoming]) -> None:
        """Apply committed records of the log, in order and without a gap.

        Raises:
            LogDamaged: A record doesn't follow the ones before. The machine must be thrown away.
        """
        decode = self._codec.decode
        offset = -1
        try:
            state = self._machine.replaying()
            for offset, _, value in records:
                record = decode(value)
                if isinstance(record, Event):
                    if self._overlap is None:
                        apply(state, record)
                    else:
                        self._apply_new(record)
                elif not isinstance(record, Barrier):
                    raise self._damaged(offset, "an event or a barrier", type(record).__name__)
        except RecordError as error:
            raise self._damaged(offset, "a record of the log", f"{error.fault.value}: {error}") from error
        except OutOfOrder as error:
            raise self._damaged(offset, error.expected, error.found) from error
        except InvariantBroken as error:
            raise self._damaged(offset, "an event that fits the state", str(error)) from error

    def _apply_new(self, event: Event) -> None:
        """Apply an event of the log, if it is the first that the state doesn't hold yet."""
        if self._overlap is not None and not self._overlap.holds(event):
            self._overlap = None
            self._machine.replay(event)

    def _damaged(self, offset: int, expected: str, found: str) -> LogDamaged:
        where = f"{self._log_topic} partition {self._partition} offset {offset}"
        return LogDamaged(f"{where}: expected {expected}, found {found}")

    # Leading

    def lead(self, term: Term, now: int) -> Sequence[Write]:
        """Begin a term; the write is its announcement."""
        return [self._event_write(self._machine.elected(term.node, term.incarnation, now))]

    def step(self, commands: Sequence[Incoming], now: int, heard: Heard | None = None) -> Sequence[Write]:
        """Decide ``commands`` in order, then work off timers and hand out jobs; bounded work per call.

        Leases run out by what was ``heard``, None where everything sent before ``now`` was.

        Raises:
            InvariantBroken: A bug; the term must end without committing.
        """
        writes: list[Write] = []
        for offset, _, value in commands:
            writes += self._command(offset, value, now)
        machine, rules = self._machine, self._rules
        if heard is not None:
            machine.heard(*heard)
        for event in machine.tick(now, rules.step_timers):
            writes.append(self._event_write(event))
        for handover in machine.dispatch(now, rules.step_activations):
            writes += self._handover_writes(handover)
        return writes

    def silent_at(self) -> int | None:
        """When the next lease runs out; None: there is none."""
        return self._machine.silent_at()

    def wait_ms(self, now: int) -> int | None:
        """Milliseconds from ``now`` until `step` has something to do; 0: at once; None: never."""
        return self._machine.wait_ms(now)

    def _command(self, offset: int, value: bytes | None, now: int) -> list[Write]:
        """Decide one command and apply what follows. What can fail comes before anything is applied."""
        machine = self._machine
        kind = UNREADABLE
        try:
            record = self._codec.decode(value)
            kind = type(record).__name__
            if not isinstance(record, Command):
                return self._refuse(offset, now, kind, Reason.INVALID, "a command", kind)
            events = machine.propose(record, offset, now)
            writes = [self._event_write(event) for event in events]
        except RecordError as error:
            if kind == UNREADABLE:
                return self._refuse(offset, now, kind, error.fault, "a command", str(error))
            return self._refuse_for_bug(offset, now, kind, error)
        except Exception as error:
            return self._refuse_for_bug(offset, now, kind, error)
        machine.accept(events)
        return writes

    def _refuse_for_bug(self, offset: int, now: int, kind: str, error: Exception) -> list[Write]:
        """A bug in deciding one command must not stand in the way of every later one."""
        self._report_bug(self._partition, offset, error)
        return self._refuse(offset, now, kind, Reason.INTERNAL, "a decision", "a bug of the engine")

    def _refuse(
        self, offset: int, now: int, kind: str, reason: str, expected: str, found: str
    ) -> list[Write]:
        event = self._machine.refusal(kind, offset, now, reason, expected, found)
        self._machine.accept((event,))
        return [self._event_write(event)]

    # Writing

    def _event_write(self, event: Event) -> Write:
        return _write((self._log_topic, self._partition, _kafka_key(event), self._codec.encode(event)))

    def _handover_writes(self, handover: Handover) -> list[Write]:
        event = handover.event
        key = event.key.encode()
        fields = (
            self._partition, event.epoch, event.at, handover.created_seq, event.attempt, handover.retries,
            handover.expiries, handover.checkpoint,
        )  # fmt: skip
        value = self._codec.encode_carrying(Activation, fields, handover.body)
        return [
            _write((self._log_topic, self._partition, key, self._codec.encode(event))),
            _write((self._activations + handover.type, event.slot, key, value)),
        ]

    # Reading

    def view(self, key: str) -> View | None:
        """What is known about one job, None where nothing is."""
        return self._machine.job(key)

    def summary(self) -> View:
        """The partition in numbers."""
        return self._machine.summary()

    def list_jobs(
        self, state: JobState | None = None, job_type: str | None = None, limit: int = 100
    ) -> list[View]:
        """The oldest open jobs of a state and a type, at most ``limit``."""
        return self._machine.list(state, job_type, limit)

    def state_hash(self) -> str:
        """A digest of the state: equal for equal logs."""
        return self._machine.state_hash()


def _kafka_key(event: Event) -> bytes:
    """The key of the event's record in Kafka: the job's, empty where it concerns none."""
    if type(event) is JobCreated:
        return event.job.key.encode()
    if type(event) is LeaderElected:
        return b""
    key: str = event.key  # type: ignore[attr-defined]
    return key.encode()
