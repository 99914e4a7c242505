"""The one thread that owns the consumer of a job type: reads, commits, and hands partitions over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, KafkaException, Message, TopicPartition

from relevo.kafka_options import guarded, membership, options_for_consumer
from relevo.offsets import Entry, OffsetTracker, Ownership
from relevo.restarts import GONE, begin_anew
from relevo.stats import WorkerStats
from relevo.topic_wait import await_topic

_log: Final = logging.getLogger("relevo.worker")

POLL_S: Final = 0.1
BATCH_MAX: Final = 500
COMMIT_EVERY_S: Final = 0.25
_FULL_WAIT_S: Final = 0.5
_CALL_S: Final = 5.0

Arrivals = list[tuple[Entry, bytes]]


class ActivationConsumer:
    """Reads one activation topic as a member of its group.

    Polling never stops for long: where the worker has no room, the thread waits a moment for it, and if
    there is none the partitions are paused and polled in that state. Everything that touches the consumer
    runs in this one thread.

    Args:
        bootstrap: ``host:port``, several separated by commas.
        options: The user's librdkafka options.
        topic: The activation topic.
        group: The consumer group.
        tracker: Keeps what may be committed.
        deliver: Takes what was read; called in this thread, must not block.
        buffer: How many activations may be unfinished at once.
        drain_s: How long started work may finish when its partition is revoked, in seconds.
        commit_first: Commit before delivering (at most once).
        stats: Counters.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, Any],
        *,
        topic: str,
        group: str,
        tracker: OffsetTracker,
        deliver: Callable[[Arrivals], None],
        buffer: int,
        drain_s: float,
        stats: WorkerStats,
        commit_first: bool = False,
        name: str = "worker",
    ) -> None:
        self._topic = topic
        self._tracker = tracker
        self._deliver = deliver
        self._buffer = buffer
        self._drain_s = drain_s
        self._commit_first = commit_first
        self._stats = stats
        self._config = options_for_consumer(
            bootstrap,
            options,
            {"group.id": group, "auto.offset.reset": "error", "on_commit": guarded(self._on_commit)},
            **membership(options),
            # A topic that is made, or gets partitions, while we run.
            topic_metadata_refresh_interval_ms=5_000,
        )
        self._consumer: Any = None
        self._stop = threading.Event()
        self._paused = False
        self._check_holes = False
        self._next_commit = 0.0
        #: Set once the topic is there and the group was asked for partitions.
        self.subscribed = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"relevo-consumer-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self, drain_s: float | None = None) -> None:
        """Ask the thread to drain for so long, commit, leave the group and end."""
        self._drain_s = self._drain_s if drain_s is None else drain_s
        self._stop.set()

    def abandon(self) -> None:
        """Ask the thread to end at once: what runs is not waited for."""
        self.stop(0.0)

    # The thread

    def _run(self) -> None:
        try:
            self._consumer = Consumer(self._config)
            try:
                await_topic(self._consumer, self._topic, self._stop)
                self.subscribe(self._consumer)
                self.subscribed.set()
                while not self._stop.is_set():
                    self._turn()
                self._leave()
            finally:
                self._consumer.close()
        except Exception:
            _log.exception("the consumer of %s ended", self._topic)

    def subscribe(self, consumer: Consumer) -> None:
        """Join the group."""
        consumer.subscribe(
            [self._topic],
            on_assign=guarded(self._on_assign),
            on_revoke=guarded(self._on_revoke),
            on_lost=guarded(self._on_lost),
        )

    def _turn(self) -> None:
        room = self._room()
        timeout = POLL_S if room > 0 else 0.0
        first = self._read(lambda: self._consumer.poll(timeout))
        if first is not None:
            # Noted before more is read: a callback served by that may take its partition away, and a message
            # of a former ownership must not count in the next.
            self._take([first])
            if room > 1:
                more = self._read(lambda: self._consumer.consume(min(room, BATCH_MAX) - 1, 0))
                if more is None:
                    self._read_again()
                else:
                    self._take(more)
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + COMMIT_EVERY_S
            self._commit_async()
        if self._check_holes:
            self._check_holes = False
            self._mend_holes()

    def _read(self, call: Callable[[], Any]) -> Any:
        """What ``call`` has read; None where it raised, which may have taken messages with it."""
        try:
            return call()
        except Exception:
            _log.exception("reading %s failed", self._topic)
            self._stats.add("callback_errors")
            self._check_holes = True
            return None

    def _room(self) -> int:
        """How many activations may be read now; pauses and resumes where that changes for longer."""
        room = self._free()
        if room <= 0:
            self._tracker.wait_below(self._buffer, POLL_S if self._paused else _FULL_WAIT_S)
            room = self._free()
        if (room <= 0) != self._paused:
            self._paused = room <= 0
            self._apply_pause(
                [TopicPartition(owned.topic, owned.partition) for owned in self._tracker.owned()]
            )
        return room

    def _free(self) -> int:
        # A job that runs for very long holds back all behind it: what a crash would repeat is bounded too.
        if self._tracker.tracked >= 20 * self._buffer:
            return 0
        return self._buffer - self._tracker.unfinished

    def _apply_pause(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        try:
            (self._consumer.pause if self._paused else self._consumer.resume)(partitions)
        except KafkaException as error:
            _log.debug("pause or resume: %s", error)

    def _take(self, batch: list[Message]) -> None:
        messages = []
        for message in batch:
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() in GONE:
                begin_anew(self._consumer, self._tracker, message)
                self._paused = False  # the new assignment isn't
            elif error.code() != KafkaError._PARTITION_EOF:
                _log.warning("reading %s: %s", self._topic, error.str())
        places = [_place(each) for each in messages]
        entries = self._tracker.begin(places)
        if None in entries:
            self._adopt(places)
        arrivals: Arrivals = [
            (entry, message.value() or b"")
            for entry, message in zip(entries, messages, strict=True)
            if entry is not None
        ]
        if not arrivals or (self._commit_first and not self._commit_before([entry for entry, _ in arrivals])):
            return
        self._stats.add("received", len(arrivals))
        self._deliver(arrivals)

    def _adopt(self, places: list[tuple[str, int, int]]) -> None:
        """Own what librdkafka gives us although our own part of the assignment failed.

        Only what it calls assigned: a commit for a partition that went to another worker would be taken, and
        skip that one's jobs.
        """
        owned = {(each.topic, each.partition) for each in self._tracker.owned()}
        missing = {(topic, partition) for topic, partition, _ in places} - owned
        missing &= {(each.topic, each.partition) for each in self._consumer.assignment()}
        if not missing:
            return
        _log.warning("%s: %d partitions were assigned without our noticing", self._topic, len(missing))
        for each in self._own([TopicPartition(topic, partition) for topic, partition in sorted(missing)]):
            # What was read of it already comes again, with whatever lies before it.
            read = min(at for topic, number, at in places if (topic, number) == (each.topic, each.partition))
            self._seek(each.topic, each.partition, each.offset if each.offset >= 0 else read)

    # Positions

    def _mend_holes(self) -> None:
        """After a read that failed half-way: read again what was taken from librdkafka and never reached us.

        Its position moves when it gives a message out, ours when the message is noted. It also moves over
        control records, so a difference alone proves nothing; reading again from where we are never does
        harm.
        """
        owned = {(each.topic, each.partition): each for each in self._tracker.owned()}
        if not owned:
            return
        try:
            positions = self._consumer.position(
                [TopicPartition(topic, partition) for topic, partition in owned]
            )
        except KafkaException as error:
            _log.debug("position: %s", error)
            return
        for found in positions:
            expected = owned[found.topic, found.partition].next
            if found.error is not None or found.offset < 0 or expected is None or found.offset <= expected:
                continue
            _log.error(
                "%s [%d]: messages may have been swallowed, reading again from offset %d",
                found.topic,
                found.partition,
                expected,
            )
            self._stats.add("holes")
            self._seek(found.topic, found.partition, expected)

    def _read_again(self) -> None:
        """A batch was swallowed, and librdkafka's positions needn't tell: fetch whatever we haven't got."""
        for owned in self._tracker.owned():
            if owned.next is not None:
                self._seek(owned.topic, owned.partition, owned.next)

    def _seek(self, topic: str, partition: int, offset: int) -> None:
        try:
            self._consumer.seek(TopicPartition(topic, partition, offset))
        except KafkaException as error:
            _log.warning("seek %s [%d] to %d: %s", topic, partition, offset, error)
            self._check_holes = True

    def _commit_async(self) -> None:
        offsets = self._to_commit(None)
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._commit_failed(error.args[0])

    def _commit_sync(self, ownerships: list[Ownership]) -> bool:
        offsets = self._to_commit(ownerships)
        if not offsets:
            return True
        try:
            taken = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._commit_failed(error.args[0])
            return False
        self._note_committed(taken)
        return all(each.error is None for each in taken)

    def _to_commit(self, ownerships: list[Ownership] | None) -> list[TopicPartition]:
        return [
            TopicPartition(owned.topic, owned.partition, offset)
            for owned, offset in self._tracker.committable(ownerships)
        ]

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is not None:
            self._commit_failed(error)
        else:
            self._note_committed(partitions)

    def _note_committed(self, partitions: list[TopicPartition]) -> None:
        owned = {(each.topic, each.partition): each for each in self._tracker.owned()}
        for each in partitions:
            if each.error is not None:
                self._commit_failed(each.error)
            elif each.offset >= 0 and (each.topic, each.partition) in owned:
                self._tracker.committed(owned[each.topic, each.partition], each.offset)
                self._stats.add("commits")

    def _commit_failed(self, error: KafkaError) -> None:
        # Nothing is lost: the next commit says the same or more, and so does the next owner's dedup store.
        if error.code() != KafkaError._NO_OFFSET:
            self._stats.add("commit_errors")
            _log.info("commit for %s refused: %s", self._topic, error.str())

    def _commit_before(self, entries: list[Entry]) -> bool:
        """At most once: what is not committed is not run, but read again."""
        self._tracker.finish(entries)
        ownerships = list({entry.ownership: None for entry in entries})
        if self._commit_sync(ownerships):
            return True
        for owned in ownerships:
            offset = self._tracker.rewind(owned)
            if offset >= 0:
                self._seek(owned.topic, owned.partition, offset)
        return False

    # Assignment

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._stats.add("rebalances")
        consumer.incremental_assign(self._own(partitions))
        if self._paused:
            self._apply_pause(partitions)

    def _own(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Begin an ownership of each; returns where to read from."""
        places = []
        for each, start, end in self._starts(partitions):
            doubtful_below = min(end, start + self._buffer) if start is not None else end
            self._tracker.assign(each.topic, each.partition, start, doubtful_below)
            offset = OFFSET_STORED if start is None else start
            places.append(TopicPartition(each.topic, each.partition, offset))
        return places

    def _starts(self, partitions: list[TopicPartition]) -> list[tuple[TopicPartition, int | None, int]]:
        """For each partition where it goes on (None: librdkafka has to find out), and where it ends now."""
        deadline = time.monotonic() + _CALL_S
        found: list[tuple[TopicPartition, int | None, int]] = []
        try:
            for each in self._consumer.committed(partitions, timeout=_CALL_S):
                left = max(0.1, deadline - time.monotonic())
                low, high = self._consumer.get_watermark_offsets(each, timeout=left)
                start = None if each.error is not None else each.offset if each.offset >= 0 else low
                found.append((each, start, high))
        except KafkaException as error:
            _log.info("positions of %s: %s", self._topic, error)
        known = {each.partition for each, _, _ in found}
        return found + [(each, None, 0) for each in partitions if each.partition not in known]

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._stats.add("rebalances")
        self._hand_over([(each.topic, each.partition) for each in partitions])
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Somebody else has them already: a commit could only do damage."""
        self._stats.add("rebalances")
        _log.warning("lost %d partitions of %s", len(partitions), self._topic)
        self._tracker.end([(each.topic, each.partition) for each in partitions])
        consumer.incremental_unassign(partitions)

    def _hand_over(self, partitions: list[tuple[str, int]]) -> None:
        """Start nothing more, let what runs finish for a while, commit, and let go: one deadline for all."""
        deadline = time.monotonic() + self._drain_s
        ownerships = self._tracker.close(partitions)
        if ownerships and not self._tracker.wait_idle(ownerships, deadline):
            _log.warning(
                "%s: jobs still run after %g s of draining; whoever gets them next waits for their claims",
                self._topic,
                self._drain_s,
            )
        self._commit_sync(ownerships)
        self._tracker.end(partitions)

    def _leave(self) -> None:
        """Hand over everything while still a member; `close` then finds nothing left to revoke."""
        self._hand_over([(owned.topic, owned.partition) for owned in self._tracker.owned()])


def _place(message: Message) -> tuple[str, int, int]:
    """Topic, partition and offset; the types allow None for messages that were never in Kafka."""
    return message.topic(), message.partition(), message.offset()  # type: ignore[return-value]
