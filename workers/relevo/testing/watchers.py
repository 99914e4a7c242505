"""Readers beside the engine: they see activations and events as any consumer does, and note when.

Each has a consumer and a thread of its own, and reads only what is committed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from relevo import names
from relevo.kafka_options import options_for_consumer
from relevo.testing.arrivals import Activations, Arrival, Lease, LogFacts, Term
from relevo.testing.faults import DrillError
from relevo_schemas import codec, events
from relevo_schemas.delivery import Activation
from relevo_schemas.errors import RecordError
from relevo_schemas.records import Event

_log: Final = logging.getLogger("relevo.testing")

_POLL_S: Final = 0.05
_BATCH_MAX: Final = 500
_OFFSETS_S: Final = 15.0
_JOIN_S: Final = 10.0
_ENDED_BEFORE: Final = frozenset({"ALREADY_COMPLETED", "ALREADY_FINISHED", "NOT_FOUND"})
_TERMINAL: Final = (events.JobErrored, events.JobCancelled, events.JobExpired)


class WatchError(DrillError):
    """A watcher can't go on, so that what it would have seen isn't known."""


class Watcher:
    """Follows one topic from now on, in a thread.

    Args:
        kafka: Bootstrap servers.
        topic: What to follow; it must exist.
        options: More librdkafka options.
    """

    def __init__(self, kafka: str, topic: str, options: Mapping[str, Any]) -> None:
        self._topic = topic
        self._consumer = Consumer(
            options_for_consumer(
                kafka,
                options,
                {"group.id": f"{topic}-drill", "auto.offset.reset": "error"},
                reconnect_backoff_max_ms=500,
            )
        )
        self._stop = threading.Event()
        self._fault = ""
        self._thread = threading.Thread(target=self._run, name=f"watch-{topic}", daemon=True)

    def __enter__(self) -> Self:
        """Find the end of every partition, and follow from there.

        Raises:
            WatchError: Kafka doesn't tell where that is.
        """
        try:
            known = self._consumer.list_topics(self._topic, _OFFSETS_S).topics[self._topic]
            if known.error is not None:
                raise KafkaException(known.error)
            places = [TopicPartition(self._topic, number) for number in known.partitions]
            for place in places:
                place.offset = self._consumer.get_watermark_offsets(place, timeout=_OFFSETS_S)[1]
        except KafkaException as error:
            self._consumer.close()
            raise WatchError(f"{self._topic} can't be followed: {error.args[0].str()}") from error
        self._consumer.assign(places)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread, and let the consumer go."""
        self._stop.set()
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._consumer.close()

    def check(self) -> None:
        """Does nothing while it sees everything.

        Raises:
            WatchError: It doesn't.
        """
        if self._fault:
            raise WatchError(f"{self._topic} is not watched any more: {self._fault}")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                first = self._consumer.poll(_POLL_S)
                if first is not None:
                    # Noted before anything is decoded: what comes together has come now.
                    seconds, wall = time.monotonic(), time.time() * 1000
                    for message in (first, *self._consumer.consume(_BATCH_MAX, 0)):
                        self._take_message(message, seconds, wall)
        except Exception as error:
            _log.exception("the watcher of %s ended", self._topic)
            self._fault = str(error) or type(error).__name__

    def _take_message(self, message: Message, seconds: float, wall: float) -> None:
        error = message.error()
        if error is not None:
            # A broker that is away is the drill's own doing; a record that is gone would be a hole.
            if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)
            return
        self._take(message.partition() or 0, message.value() or b"", seconds, wall)

    def _take(self, partition: int, value: bytes, seconds: float, wall: float) -> None:
        raise NotImplementedError


class ActivationWatcher(Watcher):
    """Follows the activations of one job type.

    Attributes:
        seen: What came.
    """

    def __init__(self, kafka: str, cluster: str, job_type: str, options: Mapping[str, Any]) -> None:
        super().__init__(kafka, names.activations_topic(cluster, job_type), options)
        self.seen = Activations()

    def _take(self, partition: int, value: bytes, seconds: float, wall: float) -> None:
        record = codec.decode(value)
        if isinstance(record, Activation):
            sent = _sent(record.job.variables)
            # An attempt after a lease expiry goes to another Kafka partition; the record knows its own.
            self.seen.add(
                record.partition,
                Arrival(seconds, wall, record.epoch, record.attempt, sent, record.job.key),
            )


class LogWatcher(Watcher):
    """Follows the job log.

    Attributes:
        seen: What it told.
    """

    def __init__(self, kafka: str, cluster: str, options: Mapping[str, Any]) -> None:
        super().__init__(kafka, names.log_topic(cluster), options)
        self.seen = LogFacts()

    def _take(self, partition: int, value: bytes, seconds: float, wall: float) -> None:
        try:
            event = codec.decode(value)
        except RecordError:
            # The verifier reads the same record, and says where it stands and what is wrong.
            self.seen.kinds["unreadable"] += 1
            return
        if not isinstance(event, Event):
            return
        seen = self.seen
        seen.kinds[type(event).__name__] += 1
        newest = seen.epochs.get(partition, 0)
        if event.epoch < newest:
            seen.stale.append(
                f"{self._topic}[{partition}]: {type(event).__name__} of {event.epoch} in {newest}"
            )
        seen.epochs[partition] = max(event.epoch, newest)
        if isinstance(event, events.LeaderElected):
            seen.terms.append(Term(partition, event.epoch, event.node, wall))
        elif event.source >= 0:
            seen.accepts.setdefault((partition, event.epoch), wall)
        if isinstance(event, events.JobCreated):
            seen.created += 1
        elif isinstance(event, events.JobStarted):
            seen.leases.setdefault(event.key, Lease(partition, event.epoch, float(event.at)))
            seen.newest_lease[partition] = wall
        elif isinstance(event, events.JobCompleted):
            if event.key in seen.completed:
                seen.completed_twice.append(event.key)
            seen.completed.setdefault(event.key, float(event.at))
            seen.ended_in.setdefault(event.key, event.epoch)
        elif isinstance(event, _TERMINAL):
            seen.ended_otherwise[event.key] = type(event).__name__
            seen.ended_in.setdefault(event.key, event.epoch)
        elif isinstance(event, events.JobTimedOut):
            seen.timeouts.append((wall, event.key))
            seen.timed_out_in[event.key] = event.epoch
        elif isinstance(event, events.CommandRejected) and _had_ended(event):
            seen.ended_before.add(event.key)


def _had_ended(refusal: events.CommandRejected) -> bool:
    """Whether a completion was refused as its job had ended, maybe so long ago that it is forgotten."""
    return refusal.command == "CompleteJob" and refusal.reason in _ENDED_BEFORE


def _sent(variables: bytes) -> float | None:
    try:
        found = orjson.loads(variables) if variables else None
    except orjson.JSONDecodeError:
        return None
    sent = found.get("sent") if isinstance(found, dict) else None
    return float(sent) if isinstance(sent, (int, float)) else None
