"""What a reader of the job log is given: an event, its position, and what was skipped before it."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.errors import InvalidRequest
from relevo_schemas.events import JobCreated, LeaderElected
from relevo_schemas.records import Event


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """Where an event stands. Store it with your own writes; `JobEvents` goes on behind it.

    It is more than an offset: by ``seq`` and ``epoch`` a reader knows that the event it reads next is really
    the one that follows, though the log was trimmed or its topic made anew.

    ``str`` of it is short text for a column or a file, and `parse` reads that.

    Attributes:
        partition: Partition of the log.
        offset: Offset in it.
        seq: Number of the event in its partition, contiguous from 1.
        epoch: Number of the leader's term.
    """

    partition: int
    offset: int
    seq: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}:{self.seq}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> LogPosition:
        """The position whose ``str`` is ``text``.

        Raises:
            InvalidRequest: It is none.
        """
        parts = text.split(":")
        if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
            raise InvalidRequest(f"{text!r} is no position: it is partition:offset:seq:epoch")
        return cls(*map(int, parts))


@dataclass(frozen=True, slots=True)
class Skipped:
    """Events that were trimmed off the log before they were read.

    Attributes:
        partition: Partition of the log.
        offset: Where the reader would have gone on.
        resumed_at: Offset of the first event that is still there.
        events: How many are missing; None where it isn't known, as the reader started at an offset or a time
            without knowing what stood before it.
    """

    partition: int
    offset: int
    resumed_at: int
    events: int | None

    def __str__(self) -> str:
        count = "an unknown number of" if self.events is None else str(self.events)
        return f"partition {self.partition}: {count} events, offsets {self.offset} to {self.resumed_at - 1}"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of the log.

    ``(partition, offset)`` names this event for ever, so a consumer that stores it with its own writes can
    tell what it has seen; `position` is the same, and lets a reader go on behind it.

    Attributes:
        partition: Partition of the log.
        offset: Offset in it.
        kind: What happened, such as ``JobCompleted``.
        key: The job's key; empty where the event concerns none.
        event: The event itself.
        skipped: What is missing between the event before it and this one, where the log was trimmed and the
            reader was told to go on; None: nothing.
    """

    partition: int
    offset: int
    kind: str
    key: str
    event: Event
    skipped: Skipped | None = None

    @property
    def at(self) -> int:
        """When, in milliseconds since the Unix epoch by the leader's clock."""
        return self.event.at

    @property
    def position(self) -> LogPosition:
        """Where it stands: with it as ``from_``, `JobEvents` goes on behind it."""
        return LogPosition(self.partition, self.offset, self.event.seq, self.event.epoch)


def key_of(event: Event) -> str:
    """Key of the job that ``event`` is about; empty where it is about none."""
    if isinstance(event, JobCreated):
        return event.job.key
    if isinstance(event, LeaderElected):
        return ""
    key: str = event.key  # type: ignore[attr-defined]
    return key
