"""Reads topics of a cluster from their start to what is stable now, as any consumer may."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined] # its stubs re-export silently

from relevo_engine.errors import SettingsError, TopicsError, UnreachableError
from relevo_engine.topics import log_topic
from relevo_engine.verify.checks import LogRecord
from relevo_engine.verify.findings import Fault, Invariant, VerifyError
from relevo_engine.verify.witnesses import Witnesses, find_witnesses
from relevo_partitions.kafka.connection import Connection, Faults
from relevo_partitions.kafka.offsets import ask_offsets

ASK_TIMEOUT_S: Final = 10.0
STALL_S: Final = 30.0
"""Nothing more comes although there is more: after so long the reader gives up."""
_FIRST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LAST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_POLL_S: Final = 0.2
_BATCH_MAX: Final = 2_000
_QUEUE_KIB: Final = 48 * 1024
"""What librdkafka may fetch in advance, for all partitions together."""
_QUEUE_KIB_MIN: Final = 1_024
_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_DAMAGED: Final = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG})
_NO_TOPIC: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


class TrimmedError(VerifyError):
    """Records that were still to be read have been deleted."""


class Bounds(NamedTuple):
    """Where a partition begins and ends.

    Attributes:
        start: First offset that Kafka holds.
        end: End of what is committed: no open transaction lies before it.
        high: End of all that is written.
    """

    start: int
    end: int
    high: int


class DamagedBatch(NamedTuple):
    """A batch of records that isn't as the broker took it in; its partition is read no further."""

    partition: int
    offset: int
    fault: Fault


