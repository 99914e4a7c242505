"""Reading the job log: committed events, in order within a partition, each with its position."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from relevo import names
from relevo.environment import find_place
from relevo.errors import Closed, InvalidRequest, LogGap
from relevo.event_choice import Start, check_kinds, check_start
from relevo.forks import ForkGuard
from relevo.kafka_options import guarded, membership, no_topic, options_for_consumer, unreachable
from relevo.results import finish_of
from relevo_schemas.codec import decode
from relevo_schemas.errors import RecordError
from relevo_schemas.events import JobCreated, LeaderElected
from relevo_schemas.records import Event

BATCH_MAX: Final = 500
POLL_S: Final = 0.2
CALL_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of the log.

    ``(partition, offset)`` is its position: it names this event for ever, so a consumer that stores it with
    its own writes can tell what it has seen.

    Attributes:
        partition: Partition of the log.
        offset: Offset in it.
        kind: What happened, such as ``JobCompleted``.
        key: The job's key; empty where the event concerns none.
        event: The event itself.
    """

    partition: int
    offset: int
    kind: str
    key: str
    event: Event

    @property
    def at(self) -> int:
        """When, in milliseconds since the Unix epoch by the leader's clock."""
        return self.event.at


class JobEvents:
    """Iterates over a cluster's job events. Use it in one thread at a time, and close it (or use ``with``).

    Args:
        bootstrap: ``host:port`` of Kafka, several separated by commas; None: ``RELEVO_KAFKA`` in the
            environment (with ``RELEVO_KAFKA_OPTIONS``), else localhost:9092.
        cluster: The cluster's name; None: ``RELEVO_CLUSTER`` in the environment, else relevo.
        from_: Where to start: ``beginning``, ``now``, a time (datetime with a time zone, or milliseconds
            since the Unix epoch), or the next offset by partition, such as `positions` gave.
        types: Only events of jobs of these types. Events tell a job's key; its type is known from its
            creation, so those of jobs whose creation was not read are left out.
        keys: Only events of these jobs.
        kinds: Only these kinds, such as ``JobCompleted``.
        group: A consumer group: members share the partitions, and go on where `commit` was last called;
            ``from_`` counts where it never was. None: all partitions, and the caller keeps `positions`.
        follow: Go on waiting for new events; False: end where the log ends now.
        **kafka_options: librdkafka's options, with underscores for dots or by ``**{"…": …}``.

    Raises:
        InvalidRequest: An argument can't be right.
        Unreachable: Kafka doesn't answer.
        ClusterNotFound: There is no such cluster.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        cluster: str | None = None,
        from_: Start = "beginning",
        *,
        types: Collection[str] | None = None,
        keys: Collection[str] | None = None,
        kinds: Collection[str | type[Event]] | None = None,
        group: str | None = None,
        follow: bool = True,
        **kafka_options: Any,
    ) -> None:
        place = find_place(bootstrap, cluster, kafka_options)
        self._topic = names.log_topic(names.check_cluster(place.cluster))
        self._bootstrap = place.bootstrap
        self._start = check_start(from_)
        self._types = frozenset(names.check_type(each) for each in types) if types is not None else None
        self._keys = frozenset(key.encode() for key in keys) if keys is not None else None
        self._kinds = check_kinds(kinds)
        self._follow = follow
        self._grouped = group is not None
        self._fork = ForkGuard("event reader")
        self._next: dict[int, int] = {}
        self._seqs: dict[int, int] = {}
        self._at_end: set[int] = set()
        self._assigned: set[int] = set()
        self._type_of: dict[str, str] = {}
        self._ready: deque[JobEvent] = deque()
        self._problem: LogGap | None = None
        self._closed = False
        self._consumer = Consumer(
            options_for_consumer(
                place.bootstrap,
                place.options,
                {
                    "group.id": group or f"{place.cluster}.events",
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                },
                **membership(place.options),
            )
        )
        try:
            self._begin()
        except BaseException:
            self._consumer.close()
            raise

    # Reading

    def __iter__(self) -> JobEvents:
        return self

    def __next__(self) -> JobEvent:
        while not self._ready:
            self._fill(POLL_S)
            if not self._ready and self._ended():
                raise StopIteration
        event = self._ready.popleft()
        self._next[event.partition] = event.offset + 1
        return event

    def read(self, timeout: float = 1.0) -> list[JobEvent]:
        """The next events, as many as are at hand; none after ``timeout`` seconds.

        Raises:
            LogGap: The next event is gone or out of order.
            Closed: It was closed.
        """
        deadline = time.monotonic() + timeout
        while not self._ready and not self._ended():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._fill(min(left, POLL_S))
        found = list(self._ready)
        self._ready.clear()
        for event in found:
            self._next[event.partition] = event.offset + 1
        return found

    @property
    def ended(self) -> bool:
        """Whether the end was reached, with ``follow=False``."""
        return not self._ready and self._ended()

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset after the last event given out: start there to go on behind it."""
        return dict(self._next)

    def commit(self) -> None:
        """Let the group go on behind the last event given out.

        Raises:
            InvalidRequest: It has no group.
        """
        if not self._grouped:
            raise InvalidRequest("commit needs a group; without one keep positions yourself")
        offsets = [
            TopicPartition(self._topic, partition, offset)
            for partition, offset in self._next.items()
            if partition in self._assigned
        ]
        if offsets:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                raise unreachable(self._bootstrap, error) from error

    def close(self) -> None:
        """Give back the connection. Twice does no harm."""
        if not self._closed and not self._fork.foreign:
            self._closed = True
            self._consumer.close()

    def __enter__(self) -> JobEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Starting

    def _begin(self) -> None:
        try:
            found = self._consumer.list_topics(self._topic, timeout=CALL_S).topics[self._topic]
            if found.error is not None or not found.partitions:
                raise no_topic(self._bootstrap, self._topic)
            if isinstance(self._start, Mapping):
                unknown = sorted(set(self._start) - set(found.partitions))
                if unknown:
                    raise InvalidRequest(
                        f"{self._topic} has partitions {sorted(found.partitions)}, not {unknown}"
                    )
            if self._grouped:
                self._consumer.subscribe(
                    [self._topic], on_assign=guarded(self._on_assign), on_revoke=guarded(self._on_revoke)
                )
            else:
                self._consumer.assign(self._positioned(sorted(found.partitions)))
        except KafkaException as error:
            raise unreachable(self._bootstrap, error) from error

    def _positioned(self, partitions: list[int]) -> list[TopicPartition]:
        """Where to begin in each partition."""
        start = self._start
        self._assigned.update(partitions)
        if isinstance(start, Mapping):
            places = [
                TopicPartition(self._topic, each, start.get(each, OFFSET_BEGINNING)) for each in partitions
            ]
        elif isinstance(start, int):
            places = self._consumer.offsets_for_times(
                [TopicPartition(self._topic, each, start) for each in partitions], timeout=CALL_S
            )
            for place in places:
                # Nothing as late as that yet.
                place.offset = place.offset if place.offset >= 0 else OFFSET_END
        else:
            offset = OFFSET_BEGINNING if start == "beginning" else OFFSET_END
            places = [TopicPartition(self._topic, each, offset) for each in partitions]
        for place in places:
            if place.offset == OFFSET_END:
                # Now is when it was asked for, not when the first fetch gets there.
                place.offset = self._end(place.partition)
            if place.offset >= 0:
                self._next[place.partition] = place.offset
        return places

    def _end(self, partition: int) -> int:
        found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=CALL_S)
        return int(found[1])

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        committed = consumer.committed(partitions, timeout=CALL_S)
        fresh = self._positioned([each.partition for each in committed if each.offset < 0])
        known = [
            TopicPartition(self._topic, each.partition, each.offset) for each in committed if each.offset >= 0
        ]
        for place in known:
            self._assigned.add(place.partition)
            self._next[place.partition] = place.offset
        consumer.incremental_assign(fresh + known)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {each.partition for each in partitions}
        self._ready = deque(event for event in self._ready if event.partition not in gone)
        self._assigned -= gone
        self._at_end -= gone
        for partition in gone:
            self._seqs.pop(partition, None)
            self._next.pop(partition, None)
        consumer.incremental_unassign(partitions)

    # Filling

    def _ended(self) -> bool:
        return not self._follow and bool(self._assigned) and self._at_end >= self._assigned

    def _fill(self, timeout: float) -> None:
        self._fork.check()
        if self._closed:
            raise Closed("the event reader was closed")
        if self._problem is not None:
            raise self._problem
        first = self._consumer.poll(timeout)
        if first is None:
            return
        for message in [first, *self._consumer.consume(BATCH_MAX - 1, 0)]:
            try:
                self._take(message)
            except LogGap as gap:
                # What was read before it is still to be given out.
                self._problem = gap
                break
        if self._problem is not None and not self._ready:
            raise self._problem

    def _take(self, message: Message) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        error = message.error()
        if error is not None:
            self._trouble(partition, error)
            return
        where = f"{self._topic} [{partition}] at {offset}"
        try:
            event = decode(message.value())
        except RecordError as damage:
            raise LogGap(f"{where} can't be read ({damage.fault}: {damage})") from damage
        if not isinstance(event, Event):
            return
        before = self._seqs.get(partition)
        if before is not None and event.seq != before + 1:
            raise LogGap(
                f"{where} has event {event.seq}, expected {before + 1}: the log has a hole or a repeat"
            )
        self._seqs[partition] = event.seq
        if partition in self._at_end and not self._follow:
            return
        found = self._chosen(event, message.key() or b"")
        if found is not None:
            self._ready.append(JobEvent(partition, offset, type(event).__name__, found, event))

    def _chosen(self, event: Event, record_key: bytes | str) -> str | None:
        """The job's key, where the event is wanted."""
        key = _key_of(event)
        raw = record_key.encode() if isinstance(record_key, str) else record_key
        if self._types is not None and not self._of_wanted_type(event, key):
            return None
        if self._keys is not None and raw not in self._keys:
            return None
        if self._kinds is not None and type(event).__name__ not in self._kinds:
            return None
        return key

    def _of_wanted_type(self, event: Event, key: str) -> bool:
        if isinstance(event, JobCreated) and event.job.type in (self._types or ()):
            self._type_of[key] = event.job.type
            return True
        if key not in self._type_of:
            return False
        if finish_of(event) is not None:
            # The last one: what is remembered is bounded by the open jobs.
            del self._type_of[key]
        return True

    def _trouble(self, partition: int, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._at_end.add(partition)
        elif code in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            raise LogGap(
                f"{self._topic} [{partition}] has nothing at {self._next.get(partition, 'the start')}: the "
                f"log was trimmed, or the position is of another one. Choose where to go on: reading on by "
                f"itself would skip events"
            )


def _key_of(event: Event) -> str:
    if isinstance(event, JobCreated):
        return event.job.key
    if isinstance(event, LeaderElected):
        return ""
    key: str = event.key  # type: ignore[attr-defined]
    return key
