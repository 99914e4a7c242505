"""Copies the job log into a topic that ordinary Kafka tools decode: the Confluent wire format."""

from __future__ import annotations

import contextlib
import struct
from importlib.resources import files
from types import TracebackType
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from relevo import names
from relevo.environment import find_place
from relevo.errors import ClusterNotFound, InvalidRequest, LogGap, Refused
from relevo.events.event_choice import KINDS, OnGap, Start
from relevo.events.events import END_WAIT_MS, JobEvents
from relevo.events.job_event import JobEvent, LogPosition
from relevo.events.log_progress import CALL_S
from relevo.events.registry import SchemaRegistry
from relevo.kafka_options import options_for_consumer, options_for_producer, unreachable
from relevo_schemas.codec import HEADER_LENGTH, encode
from relevo_schemas.records import Event

POSITION: Final = "relevo-position"
"""Header with the position of the event in the job log, as `LogPosition` reads it."""
KIND: Final = "relevo-kind"
BATCH_MAX: Final = 500
_MAGIC: Final = struct.Struct(">bI")
_LOOK_BACK: Final = 64
_POLL_S: Final = 0.2
_COMMIT_S: Final = 60.0
_WAIT_S: Final = 30.0


def wire_value(schema: int, event: Event) -> bytes:
    """An event in the Confluent wire format.

    Args:
        schema: The id of its schema in the registry.
        event: The event.
    """
    return _MAGIC.pack(0, schema) + encode(event)[HEADER_LENGTH:]


