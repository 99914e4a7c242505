"""Reads one Kafka partition in order, and stops where a record is missing; it never jumps."""

from __future__ import annotations

import contextlib
import json
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.fork import ForkGuard
from relevo_partitions.kafka.connection import Connection, Faults, drop_in_background
from relevo_partitions.kafka.offsets import settled
from relevo_partitions.ports import Stability
from relevo_partitions.statemachine import Incoming, LogDamaged

ASK_TIMEOUT_S: Final = 5.0
STATISTICS_MS: Final = 5_000
"""How often librdkafka tells of itself: nothing else of it knows where committed records end."""
IN_BATCHES: Final = {"queued.min.messages": 100, "fetch.queue.backoff.ms": 10}
"""For a reader that works on what it has read before it reads on: no fetch while so many records wait.

librdkafka asks for the next records as soon as it has some. A leader under load had each producer's request
come in a fetch of its own: 395 of them for 53 batches. Without most of these the same 20,000 jobs took a
seventh less processor time of broker, node, workers and client together. While fewer wait nothing changes.
"""

_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_NO_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_DAMAGED: Final = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG})
"""A batch whose checksum doesn't match: librdkafka fetches it again and again."""
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)


class PartitionReader:
    """A consumer of one partition, assigned by hand: no group decides what it reads. Used by one thread.

    Args:
        connection: Where Kafka is.
        topic: Name of the topic.
        partition: Number of the partition.
        group: Only published positions go there; nobody joins it.
        verify_checksums: Whether librdkafka checks each batch's checksum.
        tell_end: Whether `at_end` is to be known, and `reached` where nothing comes.
        in_batches: Whether to fetch anew only when most of what was fetched has been read: see `IN_BATCHES`.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        partition: int,
        group: str,
        *,
        verify_checksums: bool = False,
        tell_end: bool = False,
        in_batches: bool = False,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._partition = partition
        self._faults = Faults()
        self._wanted = 0
        self._at_end = False
        self._stability = Stability()
        self._fork = ForkGuard("a reader of a partition")
        self._consumer = Consumer(
            connection.settings(
                self._faults,
                {
                    "group.id": group,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "error",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": tell_end,
                    "check.crcs": verify_checksums,
                    "fetch.error.backoff.ms": 50,
                    "statistics.interval.ms": STATISTICS_MS,
                    **(IN_BATCHES if in_batches else {}),
                },
            )
            | {"stats_cb": self._heard}
        )
        self._closed = False

    def connect(self) -> None:
        """Return once Kafka has answered; see `relevo_partitions.kafka.warm_reader`."""
        self._bounds()

    def tend(self) -> None:
        """Serve the callbacks of a reader that isn't started; never raises."""
        with contextlib.suppress(KafkaException):
            self._consumer.poll(0)

    def start(self, offset: int) -> None:
        """Begin to fetch from ``offset``; see `relevo_partitions.ports.Reader.start`."""
        self._fork.check()
        self._wanted = offset
        self._at_end = False
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def check(self, offset: int) -> None:
        """Ask Kafka whether it holds ``offset``; see `relevo_partitions.ports.Reader.check`."""
        self._fork.check()
        low, high = self._bounds()
        if not low <= offset <= high:
            raise LogDamaged(self._gap(offset, low, high))

    def read(self, wait_s: float, records_max: int) -> list[Incoming]:
        """The next records; see `relevo_partitions.ports.Reader.read`."""
        self._fork.check()
        try:
            first = self._consumer.poll(wait_s)  # returns with the first record; consume() would wait for all
            if first is None:
                return []
            messages = [first, *(self._consumer.consume(records_max - 1, 0) if records_max > 1 else ())]
        except KafkaException as raised:
            raise KafkaUnavailable(self._connection.describe(raised.args[0], self._faults)) from None
        records = []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._at_end = True
                    # Transactions' markers lie before it, and what was aborted: nothing comes of them.
                    self._wanted = max(self._wanted, message.offset() or 0)
                else:
                    self._judge(error)
                continue
            self._at_end = False
            offset = message.offset()
            if offset is None or offset < self._wanted:
                raise LogDamaged(
                    f"{self._where()}: got offset {offset} where {self._wanted} or later was due"
                )
            self._wanted = offset + 1
            records.append(Incoming(offset, _bytes(message.key()), _bytes(message.value())))
        return records

    @property
    def reached(self) -> int:
        """Up to where all has been read; see `relevo_partitions.ports.Reader.reached`."""
        return self._wanted

    @property
    def at_end(self) -> bool:
        """Whether all that is stable has been read; see `relevo_partitions.ports.Reader.at_end`."""
        return self._at_end

    def end_offset(self) -> int:
        """The partition's end as of the last fetch, -1 where unknown."""
        where = TopicPartition(self._topic, self._partition)
        return max(-1, self._consumer.get_watermark_offsets(where, cached=True)[1])

    def stability(self) -> Stability:
        """What Kafka said last; see `relevo_partitions.ports.Reader.stability`."""
        return self._stability

    def note_position(self, position: int) -> None:
        """Commit ``position`` to the group, without waiting, for ordinary lag tools and nothing else."""
        offsets = [TopicPartition(self._topic, self._partition, position)]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._faults.heard(error.args[0])

    def close(self) -> None:
        """Close the consumer in another thread."""
        if not self._closed:
            self._closed = True
            drop_in_background(self._consumer, self._consumer.close)

    def _heard(self, statistics: str) -> None:
        """Librdkafka's statistics callback, within `read`; must not raise."""
        try:
            said = json.loads(statistics)["topics"][self._topic]["partitions"][str(self._partition)]
            self._stability = Stability(int(said["ls_offset"]), int(said["hi_offset"]))
        except (KeyError, TypeError, ValueError):  # nothing is known of the topic yet
            self._stability = Stability()

    def _bounds(self) -> tuple[int, int]:
        """First offset and end of the partition, as the broker says now."""
        where = TopicPartition(self._topic, self._partition)
        try:
            bounds = settled(lambda: self._consumer.get_watermark_offsets(where, timeout=ASK_TIMEOUT_S))
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() in _NO_TOPIC:
                raise LogDamaged(self._missing()) from None
            raise KafkaUnavailable(self._connection.describe(error, self._faults)) from None
        if bounds is None:
            raise KafkaUnavailable(
                f"Kafka at {self._connection.bootstrap} didn't say where {self._where()} ends"
            )
        return bounds[0], bounds[1]

    def _judge(self, error: KafkaError) -> None:
        """Raise where librdkafka won't get over ``error`` by itself."""
        code = error.code()
        if code in _GONE:
            raise LogDamaged(self._lacking(error))
        if code in _NO_TOPIC:
            raise LogDamaged(self._missing())
        if code in _DAMAGED:
            raise LogDamaged(f"{self._where()}: the batch at offset {self._wanted} is damaged: {error.str()}")
        if code in _REFUSED or error.fatal():
            raise KafkaUnavailable(self._connection.describe(error, self._faults))
        self._faults.heard(error)

    def _where(self) -> str:
        return f"{self._topic} [{self._partition}]"

    def _missing(self) -> str:
        return f"{self._where()} doesn't exist in Kafka at {self._connection.bootstrap}"

    def _lacking(self, error: KafkaError) -> str:
        """What to tell of the next record, which Kafka doesn't hold, as it has just said.

        A leader that was elected with a shorter log doesn't say where that ends until enough others have
        followed. It must be told now: whoever reads from the beginning finds nothing amiss in what is left.
        """
        try:
            return self._gap(self._wanted, *self._bounds())
        except KafkaUnavailable as problem:
            said = self._connection.redact(error.str())
            return (
                f"{self._where()}: offset {self._wanted} was due, but Kafka doesn't hold it ({said}): "
                "it was truncated, or deleted and made anew, or records were deleted. What is left of it "
                f"can't be told yet: {problem}"
            )

    def _gap(self, offset: int, low: int, high: int) -> str:
        if offset < low:
            return (
                f"{self._where()}: offset {offset} was due, but Kafka holds records from {low} on: "
                "records before that were deleted"
            )
        return (
            f"{self._where()}: offset {offset} was due, but the partition ends at {high}: "
            "it was truncated, or deleted and made anew"
        )


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
