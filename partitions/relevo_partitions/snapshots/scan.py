"""Reads parts of the topic of snapshots, from one offset to another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.connection import Connection, Faults, drop_in_background
from relevo_partitions.kafka.offsets import settled

ASK_TIMEOUT_S: Final = 5.0
SILENCE_MAX_S: Final = 10.0
"""Without a record for so long, Kafka doesn't answer."""
_BATCH: Final = 16
_NO_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class Found(NamedTuple):
    """One record."""

    offset: int
    key: bytes
    value: bytes | None
    """None: a tombstone."""


class SnapshotScan:
    """A consumer of one partition, assigned by hand. Used by one thread.

    Args:
        connection: Where Kafka is.
        topic: The topic of snapshots.
        partition: Number of the partition.
    """

    def __init__(self, connection: Connection, topic: str, partition: int) -> None:
        self._connection = connection
        self._topic, self._partition = topic, partition
        self._faults = Faults()
        self._consumer = Consumer(
            connection.settings(
                self._faults,
                {
                    "group.id": f"{topic}.readers",  # never joined: librdkafka wants a name
                    "isolation.level": "read_uncommitted",  # there are no transactions here
                    "auto.offset.reset": "error",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "check.crcs": True,
                    "queued.max.messages.kbytes": 16 * 1024,
                },
            )
        )

    def __enter__(self) -> SnapshotScan:
        return self

    def __exit__(self, *_: object) -> None:
        drop_in_background(self._consumer, self._consumer.close)

    def bounds(self) -> tuple[int, int] | None:
        """Offset of the first record and of the end; None where there is no such topic.

        Raises:
            KafkaUnavailable: Kafka doesn't answer.
        """
        where = TopicPartition(self._topic, self._partition)
        try:
            found = settled(lambda: self._consumer.get_watermark_offsets(where, timeout=ASK_TIMEOUT_S))
        except KafkaException as raised:
            if raised.args[0].code() in _NO_TOPIC:
                return None
            raise KafkaUnavailable(self._words(raised.args[0])) from None
        if found is None:
            raise KafkaUnavailable(f"{self._topic}: Kafka didn't say where partition {self._partition} ends")
        return found[0], found[1]

    def records(self, begin: int, end: int) -> Iterator[Found]:
        """The records from ``begin`` to before ``end``, which must not lie behind the partition's end.

        Raises:
            KafkaUnavailable: Kafka doesn't answer, or the topic is gone.
        """
        if begin >= end:
            return
        self._consumer.assign([TopicPartition(self._topic, self._partition, begin)])
        heard_at = time.monotonic()
        while True:
            first = self._consumer.poll(0.2)
            if first is None:
                if time.monotonic() - heard_at > SILENCE_MAX_S:
                    raise KafkaUnavailable(
                        f"{self._topic}: Kafka gave no record for {SILENCE_MAX_S:g} s{self._last_fault()}"
                    )
                continue
            heard_at = time.monotonic()
            for message in (first, *self._consumer.consume(_BATCH, 0)):
                found = self._judged(message)
                if found is None or found.offset >= end:
                    return
                yield found
                if found.offset == end - 1:
                    return
                heard_at = time.monotonic()  # whoever takes the records may have taken its time

    def _judged(self, message: Message) -> Found | None:
        """None at the partition's end: compaction may have removed its last records before ``end``."""
        error = message.error()
        if error is None:
            key, value = message.key(), message.value()
            offset = message.offset()
            return Found(-1 if offset is None else offset, _bytes(key) or b"", _bytes(value))
        if error.code() == KafkaError._PARTITION_EOF:
            return None
        raise KafkaUnavailable(self._words(error))

    def _words(self, error: KafkaError) -> str:
        return f"{self._topic}: {self._connection.describe(error, self._faults)}"

    def _last_fault(self) -> str:
        return f" ({self._connection.redact(self._faults.last)})" if self._faults.last else ""


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
