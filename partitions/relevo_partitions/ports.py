"""What a term needs of Kafka and ZooKeeper, so that its rules can be tested without either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from relevo_partitions.outcomes import Outcome
from relevo_partitions.snapshots.ports import SnapshotStore
from relevo_partitions.statemachine import Incoming, Write


class Verdict(Enum):
    """What ZooKeeper says of a claim."""

    OURS = "ours"
    """The znode is the one that was created for this claim, and the session lives."""
    LOST = "lost"
    """The znode is gone or somebody else's, or the session ended."""
    UNKNOWN = "unknown"
    """ZooKeeper gave no answer."""


@dataclass(frozen=True, slots=True)
class Znode:
    """A znode's data and what tells it from another of the same path."""

    data: bytes
    czxid: int
    """Transaction that created it: unique in the life of a ZooKeeper ensemble."""
    version: int
    session: int
    """Session that it dies with, 0 for a persistent one."""


class Coordinator(Protocol):
    """ZooKeeper as one node uses it; it outlives sessions.

    Calls raise `ZooKeeperUnavailable` where no answer came in time. What was asked for may or may not have
    been done, or be done later: whoever asked has to look.
    """

    @property
    def hosts(self) -> str:
        """Where it is, for error texts."""

    @property
    def connected(self) -> bool:
        """Whether a server has been heard lately."""

    @property
    def session(self) -> int:
        """Id of the present session, 0 before the first."""

    @property
    def session_timeout_s(self) -> float:
        """The session timeout that the servers have granted."""

    def start(self) -> None:
        """Begin to connect, and go on trying until closed."""

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether the first connection came about within ``timeout_s``."""

    def close(self, deadline_s: float) -> bool:
        """End the session and its ephemeral znodes; False where that took longer than ``deadline_s``."""

    def get(self, path: str) -> Znode | None:
        """The znode, None where there is none; may be stale."""

    def get_fresh(self, path: str) -> Znode | None:
        """As `get`, never stale."""

    def watch(self, path: str) -> Znode | None:
        """As `get`; tells of the next change or the creation. A change may be missed."""

    def children(self, path: str) -> list[str] | None:
        """Names below ``path``, None where there is no such znode; tells of the next change."""

    def ensure(self, path: str) -> None:
        """Create the persistent ``path`` and what lies above it."""

    def create(self, path: str, data: bytes, *, ephemeral: bool) -> Znode | None:
        """The znode created, None where one exists.

        Raises:
            KeyError: What lies above it doesn't exist.
        """

    def delete(self, path: str, version: int) -> bool:
        """Delete ``path`` if it has ``version``; False where it is gone or changed."""

    def replace(self, path: str, version: int, data: bytes) -> tuple[bool, Znode | None]:
        """`delete`, then `create` an ephemeral znode in its place, which doesn't wait for the first answer.

        Somebody else may come in between, or have deleted it before: the two succeed or fail by themselves.
        """


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


class Stability(NamedTuple):
    """How a partition's readable part compares with the whole."""

    stable: int = -1
    """Where the oldest open transaction begins, the end where none is open; -1 where unknown."""
    end: int = -1
    """Behind the last record; -1 where unknown."""


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

    @property
    def reached(self) -> int:
        """Offset up to which `read` has returned all that there is; where it was started, at first."""

    @property
    def at_end(self) -> bool:
        """Whether the last `read` has reached the end of what is stable, and nothing has come since."""

    def end_offset(self) -> int:
        """The partition's end as last heard, -1 where unknown; asks nobody."""

    def stability(self) -> Stability:
        """Up to where records are readable, and where the partition ends, as last heard; asks nobody."""

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

    def keep_warm(self, producers: int) -> None:
        """Hold so many connected producers ready for a fence, and a reader of the commands; 0: neither.

        Returns at once.
        """

    def tend(self) -> None:
        """Serve what waits, now and then; never raises."""

    def fence(self, cancelled: Callable[[], bool]) -> Writer:
        """Shut out every earlier producer of this partition.

        Raises:
            KafkaUnavailable: It didn't work within the limit, or ``cancelled`` said so.
        """

    def log(self) -> Reader:
        """A reader of the partition's log, not started."""

    def commands(self) -> Reader:
        """A reader of the partition's commands, not started."""

    def commands_end(self) -> int:
        """Ask Kafka where the commands end now, open transactions included; bounded. From any thread.

        Raises:
            KafkaUnavailable: It doesn't answer.
        """

    def stable_end(self, topic: str) -> int:
        """Ask Kafka up to where the partition of ``topic`` can be read now; bounded. From any thread.

        Raises:
            KafkaUnavailable: It doesn't answer.
        """

    def snapshots(self) -> SnapshotStore:
        """The partition's snapshots; making this asks nobody. To be closed."""
