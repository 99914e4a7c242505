"""What a replica needs of the place where snapshots are kept, and what is said of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a complete snapshot says of itself."""

    partition: int
    generation: int
    """Rises from snapshot to snapshot: the number of the last event in it."""
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
    chunks: int
    """Records that its content is cut into."""
    size: int
    """Bytes of its content."""
    digest: str
    """Of its content."""


class SnapshotSink(Protocol):
    """Takes the pieces of one snapshot that is being written."""

    def add(self, piece: bytes) -> None:
        """Take the next piece; doesn't wait for Kafka."""

    @property
    def room(self) -> bool:
        """Whether another piece can be taken without piling up."""

    def abandon(self) -> None:
        """Leave it unfinished; what was written is cleared away later."""


class SnapshotStore(Protocol):
    """One partition's snapshots. Calls are bounded in time."""

    def newest(self) -> list[Manifest]:
        """Complete snapshots, the newest first.

        Raises:
            KafkaUnavailable: Kafka doesn't answer.
        """

    def read(self, manifest: Manifest) -> Iterator[bytes]:
        """The pieces of a snapshot, in order.

        Raises:
            SnapshotUnfit: A chunk is missing or damaged.
            KafkaUnavailable: Kafka doesn't answer.
        """
