"""What Kafka holds of a partition's log, and the deletion of what nobody needs any more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs re-export without saying so
    AdminClient,
    OffsetSpec,
)

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.connection import Connection, Faults, drop_in_background
from relevo_partitions.kafka.offsets import (
    ANSWER_GRACE_S,
    UNSETTLED,
    UNSETTLED_S,
    UNSETTLED_STEP_S,
    ask_offset,
)
from relevo_partitions.snapshots.ports import LogBounds, Manifest
from relevo_partitions.statemachine import LogDamaged, SnapshotUnfit

TIMEOUT_S: Final = 5.0
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, KafkaError._UNKNOWN_TOPIC}
)


class LogCare:
    """One partition of log and commands. Thread-safe.

    Args:
        connection: Where Kafka is.
        cluster: Prefix of the topics.
        partition: Number of the partition.
    """

    def __init__(self, connection: Connection, cluster: str, partition: int) -> None:
        self._connection = connection
        self._log_topic, self._commands_topic = f"{cluster}.log", f"{cluster}.commands"
        self._partition = partition
        self._faults = Faults()
        self._admin: AdminClient | None = None

    def bounds(self) -> LogBounds:
        """See `relevo_partitions.snapshots.ports.SnapshotStore.log_bounds`."""
        deadline = time.monotonic() + UNSETTLED_S
        while True:
            try:
                return self._bounds()
            except _UnsettledError as unsettled:
                if time.monotonic() > deadline:
                    error = unsettled.error
                    if error.code() not in _NO_TOPIC:
                        raise KafkaUnavailable(self._connection.describe(error, self._faults)) from None
                    where = f"{self._log_topic} [{self._partition}]"
                    raise LogDamaged(
                        f"{where} doesn't exist in Kafka at {self._connection.bootstrap}"
                    ) from None
            time.sleep(UNSETTLED_STEP_S)

    def _bounds(self) -> LogBounds:
        asked = self._client().describe_topics(TopicCollection([self._log_topic]), request_timeout=TIMEOUT_S)
        with self._asking():
            topic_id = str(asked[self._log_topic].result(TIMEOUT_S + ANSWER_GRACE_S).topic_id)
        begin = self._offset(self._log_topic, _EARLIEST)
        return LogBounds(topic_id, begin, self._offset(self._log_topic, _LATEST))

    def trim(self, oldest: Manifest, written_before_ms: int) -> tuple[int, int]:
        """Delete what lies below ``oldest``, of the log only what was written before a time.

        Returns:
            The offsets that log and commands begin at now.
        """
        bounds = self.bounds()
        if bounds.topic_id != oldest.log_topic_id:
            raise SnapshotUnfit(
                f"{self._log_topic} has id {bounds.topic_id}, the snapshot was of {oldest.log_topic_id}: "
                "nothing is deleted"
            )
        # The first record that isn't old enough; -1 where all are.
        young = self._offset(self._log_topic, OffsetSpec.for_timestamp(written_before_ms))
        log_to = min(oldest.log_offset, bounds.end if young < 0 else young)
        return self._delete(self._log_topic, log_to), self._delete(self._commands_topic, oldest.position)

    def close(self) -> None:
        """Let the client go."""
        admin, self._admin = self._admin, None
        if admin is not None:
            drop_in_background(admin)

    def _delete(self, topic: str, before: int) -> int:
        """Delete below ``before``, where there is anything; the offset that the partition begins at now."""
        begin = self._offset(topic, _EARLIEST)
        before = min(before, self._offset(topic, _LATEST))
        if before <= begin:
            return begin
        where = TopicPartition(topic, self._partition, before)
        deleted = self._client().delete_records(
            [where], request_timeout=TIMEOUT_S, operation_timeout=TIMEOUT_S
        )
        with self._asking():
            return int(deleted[where].result(TIMEOUT_S + ANSWER_GRACE_S).low_watermark)

    def _offset(self, topic: str, spec: OffsetSpec) -> int:
        with self._asking():
            return ask_offset(self._client(), topic, self._partition, spec, TIMEOUT_S)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Tells what Kafka has answered, or not, in this package's errors."""
        try:
            yield
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() in _NO_TOPIC | UNSETTLED:
                raise _UnsettledError(error) from None
            raise KafkaUnavailable(self._connection.describe(error, self._faults)) from None
        except TimeoutError:
            raise KafkaUnavailable(f"Kafka at {self._connection.bootstrap} didn't answer in time") from None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._connection.settings(self._faults, {}))
        return self._admin


class _UnsettledError(KafkaUnavailable):
    """Brokers don't know the topic, or who leads it: now, or at all."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.error = error
