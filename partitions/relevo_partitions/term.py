"""One term: from a claim in ZooKeeper to the last transaction.

Whoever commits a record has passed fence and barrier, so it has applied every committed record before its
own, and nobody who was fenced earlier can commit after it. ZooKeeper decides how fast and how calmly a
partition gets its leader, never whether the log is right; ending a term needs no answer from it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from relevo_partitions.barrier import make_barrier
from relevo_partitions.batches import Batches
from relevo_partitions.clock import LeaderClock
from relevo_partitions.endings import Ending, Setback, TermOver
from relevo_partitions.errors import KafkaUnavailable, NotLeader
from relevo_partitions.observer import Observer
from relevo_partitions.outcomes import Aborted, Committed, Fenced, Unclear
from relevo_partitions.ports import PartitionIO, Reader, Seat, Verdict, Writer
from relevo_partitions.reads import Query, ReadQueue
from relevo_partitions.replay import replay_to_barrier
from relevo_partitions.roles import Role, RoleKeeper
from relevo_partitions.runtime import THREADS, Runtime
from relevo_partitions.settings import TermSettings
from relevo_partitions.statemachine import Incoming, LogDamaged, MachineFactory, StateMachine, Term, Write

log: Final = logging.getLogger(__name__)

SETBACK_WAIT_S: Final = 0.05
"""Wait before the second of several setbacks in a row; doubles up to `SETBACK_WAIT_MAX_S`."""
SETBACK_WAIT_MAX_S: Final = 5.0
CALM_S: Final = 10.0
"""After so long in the lead an earlier setback is forgotten."""
EMPTY_STEP_WAIT_S: Final = 0.002
"""A machine that is due at once but has nothing to write is asked again after this."""


@dataclass(slots=True)
class Progress:
    """Where a term stands, for others to look at."""

    epoch: int = 0
    position: int = 0
    end: int = -1
    """End of the commands partition as last heard, -1 where unknown."""
    led: bool = False
    """Whether the term ever got as far as leading."""


class Leadership:
    """One node's term in one partition. `run` is the term; it returns when the term is over.

    Args:
        partition: Number of the partition.
        who: Goes into the announcement and the barriers.
        seat: The claim, to be verified.
        io: Kafka.
        machine_factory: Makes the machine, anew after every setback.
        roles: Follows the steps.
        observer: Hears of steps, commits and faults.
        on_topic_failure: Told (topic, reason) when one topic can't be written; afterwards the machine is
            rebuilt, and should leave that topic alone.
        settings: Bounds.
        runtime: Clocks and waiting.
        checkpoint: Called with a name between steps, for tests that stop a leader in the middle.
    """

    def __init__(
        self,
        partition: int,
        *,
        who: Term,
        seat: Seat,
        io: PartitionIO,
        machine_factory: MachineFactory,
        roles: RoleKeeper,
        observer: Observer,
        on_topic_failure: Callable[[str, str], None],
        settings: TermSettings,
        runtime: Runtime = THREADS,
        checkpoint: Callable[[int, str], None] | None = None,
    ) -> None:
        self.partition = partition
        self.progress = Progress()
        self._who = who
        self._seat = seat
        self._io = io
        self._make_machine = machine_factory
        self._roles = roles
        self._observer = observer
        self._on_topic_failure = on_topic_failure
        self._settings = settings
        self._runtime = runtime
        self._now = runtime.monotonic
        self._checkpoint = checkpoint
        self._reads = ReadQueue(settings.reads_max)
        self._batches = Batches(settings.batch_max, settings.batch_bytes)
        self._over = runtime.signal()
        self._verdict: TermOver | None = None
        self._verdict_lock = threading.Lock()
        self._call: tuple[str, float] | None = None
        self._writer: Writer | None = None
        self._readers: list[Reader] = []
        self._setbacks = 0
        self._leading_since = 0.0

    # -- for other threads

    def end(self, ending: Ending, detail: str) -> None:
        """Let the term end at its next step; the first reason counts. Returns at once."""
        with self._verdict_lock:
            if self._verdict is None:
                self._verdict = TermOver(ending, detail)
        self._over.set()

    def abandon(self, detail: str) -> None:
        """Declare the term over although its thread hangs in a call: nothing it does later has an effect."""
        self.end(Ending.ABANDONED, detail)
        self._reads.close(NotLeader(self.partition))

    def read(self, query: Query, *, proven: bool = True) -> Future[Any]:
        """Ask the leader's machine, behind the next commit that begins after now.

        Not ``proven``: as the memory is at the next turn, which may be a former leader's.
        """
        return self._reads.submit(query, proven=proven)

    def overdue(self) -> str | None:
        """Name of a Kafka call that has exceeded `TermSettings.call_limit_s`."""
        call = self._call
        return call[0] if call is not None and self._now() - call[1] > self._settings.call_limit_s else None

    # -- the term

    def run(self) -> TermOver:
        """Live through the term and let go of everything it owned. Never raises."""
        over = TermOver(Ending.STOPPED, "")
        try:
            self._serve()
        except TermOver as end:
            over = end
        except LogDamaged as damage:
            over = TermOver(Ending.LOG_DAMAGED, str(damage))
        except KafkaUnavailable as problem:
            over = TermOver(Ending.KAFKA_UNAVAILABLE, str(problem))
        except Exception as error:  # the last line: whatever a machine raises must not pass for a live term
            log.exception("Partition %d: the state machine failed", self.partition)
            over = TermOver(Ending.MACHINE_FAILED, f"{type(error).__name__}: {error}")
        finally:
            with self._verdict_lock:
                over = self._verdict if self._verdict is not None else over
                self._verdict = over
            self._over.set()
            if over.ending is not Ending.ABANDONED:
                self._roles.to(Role.ENDING, over.detail)
            self._let_go()
        return over

    def _serve(self) -> None:
        while True:
            try:
                self._lead(*self._establish())
            except Setback as setback:
                self._batches.start_over()
                self._recover(setback)
            finally:
                self._close_readers()

    def _establish(self) -> tuple[StateMachine, LeaderClock, Reader]:
        """Steps 2 to 5: fence, verify, barrier and replay, announce."""
        self._role(Role.FENCING if self._writer is None else Role.REPLAYING)
        log_reader, commands = self._open(self._io.log()), self._open(self._io.commands())
        if self._setbacks:
            log_reader.check(0)  # the topic may have gone: nobody would say so
        log_reader.start(0)  # fetches in the background while the fence is under way
        if self._writer is None:
            self._fence_and_verify()
        machine = self._make_machine(self.partition)
        with self._step("replay"):
            self._role(Role.REPLAYING)
            nonce, barrier = self._barrier()
            self._commit([barrier], 0)
            self._point("barrier")
            with self._watched("replay", limited=False):
                done = replay_to_barrier(
                    machine,
                    log_reader,
                    nonce,
                    cancelled=self._over.is_set,
                    stall_s=self._settings.stall_s,
                    stalled=lambda detail: self._observer.fault(self.partition, "log_stalled", detail),
                    now=self._now,
                )
            if not done:
                self._check()
        self._readers.remove(log_reader)
        log_reader.close()
        self._point("replayed")
        commands.check(machine.position)
        commands.start(machine.position)
        with self._step("announce"):
            self._role(Role.ANNOUNCING)
            clock = LeaderClock(self._runtime.wall, self._now, machine.last_at)
            self._commit(machine.lead(self._who, clock.now()), 0)
        self._note(machine)
        self._leading_since = self._now()
        self.progress.led = True
        self._role(Role.LEADING, f"epoch {machine.epoch}")
        self._point("leading")
        return machine, clock, commands

    def _fence_and_verify(self) -> None:
        with self._step("fence"), self._watched("fence"):
            self._writer = self._io.fence(self._over.is_set)
        self._point("fenced")
        with self._step("verify"):
            self._role(Role.VERIFYING)
            verdict = self._seat.verify()
        if verdict is not Verdict.OURS:
            raise TermOver(
                Ending.LOST if verdict is Verdict.LOST else Ending.UNCONFIRMED,
                f"verified the claim: {verdict.value}",
            )
        self._point("verified")

    def _lead(self, machine: StateMachine, clock: LeaderClock, commands: Reader) -> None:
        """Step 6. Ends by an exception only: the term's end, or a setback."""
        settings = self._settings
        published_at = heard_at = self._now()
        wrote = True
        while True:
            self._check()
            batch = self._batches.next(commands, self._wait_s(machine, clock, wrote))
            wrote = self._turn(machine, clock, batch)
            self.progress.end = commands.end_offset()
            now = self._now()
            if batch:
                heard_at = now
            elif now - heard_at > settings.stall_s:
                heard_at = now
                self._look_for_commands()
            if now - published_at > settings.position_every_s:
                published_at = now
                commands.note_position(machine.position)

    def _look_for_commands(self) -> None:
        """Find out whether nobody sent any, or the topic is gone, of which a consumer never hears."""
        writer = self._writer
        if writer is not None:
            with self._watched("metadata"):
                problem = writer.missing(self._io.commands_topic, self.partition)
            if problem is not None:
                raise LogDamaged(problem)

    def _wait_s(self, machine: StateMachine, clock: LeaderClock, wrote: bool) -> float:
        if len(self._reads):
            return 0.0
        due_ms = machine.wait_ms(clock.now())
        if due_ms is None:
            return self._settings.idle_wait_s
        shortest = 0.0 if wrote else EMPTY_STEP_WAIT_S
        return max(shortest, min(self._settings.idle_wait_s, due_ms / 1000))

    def _turn(self, machine: StateMachine, clock: LeaderClock, batch: list[Incoming]) -> bool:
        """Decide, commit, and only then answer the reads that had arrived before the commit began."""
        reads = self._reads.take()
        try:
            writes = machine.step(batch, clock.now())
            if not writes and any(read.proven for read in reads):
                writes = [self._barrier()[1]]  # nothing else to write: proves that nobody has fenced us
            if writes:
                self._commit(writes, len(batch))
        except BaseException:
            self._reads.put_back(reads)
            raise
        self._note(machine)
        for read in reads:
            read.answer(machine)
        return bool(writes)

    # -- when something goes wrong

    def _recover(self, setback: Setback) -> None:
        """Decide whether the term goes on, and from which step; wait where setbacks come in a row."""
        outcome = setback.outcome
        self._check()
        if isinstance(outcome, Aborted):
            self._observer.fault(self.partition, "aborted", outcome.reason)
            if outcome.topic is not None and outcome.topic != self._io.log_topic:
                self._on_topic_failure(outcome.topic, outcome.reason)
        else:
            self._drop_writer()
            fenced = isinstance(outcome, Fenced)
            self._observer.fault(self.partition, "fenced" if fenced else "commit_unclear", outcome.reason)
            self._confirm(outcome.reason, patient=not fenced)
            self._role(Role.FENCING, outcome.reason)
        self._pause()

    def _confirm(self, reason: str, *, patient: bool) -> None:
        """Go on only where ZooKeeper says that the claim stands.

        Whoever was fenced and can't ask must not fence back: its successor leads. After an unclear outcome
        nobody need have come, so the question is repeated while ZooKeeper is out of reach.
        """
        wait_s = SETBACK_WAIT_S
        while True:
            verdict = self._seat.verify()
            if verdict is Verdict.OURS:
                return
            if verdict is Verdict.LOST:
                raise TermOver(Ending.LOST, f"{reason}; the claim is gone")
            if not patient:
                raise TermOver(Ending.FENCED, f"{reason}; ZooKeeper can't be asked whether the claim stands")
            self._over.wait(wait_s)
            self._check()
            wait_s = min(wait_s * 2, SETBACK_WAIT_MAX_S)

    def _pause(self) -> None:
        if self._leading_since and self._now() - self._leading_since > CALM_S:
            self._setbacks = 0
        if self._setbacks:
            self._over.wait(min(SETBACK_WAIT_S * 2 ** (self._setbacks - 1), SETBACK_WAIT_MAX_S))
        self._setbacks = min(self._setbacks + 1, 20)
        self._check()

    # -- small parts

    def _commit(self, writes: Any, commands: int) -> None:
        self._check()
        writer = self._writer
        if writer is None:
            raise Setback(Unclear("no writer"))
        with self._watched("commit"):
            outcome = writer.commit(writes)
        if not isinstance(outcome, Committed):
            raise Setback(outcome)
        self._observer.committed(self.partition, commands, outcome.records, outcome.seconds)

    def _role(self, role: Role, reason: str = "") -> None:
        """Change the role, unless the term is over: then its thread has no say any more."""
        with self._verdict_lock:
            if self._verdict is not None:
                raise self._verdict
            self._roles.to(role, reason)

    def _barrier(self) -> tuple[str, Write]:
        nonce = self._runtime.token()
        who = self._who
        return nonce, make_barrier(self._io.log_topic, self.partition, who.node, who.incarnation, nonce)

    def _note(self, machine: StateMachine) -> None:
        self.progress.epoch = machine.epoch
        self.progress.position = machine.position

    def _check(self) -> None:
        if self._over.is_set():
            with self._verdict_lock:
                raise self._verdict or TermOver(Ending.STOPPED, "")

    def _point(self, name: str) -> None:
        if self._checkpoint is not None:
            self._checkpoint(self.partition, name)
        self._check()

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began = self._now()
        yield
        self._observer.takeover_step(self.partition, name, self._now() - began)

    @contextmanager
    def _watched(self, name: str, *, limited: bool = True) -> Iterator[None]:
        self._call = (name, self._now()) if limited else None
        try:
            yield
        finally:
            self._call = None

    def _open(self, reader: Reader) -> Reader:
        self._readers.append(reader)
        return reader

    def _close_readers(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.drop()
            self._writer = None

    def _let_go(self) -> None:
        self._reads.close(NotLeader(self.partition))
        self._close_readers()
        self._drop_writer()