class TopicReader:
    """Reads from Kafka for `verify_log`. For one thread.

    Args:
        kafka: Bootstrap address.
        options: More librdkafka options.

    Raises:
        SettingsError: An option is one that Relevo sets itself.
    """

    def __init__(self, kafka: str, options: Mapping[str, str] | None) -> None:
        try:
            self._connection = Connection(kafka, options)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        self._faults = Faults()

    def witnesses(self, cluster: str, chosen: Collection[int] | None = None) -> Witnesses:
        """What is known from elsewhere of how far the log of a cluster reached; see `find_witnesses`.

        Raises:
            SettingsError: An option isn't known.
            TopicsError: There is no such cluster.
            UnreachableError: Kafka doesn't answer.
        """
        try:
            return find_witnesses(self._connection, cluster, chosen)
        except KafkaException as raised:
            code = raised.args[0].code()
            if code == KafkaError._INVALID_ARG:
                raise SettingsError(
                    f"kafka_options: {self._connection.redact(raised.args[0].str())}"
                ) from None
            if code in _NO_TOPIC:
                raise self._no_topic(log_topic(cluster)) from None
            raise self._unreachable(raised.args[0]) from None
        except TimeoutError:
            raise self._silent(log_topic(cluster)) from None

    def bounds(self, topic: str, chosen: Collection[int] | None = None) -> tuple[int, dict[int, Bounds]]:
        """How many partitions the topic has, and where those chosen begin and end now.

        Raises:
            TopicsError: There is no such topic.
            SettingsError: There is no such partition.
            UnreachableError: Kafka doesn't answer, or a partition has no leader.
        """
        try:
            client = AdminClient(self._connection.settings(self._faults, {}))
        except KafkaException as error:
            raise SettingsError(f"kafka_options: {self._connection.redact(error.args[0].str())}") from None
        try:
            found = client.list_topics(topic, timeout=ASK_TIMEOUT_S).topics.get(topic)
            if found is None or (found.error is not None and found.error.code() in _NO_TOPIC):
                raise self._no_topic(topic)
            if found.error is not None:
                raise self._unreachable(found.error)
            absent = sorted(set(chosen or ()) - found.partitions.keys())
            if absent:
                raise SettingsError(
                    f"{topic} has no partition {absent[0]}: there are 0 to {len(found.partitions) - 1}"
                )
            numbers = sorted(chosen if chosen is not None else found.partitions)
            committed, everything = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
            # The stable end comes last: what is committed meanwhile must not count as held back.
            start = self._offsets(client, topic, numbers, _FIRST, everything)
            high = self._offsets(client, topic, numbers, _LAST, everything)
            end = self._offsets(client, topic, numbers, _LAST, committed)
        except KafkaException as raised:
            raise self._unreachable(raised.args[0]) from None
        except TimeoutError:
            raise self._silent(topic) from None
        return len(found.partitions), {
            p: Bounds(start[p], max(start[p], end[p]), max(high[p], end[p], start[p])) for p in numbers
        }

    @staticmethod
    def _offsets(
        client: AdminClient, topic: str, numbers: list[int], which: Any, isolation: IsolationLevel
    ) -> dict[int, int]:
        asked = {TopicPartition(topic, number): which for number in numbers}
        found: dict[int, int] = {}
        for where, answer in ask_offsets(client, asked, ASK_TIMEOUT_S, isolation).items():
            if isinstance(answer, KafkaError):
                raise KafkaException(answer)
            found[where.partition] = answer
        return found

    def read(
        self, topic: str, spans: Mapping[int, tuple[int, int]]
    ) -> Iterator[list[LogRecord | DamagedBatch]]:
        """The committed records of each partition from the first offset up to the second, in batches.

        Raises:
            TrimmedError: Records that were still to be read have been deleted.
            UnreachableError: Nothing more comes, though there is more.
        """
        left = {number: end for number, (start, end) in spans.items() if end > start}
        if not left:
            return
        consumer = Consumer(self._settings(len(left)))
        try:
            consumer.assign([TopicPartition(topic, number, spans[number][0]) for number in left])
            heard_at = time.monotonic()
            while left:
                first = consumer.poll(_POLL_S)  # returns with the first; consume() would wait for all
                more = (first, *consumer.consume(_BATCH_MAX - 1, 0)) if first is not None else ()
                taken = [self._take(consumer, topic, message, left) for message in more]
                batch = [each for each in taken if each is not None]
                if batch:
                    yield batch
                    heard_at = time.monotonic()
                elif left and time.monotonic() - heard_at > STALL_S:
                    raise self._stalled(topic, left)
        except KafkaException as raised:
            raise self._unreachable(raised.args[0]) from None
        finally:
            consumer.close()

    def _settings(self, partitions: int) -> dict[str, Any]:
        fixed: dict[str, Any] = {
            "group.id": "relevo-verify",  # asked for; no group is joined and nothing committed
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "queued.max.messages.kbytes": max(_QUEUE_KIB_MIN, _QUEUE_KIB // partitions),
        }
        return self._connection.settings(self._faults, fixed)

    def _take(
        self, consumer: Consumer, topic: str, message: Message, left: dict[int, int]
    ) -> LogRecord | DamagedBatch | None:
        """What a message says; a partition whose end is reached goes from ``left``."""
        error = message.error()
        # A message that was read has both; an error may be about no partition.
        partition, offset = message.partition(), message.offset()
        partition, offset = (-1 if partition is None else partition), (-1 if offset is None else offset)
        if partition not in left:
            if error is not None:
                self._faults.heard(error)
            return None
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            found = self._failed(topic, partition, offset, error)
            if found is not None:
                self._leave(consumer, topic, partition, left)
            return found
        end = left[partition]
        if offset >= end - (error is None):
            self._leave(consumer, topic, partition, left)
        if error is not None or offset >= end:
            return None
        return LogRecord(partition, offset, _bytes(message.key()), _bytes(message.value()))

    @staticmethod
    def _leave(consumer: Consumer, topic: str, partition: int, left: dict[int, int]) -> None:
        del left[partition]
        consumer.pause([TopicPartition(topic, partition)])

    def _failed(self, topic: str, partition: int, offset: int, error: KafkaError) -> DamagedBatch | None:
        code = error.code()
        if code in _DAMAGED:
            expected = "a batch of records as the broker took it in"
            # librdkafka would give the same batch again and again: nobody can read past it.
            found = f"{error.str()}; what follows can't be read"
            return DamagedBatch(partition, offset, Fault(Invariant.CHECKSUM, expected, found))
        if code in _GONE:
            raise TrimmedError(
                f"{topic} partition {partition} was trimmed while it was read: run it again ({error.str()})"
            )
        self._faults.heard(error)  # librdkafka goes on trying; `_stalled` tells of it
        return None

    def _stalled(self, topic: str, left: Mapping[int, int]) -> UnreachableError:
        why = f": {self._connection.redact(self._faults.last)}" if self._faults.last else ""
        where = ", ".join(str(number) for number in sorted(left))
        return UnreachableError(
            f"Kafka at {self._connection.bootstrap} gave nothing more of {topic} partition(s) {where} "
            f"for {STALL_S:.0f} s, though their end isn't reached{why}"
        )

    def _no_topic(self, topic: str) -> TopicsError:
        where = self._connection.bootstrap
        return TopicsError(f"Kafka at {where} has no topic {topic}: is the cluster's name right?")

    def _silent(self, topic: str) -> UnreachableError:
        return UnreachableError(
            f"Kafka at {self._connection.bootstrap} didn't say in time where {topic} ends"
        )

    def _unreachable(self, error: KafkaError) -> UnreachableError:
        return UnreachableError(self._connection.describe(error, self._faults))


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
