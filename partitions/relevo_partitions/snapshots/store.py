"""One partition's snapshots in Kafka: a partition of the compacted topic ``<cluster>.snapshots``."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from confluent_kafka import KafkaException, Producer

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.connection import Connection, Faults, drop_in_background
from relevo_partitions.kafka.log import PartitionReader
from relevo_partitions.kafka.log_care import LogCare
from relevo_partitions.runtime import THREADS, Runtime
from relevo_partitions.snapshots.ports import LogBounds, Manifest
from relevo_partitions.snapshots.records import (
    SnapshotKey,
    parse_key,
    unpack_chunk,
    unpack_manifest,
)
from relevo_partitions.snapshots.scan import SnapshotScan
from relevo_partitions.snapshots.sink import DIGEST_BYTES, KafkaSink
from relevo_partitions.statemachine import Incoming, SnapshotUnfit

log: Final = logging.getLogger(__name__)

NEWEST_MAX: Final = 3
WINDOW: Final = 128
"""Records looked at in one go when searching backwards for a manifest."""
PEEK_S: Final = 5.0
RETIRE_TIMEOUT_S: Final = 30.0


class KafkaSnapshots:
    """See `relevo_partitions.snapshots.ports.SnapshotStore`. Its calls may come from several threads.

    Making one asks nobody.

    Args:
        connection: Where Kafka is.
        cluster: Prefix of the topics.
        partition: Number of the partition.
        node: Who takes snapshots here.
        runtime: Chance.
    """

    def __init__(
        self, connection: Connection, cluster: str, partition: int, node: str, runtime: Runtime = THREADS
    ) -> None:
        self._connection = connection
        self._topic = f"{cluster}.snapshots"
        self._log_topic = f"{cluster}.log"
        self._group = f"{cluster}.engine"
        self._partition = partition
        self._node = node
        self._runtime = runtime
        self._care = LogCare(connection, cluster, partition)
        self._cleared_to = 0

    def newest(self, *, thorough: bool = False) -> list[Manifest]:
        """See `relevo_partitions.snapshots.ports.SnapshotStore.newest`."""
        with self._scan() as scan:
            bounds = scan.bounds()
            if bounds is None:
                log.warning(
                    "There is no topic %s, so partition %d has its log alone: `relevo topics init` makes it",
                    self._topic,
                    self._partition,
                )
                return []
            found = self._all(scan, *bounds) if thorough else self._last(scan, *bounds)
        return sorted(found, key=lambda manifest: (manifest.generation, manifest.first_offset), reverse=True)

    def read(self, manifest: Manifest) -> Iterator[bytes]:
        """See `relevo_partitions.snapshots.ports.SnapshotStore.read`."""
        digest, size, due = blake2b(digest_size=DIGEST_BYTES), 0, 0
        with self._scan() as scan:
            bounds = scan.bounds()
            begin, end = bounds if bounds is not None else (0, 0)
            for found in scan.records(max(begin, manifest.first_offset), end):
                key = parse_key(self._partition, found.key)
                if key is None or key[:2] != (manifest.generation, manifest.writer):
                    continue
                if key.chunk != due:
                    break
                content = unpack_chunk(found.key, found.value)
                digest.update(content)
                size += len(content)
                due += 1
                yield content
                if due == manifest.chunks:
                    break
        if due != manifest.chunks:
            raise SnapshotUnfit(
                f"snapshot {manifest.name}: expected chunk {due} of {manifest.chunks}, found none"
            )
        if (size, digest.hexdigest()) != (manifest.size, manifest.digest):
            raise SnapshotUnfit(
                f"snapshot {manifest.name}: expected {manifest.size} bytes with digest {manifest.digest}, "
                f"found {size} with {digest.hexdigest()}"
            )

    def begin(self, generation: int) -> KafkaSink:
        """See `relevo_partitions.snapshots.ports.SnapshotStore.begin`."""
        writer = self._runtime.token()[:8]
        return KafkaSink(self._connection, self._topic, self._partition, generation, writer, self._node)

    def log_bounds(self) -> LogBounds:
        """See `relevo_partitions.snapshots.ports.SnapshotStore.log_bounds`."""
        return self._care.bounds()

    def peek(self, offset: int, records_max: int) -> list[Incoming]:
        """See `relevo_partitions.snapshots.ports.SnapshotStore.peek`."""
        reader = PartitionReader(
            self._connection,
            self._log_topic,
            self._partition,
            self._group,
            verify_checksums=True,
            tell_end=True,
        )
        try:
            reader.start(offset)
            deadline = time.monotonic() + PEEK_S
            records: list[Incoming] = []
            while not records and not reader.at_end and time.monotonic() < deadline:
                records = reader.read(0.2, records_max)
            return records
        finally:
            reader.close()

    def retire(self, oldest: Manifest) -> int:
        """See `relevo_partitions.snapshots.ports.SnapshotStore.retire`."""
        with self._scan() as scan:
            bounds = scan.bounds()
            if bounds is None:
                return 0
            # What lies behind the oldest one's beginning and is older was written at the same time as it.
            begin, end = max(bounds[0], self._cleared_to), bounds[1]
            keys = {
                found.key: found.value is not None
                for found in scan.records(begin, end)
                if self._is_older(parse_key(self._partition, found.key), oldest)
            }
        kept = sorted((key for key, there in keys.items() if there), key=_manifests_first)
        self._remove(kept)
        self._cleared_to = min(oldest.first_offset, end)
        return len(kept)

    def trim(self, oldest: Manifest, log_keep_s: float) -> tuple[int, int]:
        """See `relevo_partitions.snapshots.ports.SnapshotStore.trim`."""
        return self._care.trim(oldest, int((self._runtime.wall() - log_keep_s) * 1000))

    def close(self) -> None:
        """Let the clients go."""
        self._care.close()

    def _scan(self) -> SnapshotScan:
        return SnapshotScan(self._connection, self._topic, self._partition)

    def _last(self, scan: SnapshotScan, begin: int, end: int) -> list[Manifest]:
        """The last manifests, found from the end backwards: what lies between them are chunks, and large."""
        found: list[Manifest] = []
        while end > begin and len(found) < NEWEST_MAX:
            low = max(begin, end - WINDOW)
            here = self._all(scan, low, end)
            found += here
            # A manifest of another writer among these chunks is passed over; a thorough search finds it.
            end = min([low, *(manifest.first_offset for manifest in here)])
        return found

    def _all(self, scan: SnapshotScan, begin: int, end: int) -> list[Manifest]:
        found: dict[bytes, Manifest] = {}
        for record in scan.records(begin, end):
            key = parse_key(self._partition, record.key)
            if key is None or key.chunk is not None:
                continue
            found.pop(record.key, None)
            if record.value is not None:
                try:
                    found[record.key] = unpack_manifest(record.key, record.value)
                except SnapshotUnfit as unfit:
                    log.warning("%s [%d]: %s", self._topic, self._partition, unfit)
        return list(found.values())

    @staticmethod
    def _is_older(key: SnapshotKey | None, oldest: Manifest) -> bool:
        return key is not None and key.generation < oldest.generation

    def _remove(self, keys: list[bytes]) -> None:
        """Write a tombstone for each key, in order."""
        if not keys:
            return
        faults = Faults()
        settings: dict[str, str | bool | int] = {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 20_000,
        }
        producer = Producer(self._connection.settings(faults, settings))
        problems: list[str] = []

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                problems.append(str(error))

        try:
            for key in keys:
                producer.produce(self._topic, None, key, self._partition, delivered)
                producer.poll(0)
            left = producer.flush(RETIRE_TIMEOUT_S)
        except (KafkaException, BufferError, SystemError) as raised:
            raise KafkaUnavailable(f"{self._topic}: {self._connection.redact(str(raised))}") from None
        finally:
            drop_in_background(producer)
        if problems or left:
            why = self._connection.redact(problems[0]) if problems else "not acknowledged in time"
            raise KafkaUnavailable(f"{self._topic}: removing older snapshots: {why}")


def _manifests_first(key: bytes) -> tuple[bool, bytes]:
    """A snapshot stops being one before it loses chunks."""
    return not key.endswith(b"/manifest"), key
