"""Types of jobs that were created before the place where a reader starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from relevo.events.log_progress import CALL_S
from relevo_schemas.codec import decode, default_codec
from relevo_schemas.errors import RecordError
from relevo_schemas.events import JobCancelled, JobCompleted, JobCreated, JobErrored, JobExpired

_log: Final = logging.getLogger("relevo.events")
_ENDS: Final = frozenset({JobCompleted, JobErrored, JobCancelled, JobExpired})
_BATCH_MAX: Final = 500
_POLL_S: Final = 0.2


class TypeHistory:
    """Reads partitions up to where a reader starts, and notes the types of the jobs that are open there.

    Only creations are decoded: of all other records the kind and the key are enough.

    Args:
        topic: The log.
        options: Of a consumer of its own.
        learn: Told partition, job key, and the type; None: the job has finished.
    """

    def __init__(
        self, topic: str, options: dict[str, Any], learn: Callable[[int, str, str | None], None]
    ) -> None:
        self._topic = topic
        self._options = options
        self._learn = learn
        self._consumer: Consumer | None = None
        self._until: dict[int, int] = {}
        self._trimmed: set[int] = set()

    @property
    def pending(self) -> bool:
        """Whether there is something to read yet."""
        return bool(self._until)

    def add(self, partition: int, low: int, until: int) -> None:
        """Read a partition from ``low`` up to, not with, ``until``."""
        if self._consumer is None:
            self._consumer = Consumer(self._options)
        self.drop(partition)
        self._consumer.incremental_assign([TopicPartition(self._topic, partition, low)])
        self._until[partition] = until

    def drop(self, partition: int) -> None:
        """It is not needed any more."""
        self._trimmed.discard(partition)
        if self._until.pop(partition, None) is not None and self._consumer is not None:
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def step(self, timeout: float) -> list[int]:
        """Read on, once at least, for at most ``timeout`` seconds; returns the partitions that are done."""
        if self._consumer is None:
            return []
        deadline = time.monotonic() + timeout
        done: list[int] = []
        for partition in sorted(self._trimmed):
            self._begin_later(self._consumer, partition)
        late = False
        while self._until and not done and not late:
            left = deadline - time.monotonic()
            first = self._consumer.poll(max(0.0, min(left, _POLL_S)))
            late = left <= 0
            if first is None:
                continue
            for message in [first, *self._consumer.consume(_BATCH_MAX - 1, 0)]:
                if self._take(message) and message.partition() in self._until:
                    done.append(message.partition() or 0)
                    self.drop(message.partition() or 0)
        if not self._until:
            self.close()
        return done

    def _take(self, message: Any) -> bool:
        """Note what a record says; whether it was the last one needed of its partition."""
        partition, offset, error = message.partition(), message.offset(), message.error()
        until = self._until.get(partition)
        if until is None:
            return False
        if error is not None:
            if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                self._trimmed.add(partition)
            return bool(error.code() == KafkaError._PARTITION_EOF)
        if offset < until:
            self._note(partition, message.key() or b"", message.value() or b"")
        return bool(offset >= until - 1)

    def _begin_later(self, consumer: Consumer, partition: int) -> None:
        """It was trimmed meanwhile: what is gone can't be learnt, and the rest begins further on."""
        place = TopicPartition(self._topic, partition)
        low, _ = consumer.get_watermark_offsets(place, timeout=CALL_S)
        consumer.incremental_unassign([place])
        consumer.incremental_assign([TopicPartition(self._topic, partition, low)])
        self._trimmed.discard(partition)

    def _note(self, partition: int, key: bytes, value: bytes) -> None:
        kind = default_codec().kind_of(value)
        if kind in _ENDS:
            self._learn(partition, key.decode(errors="replace"), None)
        elif kind is JobCreated or kind is None:
            try:
                record = decode(value)
            except RecordError as damage:
                _log.warning("%s [%d]: a record before the start can't be read: %s",
                             self._topic, partition, damage)  # fmt: skip
                return
            if isinstance(record, JobCreated):
                self._learn(partition, record.job.key, record.job.type)
            elif type(record) in _ENDS:
                self._learn(partition, record.key, None)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Give back the connection."""
        consumer, self._consumer = self._consumer, None
        self._until.clear()
        self._trimmed.clear()
        if consumer is not None:
            consumer.close()
