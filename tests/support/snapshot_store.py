"""Snapshots in memory, with all that can go wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.snapshots.ports import Draft, LogBounds, Manifest
from relevo_partitions.statemachine import Incoming, LogDamaged, SnapshotUnfit


@dataclass
class MemoryLog:
    """A partition's log as Kafka holds it: records, and where it begins."""

    records: list[Incoming] = field(default_factory=list)
    topic_id: str = "log-1"
    begin: int = 0
    commands_begin: int = 0

    def append(self, values: Sequence[bytes]) -> None:
        for value in values:
            self.records.append(Incoming(len(self.records), b"", value))

    def trim(self, offset: int) -> None:
        self.begin = max(self.begin, offset)


class MemorySink:
    """Becomes a snapshot with `finish`."""

    def __init__(self, store: MemorySnapshots, generation: int) -> None:
        self._store = store
        self._generation = generation
        self._pieces: list[bytes] = []
        self.abandoned = False

    def add(self, piece: bytes) -> None:
        self._store.fail_where_told("add")
        self._pieces.append(piece)

    @property
    def room(self) -> bool:
        return self._store.room

    def finish(self, draft: Draft) -> Manifest:
        store, facts = self._store, draft.facts
        store.fail_where_told("finish")
        content = b"".join(self._pieces)
        manifest = Manifest(
            partition=store.partition,
            generation=self._generation,
            writer=f"w{len(store.manifests)}",
            log_topic_id=draft.log_topic_id,
            log_offset=draft.log_offset,
            seq=facts.seq,
            epoch=facts.epoch,
            position=facts.position,
            count=facts.count,
            state_hash=facts.state_hash,
            taken_at=draft.taken_at,
            node="n1",
            first_offset=0,
            chunks=len(self._pieces),
            size=len(content),
            digest=blake2b(content, digest_size=16).hexdigest(),
        )
        store.content[manifest.name] = list(self._pieces)
        store.manifests.append(manifest)
        return manifest

    def abandon(self) -> None:
        self.abandoned = True


class MemorySnapshots:
    """One partition's snapshots; see `relevo_partitions.snapshots.ports.SnapshotStore`.

    Attributes:
        manifests: Of complete snapshots, in the order they were written.
        content: Their pieces by name; for a test to damage.
        room: Whether sinks have room.
        failing: Names of calls that fail as if Kafka were away.
        closed: Whether it was closed.
    """

    def __init__(self, log: MemoryLog, partition: int = 0) -> None:
        self.log = log
        self.partition = partition
        self.manifests: list[Manifest] = []
        self.content: dict[str, list[bytes]] = {}
        self.room = True
        self.failing: set[str] = set()
        self.closed = False
        self.on_read: Callable[[], None] = lambda: None

    def fail_where_told(self, call: str) -> None:
        if call in self.failing:
            raise KafkaUnavailable(f"Kafka isn't reachable: {call}")

    def newest(self, *, thorough: bool = False) -> list[Manifest]:
        self.fail_where_told("newest")
        found = sorted(self.manifests, key=lambda each: each.generation, reverse=True)
        return found if thorough else found[:3]

    def read(self, manifest: Manifest) -> Iterator[bytes]:
        self.fail_where_told("read")
        digest = blake2b(digest_size=16)
        for piece in self.content.get(manifest.name, []):
            self.on_read()
            digest.update(piece)
            yield piece
        if digest.hexdigest() != manifest.digest:
            raise SnapshotUnfit(f"expected digest {manifest.digest}, found {digest.hexdigest()}")

    def begin(self, generation: int) -> MemorySink:
        return MemorySink(self, generation)

    def log_bounds(self) -> LogBounds:
        self.fail_where_told("log_bounds")
        return LogBounds(self.log.topic_id, self.log.begin, len(self.log.records))

    def peek(self, offset: int, records_max: int) -> list[Incoming]:
        if not self.log.begin <= offset <= len(self.log.records):
            raise LogDamaged(f"offset {offset} isn't there")
        return self.log.records[offset : offset + records_max]

    def retire(self, oldest: Manifest) -> int:
        self.fail_where_told("retire")
        old = [manifest for manifest in self.manifests if manifest.generation < oldest.generation]
        for manifest in old:
            self.manifests.remove(manifest)
            self.content.pop(manifest.name, None)
        return len(old)

    def trim(self, oldest: Manifest, log_keep_s: float) -> tuple[int, int]:
        self.fail_where_told("trim")
        self.log.trim(oldest.log_offset)
        self.log.commands_begin = max(self.log.commands_begin, oldest.position)
        return self.log.begin, self.log.commands_begin

    def close(self) -> None:
        self.closed = True
