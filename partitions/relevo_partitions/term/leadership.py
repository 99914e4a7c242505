"""One term: from a claim in ZooKeeper to the last transaction.

Whoever commits a record has passed fence and barrier, so it has applied every committed record before its
own, and nobody who was fenced earlier can commit after it. ZooKeeper decides how fast and how calmly a
partition gets its leader, never whether the log is right; ending a term needs no answer from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from relevo_partitions.errors import KafkaUnavailable, NotLeader
from relevo_partitions.observer import Observer
from relevo_partitions.outcomes import Aborted, Fenced, Unclear
from relevo_partitions.ports import PartitionIO, Seat, Verdict
from relevo_partitions.runtime import THREADS, Runtime
from relevo_partitions.settings import TermSettings
from relevo_partitions.statemachine import LogDamaged, MachineFactory, Term
from relevo_partitions.term.batches import Batches
from relevo_partitions.term.course import Course
from relevo_partitions.term.endings import Ending, Setback, TermOver
from relevo_partitions.term.establish import Established, Establishing
from relevo_partitions.term.fence_ahead import FenceAhead
from relevo_partitions.term.held_back import HeldBackWatch
from relevo_partitions.term.last_committed import LastCommitted
from relevo_partitions.term.leading import LeaderSnapshots, Leading
from relevo_partitions.term.progress import Progress
from relevo_partitions.term.reads import Query, ReadQueue
from relevo_partitions.term.roles import Role, RoleKeeper
from relevo_partitions.term.standby import Load, Standby, from_the_beginning
from relevo_partitions.term.takeover import Takeover
from relevo_partitions.term.term_writer import TermWriter

log: Final = logging.getLogger(__name__)

SETBACK_WAIT_S: Final = 0.05
"""Wait before the second of several setbacks in a row; doubles up to `SETBACK_WAIT_MAX_S`."""
SETBACK_WAIT_MAX_S: Final = 5.0
CALM_S: Final = 10.0
"""After so long in the lead an earlier setback is forgotten."""
FRUITLESS_S: Final = 10.0
"""A term that comes to no commit for so long after a setback is given up, though its claim stands."""


class Leadership:
    """One node's term in one partition. `run` is the term; it returns when the term is over.

    Args:
        partition: Number of the partition.
        who: Goes into the announcement and the barriers.
        seat: The claim, to be verified.
        io: Kafka.
        machine_factory: Makes the machine, anew after every setback, where ``load`` isn't given.
        roles: Follows the steps.
        observer: Hears of steps, commits and faults.
        on_topic_failure: Told (topic, reason) when one topic can't be written; afterwards the machine is
            rebuilt, and should leave that topic alone.
        settings: Bounds.
        runtime: Clocks and waiting.
        checkpoint: Called with a name between steps, for tests that stop a leader in the middle.
        standby: Follows the log on a thread of its own; its machine is taken over. Belongs to the term.
        load: Makes a machine from what is kept of the partition; an empty one, for the whole log, by default.
        takeover: The record of how the term came about.
        snapshots: Makes what takes snapshots while nobody stands by; None where there are to be none.
        fence_ahead: The fence, where it is under way already. Belongs to the term.
        last: The last event of this node's terms in the partition, which outlives each of them.
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
        standby: Standby | None = None,
        load: Load | None = None,
        takeover: Takeover | None = None,
        snapshots: Callable[[], LeaderSnapshots | None] = lambda: None,
        fence_ahead: FenceAhead | None = None,
        last: LastCommitted | None = None,
    ) -> None:
        self.partition, self.progress = partition, Progress()
        self.takeover = takeover if takeover is not None else Takeover(partition, runtime=runtime)
        self.unused_standby: Standby | None = None
        """A standby that goes on although the term has ended: it never came to its barrier."""
        self._seat = seat
        self._io = io
        self._observer = observer
        self._on_topic_failure = on_topic_failure
        self._course = Course(partition, roles, settings.call_limit_s, runtime, checkpoint)
        last = last if last is not None else LastCommitted()
        self._reads = ReadQueue(settings.reads_max)
        self._batches = Batches(settings.batch_max, settings.batch_bytes)
        self._writer = TermWriter(self._course, io, who, observer, fence_ahead)
        self._establishing = Establishing(
            self._course,
            self._writer,
            who=who,
            seat=seat,
            io=io,
            batches=self._batches,
            load=load if load is not None else from_the_beginning(machine_factory),
            observer=observer,
            settings=settings,
            takeover=self.takeover,
            standby=standby,
            last=last,
        )
        self.held_back = HeldBackWatch(
            io.commands_topic, partition, settings.held_back_s, observer, self._course.now
        )
        self._leading = Leading(
            self._course,
            self._writer,
            io=io,
            batches=self._batches,
            reads=self._reads,
            progress=self.progress,
            settings=settings,
            takeover=self.takeover,
            held_back=self.held_back,
            last=last,
            snapshots=snapshots,
        )
        self.heir_is_hot = False
        """Whether another node could take over at once, as ZooKeeper showed last; kept by the supervisor."""
        self._rebuild_max = settings.rebuild_max
        self._setbacks = self._items = 0
        self._leading_since = self._fruitless_since = 0.0
        self._decisions_then = -1

    # -- for other threads

    def end(self, ending: Ending, detail: str) -> None:
        """Let the term end at its next step; the first reason counts. Returns at once."""
        self._course.end(ending, detail)

    def abandon(self, detail: str) -> None:
        """Declare the term over although its thread hangs in a call: nothing it does later has an effect."""
        self._course.abandon(detail)
        self._establishing.abandon()
        self._reads.close(NotLeader(self.partition))

    def read(self, query: Query, *, proven: bool = True) -> Future[Any]:
        """Ask the leader's machine, behind the next commit that begins after now.

        Not ``proven``: as the memory is at the next turn, which may be a former leader's.
        """
        return self._reads.submit(query, proven=proven)

    def overdue(self) -> str | None:
        """Name of a Kafka call that has exceeded `TermSettings.call_limit_s`."""
        return self._course.overdue()

    # -- the term

    def run(self) -> TermOver:
        """Live through the term and let go of everything it owned. Never raises."""
        over = TermOver(Ending.STOPPED, "")
        try:
            self._serve()
        except TermOver as end:
            over = end
        except LogDamaged as damage:
            over = self._judge(damage)
        except KafkaUnavailable as problem:
            over = TermOver(Ending.KAFKA_UNAVAILABLE, str(problem))
        except Exception as error:  # the last line: whatever a machine raises must not pass for a live term
            log.exception("Partition %d: the state machine failed", self.partition)
            over = TermOver(Ending.MACHINE_FAILED, f"{type(error).__name__}: {error}")
        finally:
            over = self._course.conclude(over)
            # Its traceback refers to the frames of the term, and with them to the machine.
            over.__traceback__ = over.__context__ = over.__cause__ = None
            self._let_go()
        return over

    def never_ran(self, detail: str) -> TermOver:
        """Let go of everything: there is no thread to `run` on."""
        over = self._course.conclude(TermOver(Ending.MACHINE_FAILED, detail))
        self._let_go()
        return over

    def _judge(self, damage: LogDamaged) -> TermOver:
        """Who slept while others led finds records deleted that they had no use for: that is no damage."""
        verdict = self._seat.verify()
        if verdict is Verdict.OURS:
            return TermOver(Ending.LOG_DAMAGED, str(damage))
        ending = Ending.LOST if verdict is Verdict.LOST else Ending.UNCONFIRMED
        return TermOver(ending, f"{damage}; verified the claim: {verdict.value}")

    def _serve(self) -> None:
        while True:
            try:
                # No name here: nothing shall keep the machine while another one is made.
                self._lead(self._establishing.run(anew=self._setbacks > 0))
            except Setback as setback:
                self._batches.start_over()
                self._recover(setback)
            finally:
                self._establishing.close_readers()

    def _lead(self, established: Established) -> None:
        self.progress.note(established.machine)
        if not self.progress.led:
            self._observer.takeover(self.takeover)
        self._leading_since = self._course.now()
        self.progress.led = True
        self._course.role(Role.LEADING, f"epoch {established.machine.epoch}")
        self._course.point("leading")
        try:
            self._leading.run(established)
        finally:
            self._items = established.machine.count

    # -- when something goes wrong

    def _recover(self, setback: Setback) -> None:
        """Decide whether the term goes on, and from which step; wait where setbacks come in a row."""
        outcome = setback.outcome
        self._course.check()
        self._give_up_if_fruitless(outcome)
        if isinstance(outcome, Aborted):
            self._observer.fault(self.partition, "aborted", outcome.reason)
            for topic in outcome.topics:
                self._on_topic_failure(topic, outcome.reason)
        else:
            self._writer.drop()
            fenced = isinstance(outcome, Fenced)
            self._observer.fault(self.partition, "fenced" if fenced else "commit_unclear", outcome.reason)
            self._confirm(outcome.reason, patient=not fenced)
            self._hand_over_if_large(outcome.reason)
            self._course.role(Role.FENCING, outcome.reason)
        self._pause()

    def _hand_over_if_large(self, reason: str) -> None:
        """A connection that breaks costs the producer, and with it the machine: others have one that is hot.

        Not after an abort: whatever can't be written can't be written there either.
        """
        if self._items > self._rebuild_max and self.heir_is_hot:
            detail = f"another node is hot, and {self._items} items would have to be read anew: {reason}"
            raise TermOver(Ending.HANDED_OVER, detail)

    def _give_up_if_fruitless(self, outcome: Aborted | Fenced | Unclear) -> None:
        """Another node may have a better way to Kafka; as long as the claim stands, it isn't tried."""
        if isinstance(outcome, Aborted) and outcome.topics:
            return
        now = self._course.now()
        if self._writer.decisions != self._decisions_then:
            self._decisions_then, self._fruitless_since = self._writer.decisions, now
        elif now - self._fruitless_since > FRUITLESS_S:
            raise TermOver(
                Ending.KAFKA_UNAVAILABLE, f"no commit in {FRUITLESS_S:g} s of trying: {outcome.reason}"
            )

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
            self._course.wait(wait_s)
            wait_s = min(wait_s * 2, SETBACK_WAIT_MAX_S)

    def _pause(self) -> None:
        if self._leading_since and self._course.now() - self._leading_since > CALM_S:
            self._setbacks = 0
        if self._setbacks:
            self._course.wait(min(SETBACK_WAIT_S * 2 ** (self._setbacks - 1), SETBACK_WAIT_MAX_S))
        self._setbacks = min(self._setbacks + 1, 20)
        self._course.check()

    def _let_go(self) -> None:
        self._reads.close(NotLeader(self.partition))
        self.unused_standby = self._establishing.let_go()
        self._writer.drop()
