"""What a worker process has of Kafka: a producer, a reader of the log, a consumer; all of them over lists.

Each stands for a class of the SDK or of librdkafka, and has the part of its face that the worker uses.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from confluent_kafka import TopicPartition

from relevo.errors import RelevoError
from relevo.follower import Follower, Interest, Sink
from relevo.testing.inmemory.faults import Faults
from relevo.testing.inmemory.kafka import MemoryKafka, MemoryMessage, Stored
from relevo_schemas.codec import decode, default_codec
from relevo_schemas.commands import CompleteJob, FailJob, ThrowError
from relevo_schemas.partitioning import partition_of
from relevo_schemas.records import Event

_ENDINGS = (CompleteJob, FailJob, ThrowError)


class MemorySender:
    """Stands for `relevo.sender.Sender`: what is sent is there at once, and acknowledged by `ack`."""

    def __init__(self, kafka: MemoryKafka, faults: Faults) -> None:
        self._kafka = kafka
        self._faults = faults
        self._hooks: list[Callable[[], None]] = []
        self._reports: list[tuple[Callable[..., None], MemoryMessage]] = []
        self._endings = 0
        #: Outcomes of jobs that were acknowledged since somebody last set this to 0.
        self.endings_acknowledged = 0

    def after_reports(self, hook: Callable[[], None]) -> None:
        """As `Sender.after_reports`."""
        self._hooks.append(hook)

    def try_send(
        self, topic: str, key: bytes, value: bytes, report: Callable[..., None], partition: int = -1
    ) -> bool:
        """As `Sender.try_send`; there is always room."""
        kind = default_codec().kind_of(value)
        if kind is CompleteJob and self._faults.lose_a_completion():
            offset = self._kafka.end(topic, partition)
        else:
            offset = self._kafka.append(topic, partition, key, value)
        self._endings += kind in _ENDINGS
        self._reports.append((report, MemoryMessage(topic, partition, offset, Stored(key, value))))
        return True

    def send_batch(self, topic: str, messages: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        """As `Sender.send_batch`; everything is taken."""
        for each in messages:
            self.try_send(topic, each["key"], each["value"], each["callback"], each["partition"])
        return [], []

    @property
    def unacknowledged(self) -> bool:
        """Whether `ack` has something to do."""
        return bool(self._reports)

    def ack(self) -> None:
        """Acknowledge all that was sent."""
        reports, self._reports = self._reports, []
        self.endings_acknowledged += self._endings
        self._endings = 0
        for report, message in reports:
            report(None, message)
        for hook in self._hooks:
            hook()


class MemoryFollower:
    """Stands for `relevo.follower.Follower`: tells of events as they are written."""

    def __init__(self, kafka: MemoryKafka, topic: str, partitions: int) -> None:
        self._kafka = kafka
        self._topic = topic
        self._partitions = partitions
        self._interests: dict[bytes, list[Interest]] = {}
        kafka.listen(topic, self._told)

    def follow(
        self,
        key: str,
        on_event: Sink,
        on_failure: Callable[[RelevoError], None],
        *,
        partition: int | None = None,
        start: int | None = None,
    ) -> Future[Interest]:
        """As `Follower.follow`, from the end of the log on."""
        number = partition_of(key, self._partitions) if partition is None else partition
        interest = Interest(
            cast(Follower, self), key, number, self._kafka.end(self._topic, number), on_event, on_failure
        )
        self._interests.setdefault(key.encode(), []).append(interest)
        future: Future[Interest] = Future()
        future.set_result(interest)
        return future

    def _drop(self, interest: Interest) -> None:
        """As `Follower._drop`, which an `Interest` calls."""
        waiting = self._interests.get(interest.key.encode(), [])
        if interest in waiting:
            waiting.remove(interest)

    def _told(self, partition: int, offset: int, record: Stored) -> None:
        waiting = list(self._interests.get(record.key, ()))
        event = decode(record.value) if waiting else None
        if isinstance(event, Event):
            for interest in waiting:
                interest._on_event(offset, event)

    def close(self) -> None:
        """Tell nobody any more."""
        self._kafka.unlisten(self._topic, self._told)
        self._interests.clear()


class MemoryConsumer:
    """Stands for `confluent_kafka.Consumer` of one topic: gives out what is assigned, keeps commits."""

    def __init__(self, kafka: MemoryKafka, group: str, on_commit: Callable[..., None]) -> None:
        self._kafka = kafka
        self._group = group
        self._on_commit = on_commit
        self._positions: dict[tuple[str, int], int] = {}

    def take(self, limit: int) -> list[MemoryMessage]:
        """At most ``limit`` records of the assigned partitions."""
        found: list[MemoryMessage] = []
        for (topic, partition), position in self._positions.items():
            some = self._kafka.read(topic, partition, position, limit - len(found))
            self._positions[topic, partition] += len(some)
            found += some
        return found

    @property
    def behind(self) -> bool:
        """Whether `take` has something to give."""
        return any(self._kafka.end(*place) > at for place, at in self._positions.items())

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        """As librdkafka's."""
        self._positions |= {(each.topic, each.partition): each.offset for each in places}

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        """As librdkafka's."""
        for each in places:
            self._positions.pop((each.topic, each.partition), None)

    def assignment(self) -> list[TopicPartition]:
        """As librdkafka's."""
        return [TopicPartition(*place) for place in self._positions]

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """As librdkafka's."""
        known = self._kafka.committed
        return [
            TopicPartition(
                each.topic, each.partition, known.get((self._group, each.topic, each.partition), 0)
            )
            for each in places
        ]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        """As librdkafka's."""
        return 0, self._kafka.end(place.topic, place.partition)

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
        """As librdkafka's."""
        for each in offsets:
            self._kafka.committed[self._group, each.topic, each.partition] = each.offset
        if not asynchronous:
            return offsets
        self._on_commit(None, offsets)
        return None

    def seek(self, place: TopicPartition) -> None:
        """As librdkafka's."""
        self._positions[place.topic, place.partition] = place.offset
