"""Step 6 of a term: decide batch after batch, commit each, and only then answer who asked.

Where there is a backlog the next batch is decided while the last one commits: the machine is ahead of the
log by two batches then instead of one. Nobody sees it in that state: reads and snapshots have to wait until
nothing is uncommitted, and a commit that fails costs the machine, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from relevo_partitions.ports import PartitionIO
from relevo_partitions.settings import TermSettings
from relevo_partitions.statemachine import Incoming, LogDamaged, StateMachine, Write
from relevo_partitions.term.batches import Batches
from relevo_partitions.term.commit_beside import CommitBeside
from relevo_partitions.term.course import Course
from relevo_partitions.term.establish import Established
from relevo_partitions.term.held_back import HeldBackWatch
from relevo_partitions.term.last_committed import LastCommitted
from relevo_partitions.term.progress import Progress
from relevo_partitions.term.reads import PendingRead, ReadQueue
from relevo_partitions.term.stuck_reader import StuckReaderWatch
from relevo_partitions.term.takeover import Takeover
from relevo_partitions.term.term_writer import TermWriter

EMPTY_STEP_WAIT_S: Final = 0.002
"""A machine that is due at once but has nothing to write is asked again after this."""
READS_S: Final = 0.02
"""No further read is answered in a turn that has spent so long on them; one always is."""
SNAPSHOT_TURN_S: Final = 0.25
"""So often a leader with a backlog waits for its last commit, for the sake of the snapshots."""


class LeaderSnapshots(Protocol):
    """Takes snapshots in small slices between a leader's transactions, where nobody stands by."""

    @property
    def busy(self) -> bool:
        """Whether the next slice should come soon."""

    def turn_leading(self, machine: StateMachine, commits: int) -> None:
        """A slice of some milliseconds at most; nothing in ``machine`` is uncommitted."""

    def stop(self) -> None:
        """Give up what is under way, and let the clients go."""


class Leading:
    """The loop of a leader. Used by the term's thread.

    Args:
        course: Of the term.
        writer: Of the term.
        io: Kafka.
        batches: Cuts the commands into transactions.
        reads: Answered behind each commit.
        progress: Kept up to date.
        settings: Bounds.
        takeover: Notes the first activation.
        held_back: Follows the reader of the commands.
        last: The last event of this node's terms.
        snapshots: Makes what takes snapshots while nobody stands by; None where there are to be none.
    """

    def __init__(
        self,
        course: Course,
        writer: TermWriter,
        *,
        io: PartitionIO,
        batches: Batches,
        reads: ReadQueue,
        progress: Progress,
        settings: TermSettings,
        takeover: Takeover,
        held_back: HeldBackWatch,
        last: LastCommitted,
        snapshots: Callable[[], LeaderSnapshots | None] = lambda: None,
    ) -> None:
        self._course = course
        self._writer = writer
        self._io = io
        self._batches = batches
        self._reads = reads
        self._progress = progress
        self._settings = settings
        self._takeover = takeover
        self._held_back = held_back
        self._last = last
        self._snapshots = snapshots
        self._beside: CommitBeside | None = None
        self._then = (0, 0)

    def run(self, established: Established) -> None:
        """Ends by an exception only: the term's end, or a setback."""
        snapshots = self._snapshots()
        try:
            self._run(established, snapshots)
        finally:
            beside, self._beside = self._beside, None
            if beside is not None:
                beside.wait()
            self._held_back.close()
            if snapshots is not None:
                snapshots.stop()

    def _run(self, established: Established, snapshots: LeaderSnapshots | None) -> None:
        settings, commands, machine = self._settings, established.commands, established.machine
        now = self._course.now
        published_at = heard_at = copied_at = now()
        commands_topic = self._io.commands_topic
        stuck = StuckReaderWatch(commands, commands_topic, lambda: self._io.stable_end(commands_topic))
        wrote = True
        while True:
            self._course.check()
            copying = snapshots is not None and snapshots.busy
            soon = copying or self._beside is not None
            established.hearing.listen(established.clock.now(), machine.silent_at())
            batch = self._batches.next(commands, 0.0 if soon else self._wait_s(established, wrote))
            wrote = self._turn(established, batch, may_run_ahead=not copying)
            self._progress.end = commands.end_offset()
            self._held_back.look(commands)
            at = now()
            if snapshots is not None:
                if at - copied_at > SNAPSHOT_TURN_S:
                    self._settle()
                if self._beside is None:
                    copied_at = at
                    snapshots.turn_leading(machine, self._writer.commits)
            if batch:
                heard_at = at
            elif at - heard_at > settings.stall_s:
                heard_at = at
                self._look_for_commands(stuck)
            if at - published_at > settings.position_every_s:
                published_at = at
                commands.note_position(self._progress.position)

    def _look_for_commands(self, stuck: StuckReaderWatch) -> None:
        """Find out whether nobody sent any, or the topic is gone or the consumer stuck: it never hears."""
        problem = self._writer.missing(self._io.commands_topic)
        if problem is not None:
            raise LogDamaged(problem)
        stuck.look()

    def _wait_s(self, established: Established, wrote: bool) -> float:
        if len(self._reads):
            return 0.0
        due_ms = established.machine.wait_ms(established.clock.now())
        if due_ms is None:
            return self._settings.idle_wait_s
        shortest = 0.0 if wrote else EMPTY_STEP_WAIT_S
        return max(shortest, min(self._settings.idle_wait_s, due_ms / 1000))

    def _turn(self, established: Established, batch: list[Incoming], *, may_run_ahead: bool) -> bool:
        """Decide, commit, and only then answer the reads that had arrived before the commit began."""
        machine = established.machine
        heard = established.hearing.heard(established.commands.reached, self._batches.reached)
        writes = machine.step(batch, established.clock.now(), heard)
        then = machine.position, machine.last_seq
        self._settle()
        reads = self._reads.take()
        try:
            if not writes and any(read.proven for read in reads):
                writes = [
                    self._writer.barrier()[1]
                ]  # nothing else to write: proves that nobody has fenced us
            if writes and may_run_ahead and self._batches.full and not reads:
                self._commit_beside(writes, len(batch), then)
                return True
            if writes:
                self._writer.commit(writes, len(batch))
        except BaseException:
            self._reads.put_back(reads)
            raise
        self._committed(writes, then)
        self._answer(reads, machine)
        return bool(writes)

    def _answer(self, reads: list[PendingRead], machine: StateMachine) -> None:
        """As many as there is time for: each looks at a part of the state, and commands and timers wait."""
        until = self._course.now() + READS_S
        for place, read in enumerate(reads, 1):
            read.answer(machine)
            if place < len(reads) and self._course.now() > until:
                self._reads.put_back(reads[place:])
                return

    def _commit_beside(self, writes: Sequence[Write], commands: int, then: tuple[int, int]) -> None:
        course = self._course
        self._beside = CommitBeside(self._writer, writes, commands, course.partition, course.runtime)
        self._then = then

    def _settle(self) -> None:
        """Wait for the commit that is under way, if there is one."""
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.finish()
            self._committed(beside.writes, self._then)

    def _committed(self, writes: Sequence[Write], then: tuple[int, int]) -> None:
        """``then`` is the machine's position, and the last event's number, behind ``writes``."""
        self._batches.done()
        self._progress.position, seq = then
        self._last.note(seq)
        if writes and not self._takeover.done("first_activation") and self._writer.hands_out(writes):
            self._takeover.step("first_activation")
