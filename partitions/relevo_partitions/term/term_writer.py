"""What a term writes: behind its fence, one transaction after the other, each with an outcome."""

from __future__ import annotations

from collections.abc import Sequence

from relevo_partitions.observer import Observer
from relevo_partitions.outcomes import Committed, Unclear
from relevo_partitions.ports import PartitionIO, Writer
from relevo_partitions.statemachine import Term, Write
from relevo_partitions.term.barrier import is_barrier, make_barrier
from relevo_partitions.term.course import Course
from relevo_partitions.term.endings import Setback
from relevo_partitions.term.fence_ahead import FenceAhead


class TermWriter:
    """The fenced producer of a term, where it has one. Used by one thread at a time.

    Args:
        course: Of the term.
        io: Kafka.
        who: Goes into the barriers.
        observer: Hears of commits.
        ahead: The first fence, where it is under way already; belongs to this object.
    """

    def __init__(
        self,
        course: Course,
        io: PartitionIO,
        who: Term,
        observer: Observer,
        ahead: FenceAhead | None = None,
    ) -> None:
        self._course = course
        self._io = io
        self._who = who
        self._observer = observer
        self._ahead = ahead
        self._writer: Writer | None = None
        self.commits = 0
        """Transactions of this term that have committed."""
        self.decisions = 0
        """Those among them that held more than a barrier: that the log takes one says nothing of the rest."""

    @property
    def ready(self) -> bool:
        """Whether there is a producer behind a fence of this term."""
        return self._writer is not None

    def fence(self) -> None:
        """Shut every earlier producer out.

        Raises:
            KafkaUnavailable: It didn't work.
        """
        ahead, self._ahead = self._ahead, None
        with self._course.watched("fence"):
            fence = self._io.fence if ahead is None else ahead.finish
            self._writer = fence(lambda: self._course.is_over)

    def barrier(self) -> tuple[str, Write]:
        """A new barrier, with the nonce to know it by."""
        nonce = self._course.runtime.token()
        who = self._who
        write = make_barrier(self._io.log_topic, self._course.partition, who.node, who.incarnation, nonce)
        return nonce, write

    def commit(self, writes: Sequence[Write], commands: int = 0) -> None:
        """Write all or nothing.

        Raises:
            Setback: It didn't commit, or that isn't known.
            TermOver: The term was ended before.
        """
        self._course.check()
        writer = self._writer
        if writer is None:
            raise Setback(Unclear("no writer"))
        with self._course.watched("commit"):
            outcome = writer.commit(writes)
        if not isinstance(outcome, Committed):
            raise Setback(outcome)
        self.commits += 1
        self.decisions += not all(is_barrier(write.value) for write in writes)
        self._observer.committed(self._course.partition, commands, outcome.records, outcome.seconds)

    def hands_out(self, writes: Sequence[Write]) -> bool:
        """Whether something goes to another topic than the log: what workers take."""
        log_topic = self._io.log_topic
        return any(write.topic != log_topic for write in writes)

    def missing(self, topic: str) -> str | None:
        """Kafka's word that there is no such topic; None where it is there, or Kafka is silent."""
        writer = self._writer
        if writer is None:
            return None
        with self._course.watched("metadata"):
            return writer.missing(topic, self._course.partition)

    def drop(self) -> None:
        """Let the producer go."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.give_up()
        if self._writer is not None:
            self._writer.drop()
            self._writer = None
