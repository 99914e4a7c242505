"""Writes one snapshot: pieces become chunks, and the manifest behind them makes it complete."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.connection import Connection, Faults, cause_of, drop_in_background
from relevo_partitions.snapshots.ports import Draft, Manifest
from relevo_partitions.snapshots.records import (
    CHUNK_BYTES,
    chunk_key,
    manifest_key,
    pack_chunk,
    pack_manifest,
)

DELIVERY_TIMEOUT_S: Final = 30.0
UNSENT_BYTES_MAX: Final = 8 * 1024 * 1024
"""So much may wait for Kafka's acknowledgement before the copy pauses."""
DIGEST_BYTES: Final = 16


class KafkaSink:
    """See `relevo_partitions.snapshots.ports.SnapshotSink`. Used by one thread at a time.

    Args:
        connection: Where Kafka is.
        topic: The topic of snapshots.
        partition: Number of the partition.
        generation: Of the snapshot.
        writer: Unique among snapshots of this generation.
        node: Who takes it.
    """

    def __init__(
        self, connection: Connection, topic: str, partition: int, generation: int, writer: str, node: str
    ) -> None:
        self._connection = connection
        self._topic, self._partition = topic, partition
        self._generation, self._writer, self._node = generation, writer, node
        self._faults = Faults()
        self._producer: Producer | None = Producer(
            connection.settings(
                self._faults,
                {
                    "acks": "all",
                    "enable.idempotence": True,
                    "message.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
                    "linger.ms": 0,
                    "compression.type": "none",  # the content is compressed already
                },
            )
        )
        self._held = bytearray()
        self._digest = blake2b(digest_size=DIGEST_BYTES)
        self._size = self._chunks = 0
        self._unsent = 0
        self._problem: str | None = None
        self._first_offset = -1

    def add(self, piece: bytes) -> None:
        """Take the next piece.

        Raises:
            KafkaUnavailable: A chunk before wasn't acknowledged.
        """
        self._digest.update(piece)
        self._size += len(piece)
        self._held += piece
        while len(self._held) >= CHUNK_BYTES:
            self._send_chunk(bytes(self._held[:CHUNK_BYTES]))
            del self._held[:CHUNK_BYTES]

    @property
    def room(self) -> bool:
        """Whether another piece can be taken without piling up."""
        self._live().poll(0)
        return self._unsent < UNSENT_BYTES_MAX

    def finish(self, draft: Draft) -> Manifest:
        """Write the rest and the manifest; see `relevo_partitions.snapshots.ports.SnapshotSink.finish`."""
        if self._held or not self._chunks:
            self._send_chunk(bytes(self._held))
        self._flush("the content")
        facts = draft.facts
        manifest = Manifest(
            partition=self._partition,
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
            node=self._node,
            first_offset=self._first_offset,
            chunks=self._chunks,
            size=self._size,
            digest=self._digest.hexdigest(),
        )
        key = manifest_key(self._partition, self._generation, self._writer)
        self._send(key, pack_manifest(manifest), self._delivered(0, first=False))
        self._flush("the manifest")
        self.abandon()
        return manifest

    def abandon(self) -> None:
        """Let the producer go, in another thread."""
        producer, self._producer = self._producer, None
        if producer is not None:
            drop_in_background(producer)

    def _send_chunk(self, content: bytes) -> None:
        key = chunk_key(self._partition, self._generation, self._writer, self._chunks)
        self._unsent += len(content)
        self._send(key, pack_chunk(key, content), self._delivered(len(content), first=self._chunks == 0))
        self._chunks += 1

    def _send(
        self, key: bytes, value: bytes, on_delivery: Callable[[KafkaError | None, Message], None]
    ) -> None:
        producer = self._live()
        if self._problem is not None:
            raise KafkaUnavailable(self._problem)
        try:
            producer.produce(self._topic, value, key, self._partition, on_delivery)
            producer.poll(0)
        except (BufferError, KafkaException, SystemError) as raised:
            raise KafkaUnavailable(self._words(cause_of(raised) or raised)) from None

    def _delivered(self, size: int, *, first: bool) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            """Delivery report; must not raise."""
            self._unsent -= size
            if error is not None:
                self._problem = self._problem or self._words(error)
            elif first:
                offset = message.offset()
                self._first_offset = offset if offset is not None else -1

        return delivered

    def _flush(self, what: str) -> None:
        producer = self._live()
        deadline = time.monotonic() + DELIVERY_TIMEOUT_S + 1.0
        try:
            left = producer.flush(max(0.0, deadline - time.monotonic()))
        except (KafkaException, SystemError) as raised:
            raise KafkaUnavailable(self._words(cause_of(raised) or raised)) from None
        if self._problem is None and left:
            self._problem = f"{self._topic}: {what} wasn't acknowledged within {DELIVERY_TIMEOUT_S:g} s"
        if self._problem is not None:
            raise KafkaUnavailable(self._problem)

    def _live(self) -> Producer:
        if self._producer is None:
            raise KafkaUnavailable(f"{self._topic}: the snapshot was given up")
        return self._producer

    def _words(self, error: object) -> str:
        if isinstance(error, KafkaError):
            return f"{self._topic}: {self._connection.describe(error, self._faults)}"
        return self._connection.redact(f"{self._topic}: {error}")
