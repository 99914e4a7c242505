"""What a replica needs of the place where snapshots are kept, and what is said of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from relevo_partitions.statemachine import Incoming, SnapshotFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a complete snapshot says of itself."""

    partition: int
    generation: int
    """Rises from snapshot to snapshot: the number of the last event in it."""
    writer: str
    """Tells it from another of the same generation."""
    log_topic_id: str
    """Kafka's id of the log topic that the offset belongs to; a topic made anew has another."""
    log_offset: int
    """Where to read on. Events that the snapshot holds may still come from there; none before is needed."""
    seq: int
    """Number of the last event in the snapshot."""
    epoch: int
    """Its epoch."""
    position: int
    """Offset of the first command that no event in the snapshot speaks of."""
    count: int
    """Open jobs in it."""
    state_hash: str
    """Of the state that it restores."""
    taken_at: int
    """When it was begun, in milliseconds since the Unix epoch."""
    node: str
    """Who took it."""
    first_offset: int
    """Where its content begins in the topic of snapshots."""
    chunks: int
    """Records that its content is cut into."""
    size: int
    """Bytes of its content."""
    digest: str
    """Of its content."""

    @property
    def facts(self) -> SnapshotFacts:
        """What whoever reads the content must find."""
        return SnapshotFacts(self.seq, self.epoch, self.position, self.count, self.state_hash)

    @property
    def name(self) -> str:
        """For texts: unique within the partition."""
        return f"{self.generation}-{self.writer}"


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What Kafka holds of a partition's log now."""

    topic_id: str
    """Kafka's id of the topic."""
    begin: int
    """Offset of its first record, or of its end where there is none."""
    end: int
    """Offset behind its last record, open transactions included."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a manifest says besides what the sink knows by itself."""

    log_topic_id: str
    log_offset: int
    facts: SnapshotFacts
    taken_at: int


class SnapshotSink(Protocol):
    """Takes the pieces of one snapshot that is being written."""

    def add(self, piece: bytes) -> None:
        """Take the next piece; doesn't wait for Kafka."""

    @property
    def room(self) -> bool:
        """Whether another piece can be taken without piling up; asks nobody."""

    def finish(self, draft: Draft) -> Manifest:
        """Wait until all pieces are safe, then write the manifest, which makes it a snapshot; bounded.

        Raises:
            KafkaUnavailable: A record wasn't acknowledged. The snapshot may exist or not.
        """

    def abandon(self) -> None:
        """Leave it unfinished; what was written is cleared away with the next older snapshot."""


class SnapshotStore(Protocol):
    """One partition's snapshots, and what must be known of its log to use them. Calls are bounded in time.

    All calls may raise `KafkaUnavailable`.
    """

    def newest(self, *, thorough: bool = False) -> list[Manifest]:
        """Complete snapshots, the newest first; the last three at most.

        Args:
            thorough: Look through everything that is kept, and give all that are found.
        """

    def read(self, manifest: Manifest) -> Iterator[bytes]:
        """The pieces of a snapshot, in order.

        Raises:
            SnapshotUnfit: A chunk is missing or damaged.
        """

    def begin(self, generation: int) -> SnapshotSink:
        """A place for a new snapshot. Asks nobody."""

    def log_bounds(self) -> LogBounds:
        """What Kafka holds of the partition's log now.

        Raises:
            LogDamaged: There is no such log.
        """

    def peek(self, offset: int, records_max: int) -> list[Incoming]:
        """The first committed records of the log from ``offset``; none where there are none yet.

        Raises:
            LogDamaged: Kafka doesn't hold ``offset``.
        """

    def retire(self, oldest: Manifest) -> int:
        """Remove snapshots, and parts of such, that are older than ``oldest``; how many records that took."""

    def trim(self, oldest: Manifest, log_keep_s: float) -> tuple[int, int]:
        """Have Kafka delete what no start needs that begins at ``oldest`` or later.

        Records of the log stay for ``log_keep_s`` at least: others read it too. Commands go at once: nobody
        but the partition's owner reads them, and each that lies below the position has its event on the log.

        Returns:
            The offsets that log and commands begin at now.
        """

    def close(self) -> None:
        """Let the clients go, without waiting for them."""
