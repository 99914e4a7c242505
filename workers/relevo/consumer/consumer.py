"""The one thread that owns the consumer of a job type: reads, commits, and hands partitions over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, KafkaException, Message, TopicPartition

from relevo.consumer.backpressure import Backpressure
from relevo.consumer.commits import Commits, Granted
from relevo.consumer.offsets import Entry, OffsetTracker
from relevo.consumer.options import make_consumer, options_for_worker, put_out
from relevo.consumer.reading import Reading
from relevo.consumer.restarts import GONE, begin_anew
from relevo.consumer.starts import learn_ends, starts_of
from relevo.consumer.topic_wait import await_topic
from relevo.errors import RelevoError
from relevo.kafka_options import guarded
from relevo.stats import WorkerStats

_log: Final = logging.getLogger("relevo.worker")

POLL_S: Final = 0.1
BATCH_MAX: Final = 500
COMMIT_EVERY_S: Final = 0.25

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
        concurrency: How many of them run at once.
        drain_s: How long started work may finish when its partition is revoked, in seconds.
        commit_first: What was read is committed before it runs, by `commit_first`, and not after (at most
            once).
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
        concurrency: int = 1,
        commit_first: bool = False,
        name: str = "worker",
    ) -> None:
        self._topic = topic
        self._tracker = tracker
        self._deliver = deliver
        self._drain_s = drain_s
        self._commits_first = commit_first
        self._stats = stats
        self._group = group
        self._backpressure = Backpressure(tracker, buffer, concurrency, self._grant)
        self._commits = Commits(topic, tracker, stats, self._give_up)
        self._config = options_for_worker(
            bootstrap, options, group, drain_s, on_commit=guarded(self._commits.answered)
        )
        self._consumer: Any = None
        self._stop = threading.Event()
        self._check_holes = False
        self._ends_missing = False
        self._next_commit = 0.0
        self.reading = Reading(tracker)
        #: Why it can't go on, if it can't.
        self.fault: RelevoError | None = None
        #: Set once the topic is there and the group was asked for partitions.
        self.subscribed = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"relevo-consumer-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            ConfigurationError: An option can't be right.
        """
        if self._consumer is None:
            self._consumer = make_consumer(self._config)
        self.thread.start()

    def stop(self, drain_s: float | None = None) -> None:
        """Ask the thread to drain for so long, commit, leave the group and end."""
        self._drain_s = self._drain_s if drain_s is None else drain_s
        self._stop.set()

    def abandon(self) -> None:
        """Ask the thread to end at once: what runs is not waited for."""
        self.stop(0.0)

    def commit_first(self, entries: list[Entry], granted: Granted) -> None:
        """`Commits.wish`: from any thread."""
        self._commits.wish(entries, granted)

    # The thread

    def _run(self) -> None:
        try:
            try:
                await_topic(self._consumer, self._topic, self._stop)
                self.subscribe(self._consumer)
                self.subscribed.set()
                while not self._stop.is_set():
                    self._turn()
                self._leave()
            finally:
                self._consumer.close()
        except Exception as error:
            _log.exception("the consumer of %s ended", self._topic)
            self.fault = self.fault or RelevoError(f"the consumer of {self._topic} ended: {error!r}")

    def _give_up(self, error: KafkaError) -> None:
        """The group has put us out, and librdkafka will say nothing more: others have our partitions."""
        self._tracker.end([(owned.topic, owned.partition) for owned in self._tracker.owned()])
        if self.fault is None:
            self.fault = put_out(self._group, self._config.get("group.instance.id"), error)
            _log.error("%s", self.fault)
        self.abandon()

    def subscribe(self, consumer: Consumer) -> None:
        """Join the group."""
        consumer.subscribe(
            [self._topic],
            on_assign=guarded(self._on_assign),
            on_revoke=guarded(self._on_revoke),
            on_lost=guarded(self._on_lost),
        )

    def _turn(self) -> None:
        self._grant()
        room = self._backpressure.room(self._consumer)
        patience = self._patience(room)
        first = self._read(lambda: self._consumer.poll(patience))
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
        self.reading.came_round(self._consumer, self._backpressure.paused, now)
        if now >= self._next_commit:
            self._next_commit = now + COMMIT_EVERY_S
            self._commit_async()
        if self._check_holes:
            self._check_holes = False
            self._mend_holes()

    def _patience(self, room: int) -> float:
        """How long the next read may wait for a message, in seconds."""
        if room <= 0:
            return 0.0
        if not self._commits_first or not self._tracker.unstarted:
            return POLL_S
        # A slot that gets free needs a commit before its next job starts, and nothing ends a read for that.
        self._tracker.wait_call(POLL_S)
        self._grant()
        return 0.0

    def _read(self, call: Callable[[], Any]) -> Any:
        """What ``call`` has read; None where it raised, which may have taken messages with it."""
        try:
            return call()
        except Exception:
            _log.exception("reading %s failed", self._topic)
            self._stats.add("callback_errors")
            self._check_holes = True
            return None

    def _free(self) -> int:
        return self._backpressure.free

    def _take(self, batch: list[Message]) -> None:
        messages: list[Message] = []
        for message in batch:
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() in GONE:
                # What was read before it belongs to what was there before, and its offsets too.
                gone = (message.topic(), message.partition())
                self._note([each for each in messages if (each.topic(), each.partition()) == gone])
                messages = [each for each in messages if (each.topic(), each.partition()) != gone]
                self._backpressure.assigned(
                    self._consumer, begin_anew(self._consumer, self._tracker, message)
                )
            elif error.code() == KafkaError._FATAL:
                self._give_up(error)
            elif error.code() != KafkaError._PARTITION_EOF:
                _log.warning("reading %s: %s", self._topic, error.str())
        self._note(messages)

    def _note(self, messages: list[Message]) -> None:
        """Begin what was read, and hand it on."""
        if not messages:
            return
        places = [_place(each) for each in messages]
        entries = self._tracker.begin(places)
        if None in entries:
            self._adopt(places)
        arrivals: Arrivals = [
            (entry, message.value() or b"")
            for entry, message in zip(entries, messages, strict=True)
            if entry is not None
        ]
        if not arrivals:
            return
        if self._ends_missing:
            self._ends_missing = not learn_ends(self._consumer, self._tracker)
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
        if not self._commits_first:
            self._commits.ask(self._consumer)
            return
        # One at a time: an older one that is tried again must not set back a newer one.
        self._grant()
        self._commits.now(self._consumer, self._tracker.owned())

    def _grant(self) -> None:
        if self._commits_first:
            self._commits.grant(self._consumer)

    # Assignment

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._stats.add("rebalances")
        consumer.incremental_assign(self._own(partitions))
        self._backpressure.assigned(consumer, partitions)

    def _own(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Begin an ownership of each; returns where to read from.

        Whatever is there by now may have been started before: an owner runs on behind a job that takes long,
        up to 20 times its own buffer, and the marks of transactions take offsets too.
        """
        places = []
        for each, start, end in starts_of(self._consumer, self._topic, partitions):
            self._tracker.assign(each.topic, each.partition, start, end)
            self._ends_missing = self._ends_missing or end is None
            offset = OFFSET_STORED if start is None else start
            places.append(TopicPartition(each.topic, each.partition, offset))
        return places

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._stats.add("rebalances")
        self._hand_over([(each.topic, each.partition) for each in partitions], self._drain_s)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Somebody else has them already: a commit could only do damage."""
        self._stats.add("rebalances")
        _log.warning("lost %d partitions of %s", len(partitions), self._topic)
        self._tracker.end([(each.topic, each.partition) for each in partitions])
        consumer.incremental_unassign(partitions)
        self._grant()

    def _hand_over(self, partitions: list[tuple[str, int]], drain_s: float) -> None:
        """Start nothing more, let what runs finish for a while, commit, and let go: one deadline for all."""
        deadline = time.monotonic() + drain_s
        ownerships = self._tracker.close(partitions)
        while not self._tracker.wait_idle(ownerships, deadline):
            if time.monotonic() >= deadline:
                told = (
                    "%s: jobs still run after %g s of draining; whoever gets them next waits for their claims"
                )
                _log.warning(told, self._topic, self._drain_s)
                break
            self._grant()
        self._commits.now(self._consumer, ownerships)
        self._tracker.end(partitions)
        self._grant()

    def _leave(self) -> None:
        """Hand over everything while still a member; `close` then finds nothing left to revoke.

        Goes on polling and committing while it waits: a drain may be longer than the poll interval, and
        whoever kills us before its end has all that was finished.
        """
        self._backpressure.stop(self._consumer)
        since = now = time.monotonic()
        while True:
            owned = [(each.topic, each.partition) for each in self._tracker.owned()]
            closed = self._tracker.close(owned)
            left = since + self._drain_s - now
            if self._tracker.wait_idle(closed, now + min(left, POLL_S)) or left <= 0:
                break
            # Paused: what comes all the same is read by the next owner.
            self._read(lambda: self._consumer.poll(0))
            self._commit_async()
            now = time.monotonic()
            self.reading.came_round(self._consumer, True, now)
        self._hand_over(owned, 0.0)


def _place(message: Message) -> tuple[str, int, int]:
    """Topic, partition and offset; the types allow None for messages that were never in Kafka."""
    return message.topic(), message.partition(), message.offset()  # type: ignore[return-value]