class ConfluentMirror:
    """Copies committed events, in order, each exactly once, into a topic in the Confluent wire format.

    A value is a zero byte, the id of its schema in the registry (four bytes, big-endian) and the Avro body;
    the key is the job's, the timestamp the event's. Each kind of event has the subject
    ``<topic>-relevo.<kind>`` (TopicRecordNameStrategy).

    Every record carries the event's position in its header ``relevo-position``, and a batch is one
    transaction. A mirror that starts therefore goes on behind the last record of each partition of the topic,
    and at the beginning of the log where there is none; an older mirror of the same topic, should it still
    live, can write no more. Readers of the topic should be
    ``read_committed``.

    Args:
        to: The topic; it must exist, with as many partitions as the log.
        registry: URL of the schema registry, see `SchemaRegistry`.
        bootstrap: As for `JobEvents`.
        cluster: As for `JobEvents`.
        follow: Go on waiting for new events; False: `ended` at the end of the log.
        on_gap: As for `JobEvents`.
        **kafka_options: As for `JobEvents`.

    Raises:
        InvalidRequest: The topic can't be a mirror of this log.
        ClusterNotFound: There is no such cluster, or no such topic.
        Unreachable: Kafka or the registry doesn't answer.
        Refused: The registry refuses a schema.
    """

    def __init__(
        self,
        to: str,
        registry: str,
        bootstrap: str | None = None,
        cluster: str | None = None,
        *,
        follow: bool = True,
        on_gap: OnGap = "error",
        **kafka_options: Any,
    ) -> None:
        place = find_place(bootstrap, cluster, kafka_options)
        log = names.log_topic(names.check_cluster(place.cluster))
        if to in (log, names.commands_topic(place.cluster)):
            raise InvalidRequest(f"{to} is the cluster's own: the mirror needs a topic of its own")
        self._to = to
        self._bootstrap = place.bootstrap
        self._schemas = _registered(SchemaRegistry(registry), to)
        self._producer = Producer(
            options_for_producer(
                place.bootstrap,
                place.options,
                transactional_id=f"{place.cluster}.mirror.{to}",
                linger_ms=5,
            )
        )
        try:
            # Ends what an earlier mirror has left open; what the topic holds after that is final.
            self._producer.init_transactions(_WAIT_S)
            start: Start = self._stored(place.options, log) or "beginning"
        except KafkaException as error:
            raise self._error(error) from error
        self._events = JobEvents(
            place.bootstrap, place.cluster, start, follow=follow, on_gap=on_gap, **place.options
        )

    def copy(self, timeout: float = 1.0) -> int:
        """Copy what is at hand; how many events that was, none after ``timeout`` seconds.

        After an error the mirror is of no more use: close it, and make another one.

        Raises:
            LogGap: Events were trimmed off the log before they were copied.
            Refused: Another mirror has taken over, or Kafka forbids it.
            Unreachable: Kafka doesn't answer.
        """
        found = self._events.read(timeout, BATCH_MAX)
        if not found:
            return 0
        try:
            self._producer.begin_transaction()
            for event in found:
                self._produce(event)
            self._producer.commit_transaction(_COMMIT_S)
        except KafkaException as error:
            raise self._error(error) from error
        return len(found)

    @property
    def ended(self) -> bool:
        """Whether everything was copied, with ``follow=False``."""
        return self._events.ended

    def close(self) -> None:
        """Give back the connections. What is not committed is copied by the next one."""
        self._events.close()
        self._producer.purge()

    def __enter__(self) -> ConfluentMirror:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _produce(self, event: JobEvent) -> None:
        value = wire_value(self._schemas[event.kind], event.event)
        headers: list[tuple[str, str | bytes | None]] = [
            (POSITION, str(event.position).encode()),
            (KIND, event.kind.encode()),
        ]
        while True:
            # A full queue is waited for: the broker drains it, or the transaction fails.
            with contextlib.suppress(BufferError):
                self._producer.produce(
                    self._to, value, event.key.encode(), event.partition, timestamp=event.at, headers=headers
                )
                return
            self._producer.poll(_POLL_S)

    def _error(self, error: KafkaException) -> Exception:
        code = error.args[0].code()
        if code in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
            return Refused(f"another mirror of {self._to} has taken over")
        if code in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            KafkaError.MSG_SIZE_TOO_LARGE,
        ):
            return Refused(f"Kafka refuses to write {self._to}: {error.args[0].str()}")
        return unreachable(self._bootstrap, error)

    # Where an earlier mirror has stopped

    def _stored(self, options: Any, log: str) -> dict[int, LogPosition]:
        fixed = {
            "group.id": f"{self._to}.mirror",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        consumer = Consumer(
            options_for_consumer(self._bootstrap, options, fixed, fetch_wait_max_ms=END_WAIT_MS)
        )
        try:
            partitions = self._partitions(consumer, self._to)
            if partitions != self._partitions(consumer, log):
                raise InvalidRequest(
                    f"{self._to} has {len(partitions)} partitions, and must have as many as {log}"
                )
            last = [self._last(consumer, each) for each in partitions]
        finally:
            consumer.close()
        return {each.partition: each for each in last if each is not None}

    def _partitions(self, consumer: Consumer, topic: str) -> list[int]:
        found = consumer.list_topics(topic, timeout=CALL_S).topics[topic]
        if found.error is not None or not found.partitions:
            raise ClusterNotFound(f"Kafka at {self._bootstrap} has no topic {topic}: make it first")
        return sorted(found.partitions)

    def _last(self, consumer: Consumer, partition: int) -> LogPosition | None:
        """Position of the last event in a partition of the topic; None: nothing was ever written there."""
        low, high = consumer.get_watermark_offsets(TopicPartition(self._to, partition), timeout=CALL_S)
        if high == 0:
            return None
        length = _LOOK_BACK
        while True:
            # Behind the last record may stand any number of aborted ones.
            begin = max(low, high - length)
            found = self._last_from(consumer, partition, begin, high)
            if found is not None:
                return found
            if begin == low:
                break
            length *= 8
        raise LogGap(
            f"{self._to} [{partition}] was written and is empty now, so that nobody knows how far it was "
            f"copied. Mirror into another topic, or delete this one and make it anew"
        )

    def _last_from(self, consumer: Consumer, partition: int, begin: int, high: int) -> LogPosition | None:
        consumer.assign([TopicPartition(self._to, partition, begin)])
        last: LogPosition | None = None
        while True:
            message = consumer.poll(_WAIT_S)
            if message is None:
                raise unreachable(self._bootstrap, KafkaError(KafkaError._TIMED_OUT))
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return last
                raise KafkaException(error)
            last = self._position_in(message)
            if (message.offset() or 0) >= high - 1:
                return last

    def _position_in(self, message: Message) -> LogPosition:
        value = dict(message.headers() or ()).get(POSITION)
        if isinstance(value, bytes):
            return LogPosition.parse(value.decode(errors="replace"))
        raise InvalidRequest(
            f"{self._to} [{message.partition()}] at {message.offset()} is no copy of an event: the mirror "
            f"needs a topic of its own"
        )


def _registered(registry: SchemaRegistry, topic: str) -> dict[str, int]:
    """Ids of the schemas of all kinds of events."""
    folder = files("relevo_schemas") / "avro"
    return {
        kind: registry.register(f"{topic}-relevo.{kind}", (folder / f"{kind}.avsc").read_text())
        for kind in sorted(KINDS)
    }
