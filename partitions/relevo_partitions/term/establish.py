"""Steps 2 to 5 of a term: fence, verify, barrier, announce. Behind them the machine may decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from relevo_partitions.observer import Observer
from relevo_partitions.pace import AT_ONCE
from relevo_partitions.ports import PartitionIO, Reader, Seat, Verdict
from relevo_partitions.settings import TermSettings
from relevo_partitions.statemachine import StateMachine, Term
from relevo_partitions.term.ahead import CommandsAhead
from relevo_partitions.term.batches import Batches
from relevo_partitions.term.clock import LeaderClock
from relevo_partitions.term.course import Course
from relevo_partitions.term.endings import Ending, TermOver
from relevo_partitions.term.hearing import Hearing
from relevo_partitions.term.last_committed import LastCommitted
from relevo_partitions.term.replay import replay_to_barrier
from relevo_partitions.term.roles import Role
from relevo_partitions.term.seat_asked import SeatAsked
from relevo_partitions.term.standby import Load, Replica, Standby
from relevo_partitions.term.stuck_reader import StuckReaderWatch
from relevo_partitions.term.takeover import Takeover
from relevo_partitions.term.term_writer import TermWriter

CLOCKS_APART_S: Final = 60.0
"""By so much clocks may differ without a word."""
AWAIT_STEP_S: Final = 0.5
"""A standby that is waited for is asked so often whether the term is over."""


@dataclass(frozen=True, slots=True)
class Established:
    """What a leader decides with."""

    machine: StateMachine
    clock: LeaderClock
    commands: Reader
    hearing: Hearing


class Establishing:
    """Leads a term from its claim to its announcement, as often as setbacks make it necessary.

    Args:
        course: Of the term.
        writer: Of the term.
        who: Announced.
        seat: The claim.
        io: Kafka.
        batches: Cuts the commands into transactions; the first one goes with the announcement.
        load: Makes a machine where no standby has one.
        observer: Hears of a log that doesn't move.
        settings: Bounds.
        takeover: Notes when each step was done.
        standby: Follows the log, and its machine is taken over; it belongs to this object.
        last: The last event of this node's terms.
    """

    def __init__(
        self,
        course: Course,
        writer: TermWriter,
        *,
        who: Term,
        seat: Seat,
        io: PartitionIO,
        batches: Batches,
        load: Load,
        observer: Observer,
        settings: TermSettings,
        takeover: Takeover,
        standby: Standby | None,
        last: LastCommitted,
    ) -> None:
        self._course = course
        self._writer = writer
        self._who = who
        self._seat = seat
        self._io = io
        self._batches = batches
        self._load = load
        self._observer = observer
        self._settings = settings
        self._takeover = takeover
        self._standby = standby
        self._last = last
        self._applied = standby.applied if standby is not None else 0
        self._readers: list[Reader] = []
        self._ahead: CommandsAhead | None = None

    def run(self, *, anew: bool) -> Established:
        """Do what is left to do.

        Args:
            anew: Whether a setback came before, so that the topic may be gone.

        Raises:
            Setback: A transaction didn't commit.
            TermOver: The term is over.
            LogDamaged: The log, or the commands, can't be read.
            KafkaUnavailable: Kafka doesn't answer.
        """
        course = self._course
        course.role(Role.REPLAYING if self._writer.ready else Role.FENCING)
        commands = self._open(self._io.commands())
        source = self._source(anew)
        if source is None:
            self._ahead = self._fetch_ahead(commands)
        asked = self._fence() if not self._writer.ready else None
        nonce, barrier = self._writer.barrier()
        if self._standby is not None:
            self._standby.meet(nonce)
        try:
            self._writer.commit([barrier])
        finally:
            if asked is not None:
                self._confirm(asked)
        course.point("barrier")
        machine = self._from_standby(nonce) if source is None else self._replayed(source, nonce)
        self._takeover.step("barrier")
        course.point("replayed")
        return self._announce(machine, self._started(commands, machine.position))

    def let_go(self) -> Standby | None:
        """Close what is open. A standby that hasn't met its barrier goes on, and is given back."""
        self.close_readers()
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.meet(None)
        return standby

    def abandon(self) -> None:
        """The thread of this term hangs: a standby that it has works for nobody. For any thread."""
        standby = self._standby
        if standby is not None:
            standby.stop()

    def close_readers(self) -> None:
        """Let the readers of this attempt go."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._readers.remove(ahead.reader)
            ahead.give_up()
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def _source(self, anew: bool) -> Replica | None:
        """A machine and a reader that fetches in the background; None where the standby has both."""
        standby = self._standby
        if standby is not None and not standby.await_end(0):
            return None
        if standby is not None:
            self._standby = None
            replica = standby.hand_out()
            if replica is not None:  # it met the barrier of an attempt that failed afterwards
                return self._read_on(replica)
        return self._loaded(check=anew)

    def _read_on(self, replica: Replica) -> Replica:
        """A standby's machine, where the log goes on: what it had fetched behind its barrier is gone."""
        self._open(replica.reader).start(replica.next_offset)
        return replica

    def _loaded(self, *, check: bool) -> Replica:
        """A machine made from what is kept, and a reader that goes on from there."""
        beginning = self._load(self._course.partition, AT_ONCE)
        reader = self._open(self._io.log())
        if check:
            reader.check(beginning.log_offset)  # the topic may have gone: nobody would say so
        reader.start(beginning.log_offset)
        return Replica(beginning.machine, reader, beginning.log_offset)

    def _fetch_ahead(self, commands: Reader) -> CommandsAhead | None:
        """Fetch from where the standby stands, while the fence is under way."""
        standby = self._standby
        position = standby.position if standby is not None else None
        if position is None:
            return None
        return CommandsAhead(commands, position, self._course.partition, self._course.runtime)

    def _started(self, commands: Reader, position: int) -> Reader:
        """The commands from ``position`` on, which are found to be there."""
        if self._ahead is not None:
            with self._course.watched("commands"):
                started = self._ahead.from_position(position)
            self._ahead = None
            return started
        commands.check(position)
        commands.start(position)
        return commands

    def _fence(self) -> SeatAsked:
        course = self._course
        self._writer.fence()
        self._takeover.step("fence")
        course.point("fenced")
        course.role(Role.VERIFYING)
        return SeatAsked(self._seat, course.partition, course.runtime)

    def _confirm(self, asked: SeatAsked) -> None:
        verdict, at = asked.answer()
        if verdict is not Verdict.OURS:
            raise TermOver(
                Ending.LOST if verdict is Verdict.LOST else Ending.UNCONFIRMED,
                f"verified the claim: {verdict.value}",
            )
        self._takeover.step("verify", at)
        self._course.point("verified")
        self._course.role(Role.REPLAYING)

    def _from_standby(self, nonce: str) -> StateMachine:
        """The machine of the standby, which stops at the barrier; else, where it failed, one made anew."""
        standby = self._standby
        if standby is None:
            raise AssertionError("there is no standby to wait for")
        while not standby.await_end(AWAIT_STEP_S):
            self._course.check()
        self._standby = None
        replica = standby.hand_out()
        if replica is None:
            detail = str(standby.over)
            self._observer.fault(self._course.partition, "standby_lost", f"made anew from the log: {detail}")
            loaded = self._loaded(check=False)
            # What is loaded now may be a snapshot from behind the barrier, which then is never met.
            nonce, barrier = self._writer.barrier()
            self._writer.commit([barrier])
            return self._replayed(loaded, nonce)
        if replica.met != nonce:
            # It came to the barrier of an attempt that failed, while this one began: there is more behind it.
            return self._replayed(self._read_on(replica), nonce)
        replica.reader.close()
        self._takeover.standby = not self._takeover.done("announce")
        self._takeover.replayed = standby.applied - self._applied
        return replica.machine

    def _replayed(self, replica: Replica, nonce: str) -> StateMachine:
        course, log_topic = self._course, self._io.log_topic
        stuck = StuckReaderWatch(replica.reader, log_topic, lambda: self._io.stable_end(log_topic))
        done = replay_to_barrier(
            replica.machine,
            replica.reader,
            nonce,
            cancelled=lambda: course.is_over,
            stall_s=self._settings.stall_s,
            stalled=lambda detail: self._observer.fault(course.partition, "log_stalled", detail),
            begin=replica.next_offset,
            now=course.now,
            stuck=stuck,
        )
        if not done:
            course.check()
        self._readers.remove(replica.reader)
        replica.reader.close()
        return replica.machine

    def _announce(self, machine: StateMachine, commands: Reader) -> Established:
        """Announce the term, and in the same transaction decide what has been fetched by now.

        Behind the barrier nothing can come between the two, and a transaction of its own would keep the
        commands waiting that piled up meanwhile.
        """
        course, takeover = self._course, self._takeover
        course.role(Role.ANNOUNCING)
        clock = LeaderClock(course.runtime.wall, course.now, machine.last_at)
        ahead_s = machine.last_at / 1000 - course.runtime.wall()
        if ahead_s > CLOCKS_APART_S:
            self._observer.fault(
                course.partition,
                "clock",
                f"the log is {ahead_s:.0f} s ahead of this node's clock, and its time never goes back: this "
                "clock is wrong, or that of a node that led before was. Jobs fall due and expire by the log",
            )
        lost = self._last.lost(machine)
        if lost is not None:
            self._observer.fault(course.partition, "log_tail_lost", lost)
        began = clock.now()
        announcement = machine.lead(self._who, began)
        batch = self._batches.next(commands, 0.0)
        decisions = machine.step(batch, clock.now())
        self._writer.commit([*announcement, *decisions], len(batch))
        self._batches.done()
        self._last.note(machine.last_seq)
        if not takeover.done("announce"):
            takeover.epoch = machine.epoch
        takeover.step("announce")
        if self._writer.hands_out(decisions):
            takeover.step("first_activation")
        return Established(machine, clock, commands, Hearing(began, self._io.commands_end, self._hear))

    def _hear(self, ask: Callable[[], None]) -> None:
        self._course.runtime.spawn(f"relevo-hearing-{self._course.partition}", ask)

    def _open(self, reader: Reader) -> Reader:
        self._readers.append(reader)
        return reader
