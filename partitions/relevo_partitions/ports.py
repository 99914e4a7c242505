"""What a term needs of Kafka and ZooKeeper, so that its rules can be tested without either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from relevo_partitions.outcomes import Outcome
from relevo_partitions.statemachine import Incoming, Write


class Verdict(Enum):
    """What ZooKeeper says of a claim."""

    OURS = "ours"
    """The znode is the one that was created for this claim, and the session lives."""
    LOST = "lost"
    """The znode is gone or somebody else's, or the session ended."""
    UNKNOWN = "unknown"
    """ZooKeeper gave no answer."""


class Seat(Protocol):
    """The claim to a partition, as ZooKeeper knows it."""

    def verify(self) -> Verdict:
        """Ask ZooKeeper, not a cache; bounded, never raises."""


class Writer(Protocol):
    """A fenced producer of one partition."""

    def commit(self, writes: Sequence[Write]) -> Outcome:
        """Write all records in one transaction, or none; bounded in time.

        After anything but `Committed` and `Aborted` the writer must not be used again.
        """

    def missing(self, topic: str, partition: int) -> str | None:
        """Kafka's word that there is no such partition; None where it is there, or Kafka is silent."""

    def drop(self) -> None:
        """Let the producer go without waiting for it."""


class Reader(Protocol):
    """Committed records of one Kafka partition, in order and without a gap."""

    def check(self, offset: int) -> None:
        """Ask Kafka whether it holds ``offset``, or ends just before it. Bounded.

        Slow once the reader has been started: the answer waits behind a fetch, for up to half a second.

        Raises:
            LogDamaged: It doesn't: records were deleted, or the topic was, or is another.
            KafkaUnavailable: Kafka doesn't answer.
        """

    def start(self, offset: int) -> None:
        """Begin to fetch from ``offset``, in the background. Asks nobody, and can't fail."""

    def read(self, wait_s: float, records_max: int) -> list[Incoming]:
        """The next records; returns as soon as there is one, and empty after ``wait_s`` without.

        Where the topic doesn't exist nothing ever comes.

        Raises:
            LogDamaged: The next record is gone, or so is the topic.
            KafkaUnavailable: Kafka refuses, and librdkafka won't try again by itself.
        """

    def end_offset(self) -> int:
        """The partition's end as last heard, -1 where unknown; asks nobody."""

    def note_position(self, position: int) -> None:
        """Publish how far records were processed, for lag tools only; doesn't wait."""

    def close(self) -> None:
        """Let the consumer go without waiting for it."""


class PartitionIO(Protocol):
    """One partition's access to Kafka."""

    @property
    def log_topic(self) -> str:
        """Name of the topic that holds the partition's log."""

    @property
    def commands_topic(self) -> str:
        """Name of the topic that holds the partition's commands."""

    def fence(self, cancelled: Callable[[], bool]) -> Writer:
        """Shut out every earlier producer of this partition.

        Raises:
            KafkaUnavailable: It didn't work within the limit, or ``cancelled`` said so.
        """

    def log(self) -> Reader:
        """A reader of the partition's log, not started."""

    def commands(self) -> Reader:
        """A reader of the partition's commands, not started."""
