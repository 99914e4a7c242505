"""Where snapshots are kept: the compacted topic as `relevo_partitions.snapshots.ports` shows it.

Writing one is no transaction: a node that has lost its partition long ago may still finish its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.snapshots.ports import Draft, LogBounds, Manifest
from relevo_partitions.statemachine import Incoming, LogDamaged, SnapshotUnfit
from tests.simulation.world.network import NoAnswer

if TYPE_CHECKING:
    from tests.simulation.world.kafka_client import KafkaClient

T = TypeVar("T")
LOG_TOPIC_ID = "log-1"
CALL_S = 5.0


@dataclass
class Shelf:
    """All snapshots of a partition that Kafka holds."""

    manifests: list[Manifest] = field(default_factory=list)
    content: dict[str, list[bytes]] = field(default_factory=dict)
    damaged: str = ""
    """Name of the one that a fault has damaged."""

    def intact(self) -> list[Manifest]:
        """Those whose content is what their manifest says, and was before a fault struck."""
        return [
            each
            for each in self.manifests
            if each.name == self.damaged or _digest(self.content.get(each.name, [])) == each.digest
        ]

    def damage(self) -> None:
        """Take a piece out of the newest, once, and where there is an older one."""
        if self.damaged or len(self.manifests) < 2:
            return
        newest = max(self.manifests, key=lambda each: (each.generation, each.writer))
        self.damaged = newest.name
        self.content[newest.name] = self.content.get(newest.name, [])[:-1]


class Shelves:
    """Of all partitions, watched by the oracle."""

    def __init__(self, partitions: int) -> None:
        self.of = [Shelf() for _ in range(partitions)]
        self.finished: Callable[[Manifest, list[bytes]], None] = lambda manifest, pieces: None
        self.trimmed: Callable[[int, int, int], None] = lambda partition, log_begin, commands_begin: None


def _digest(pieces: list[bytes]) -> str:
    digest = blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class SimSink:
    """See `relevo_partitions.snapshots.ports.SnapshotSink`."""

    def __init__(self, store: SimSnapshots, generation: int) -> None:
        self._store = store
        self._generation = generation
        self._pieces: list[bytes] = []
        self._full_until = -1.0
        self._rng = store.client.rng
        self._writer = store.client.scheduler.token()

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._full_until = self._now() + (0.0 if self._rng.random() < 0.6 else self._rng.random() * 0.2)

    @property
    def room(self) -> bool:
        """Not at once after a piece: the copy is taken in slices, and the machine goes on between them."""
        return self._now() > self._full_until

    def _now(self) -> float:
        return self._store.client.scheduler.now

    def finish(self, draft: Draft) -> Manifest:
        store, facts, pieces = self._store, draft.facts, list(self._pieces)
        manifest = Manifest(
            partition=store.number,
            generation=self._generation,
            writer=self._writer,
            log_topic_id=draft.log_topic_id,
            log_offset=draft.log_offset,
            seq=facts.seq,
            epoch=facts.epoch,
            position=facts.position,
            count=facts.count,
            state_hash=facts.state_hash,
            taken_at=draft.taken_at,
            node=store.client.process.name,
            first_offset=0,
            chunks=len(pieces),
            size=sum(map(len, pieces)),
            digest=_digest(pieces),
        )

        def write_content() -> None:
            store.shelf.content[manifest.name] = pieces

        def write_manifest() -> None:
            if manifest not in store.shelf.manifests:
                store.shelf.manifests.append(manifest)
                store.shelves.finished(manifest, pieces)

        store.ask("snapshot-content", write_content)
        store.ask("snapshot-manifest", write_manifest)
        return manifest

    def abandon(self) -> None:
        self._pieces.clear()


class SimSnapshots:
    """See `relevo_partitions.snapshots.ports.SnapshotStore`."""

    def __init__(self, client: KafkaClient, shelves: Shelves, number: int, log: str, commands: str) -> None:
        self.client = client
        self.shelves = shelves
        self.shelf = shelves.of[number]
        self.number = number
        self._log = client.kafka.partition(log, number)
        self._commands = client.kafka.partition(commands, number)

    def ask(self, what: str, handler: Callable[[], T]) -> T:
        """One request, insisted on."""
        try:
            return self.client.insist(what, handler, CALL_S)
        except NoAnswer:
            raise KafkaUnavailable(f"{what}: no answer") from None

    def newest(self, *, thorough: bool = False) -> list[Manifest]:
        def found() -> list[Manifest]:
            every = sorted(self.shelf.manifests, key=lambda each: (-each.generation, each.writer))
            return every if thorough else every[:3]

        return self.ask("snapshots", found)

    def read(self, manifest: Manifest) -> Iterator[bytes]:
        pieces = self.ask("snapshot-read", lambda: list(self.shelf.content.get(manifest.name, [])))
        yield from pieces
        if _digest(pieces) != manifest.digest:
            raise SnapshotUnfit(f"{manifest.name}: expected digest {manifest.digest}")

    def begin(self, generation: int) -> SimSink:
        return SimSink(self, generation)

    def log_bounds(self) -> LogBounds:
        return self.ask("bounds", lambda: LogBounds(LOG_TOPIC_ID, self._log.begin, len(self._log.records)))

    def peek(self, offset: int, records_max: int) -> list[Incoming]:
        def peeked() -> list[Incoming] | None:
            if not self._log.begin <= offset <= len(self._log.records):
                return None
            return self._log.committed(offset, records_max)[0]

        found = self.ask("peek", peeked)
        if found is None:
            raise LogDamaged(f"offset {offset} of the log isn't there")
        return found

    def retire(self, oldest: Manifest) -> int:
        def retired() -> int:
            old = [each for each in self.shelf.manifests if each.generation < oldest.generation]
            for manifest in old:
                self.shelf.manifests.remove(manifest)
                self.shelf.content.pop(manifest.name, None)
            return len(old)

        return self.ask("snapshot-retire", retired)

    def trim(self, oldest: Manifest, log_keep_s: float) -> tuple[int, int]:
        def trimmed() -> tuple[int, int]:
            young = self.client.scheduler.now - log_keep_s
            log, commands = self._log, self._commands
            upto = log.begin
            while upto < oldest.log_offset and log.records[upto].at <= young:
                upto += 1
            log.begin = max(log.begin, upto)
            commands.begin = max(commands.begin, min(oldest.position, len(commands.records)))
            self.shelves.trimmed(self.number, log.begin, commands.begin)
            return log.begin, commands.begin

        return self.ask("trim", trimmed)

    def close(self) -> None:
        """Nothing is held."""
