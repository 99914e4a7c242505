"""Follows the job log for those who wait: one reader per process, reading only while somebody does.

Nobody needs to know which node leads: whatever is decided stands on the log, committed, and a failover in
between changes nothing.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from relevo import names
from relevo.errors import Closed, LogGap, RelevoError
from relevo.forks import ForkGuard
from relevo.kafka_options import no_topic, options_for_consumer, unreachable
from relevo.locate import search
from relevo_schemas.codec import decode
from relevo_schemas.errors import RecordError
from relevo_schemas.partitioning import partition_of
from relevo_schemas.records import Event

_log: Final = logging.getLogger("relevo.client")

POLL_S: Final = 0.01
LINGER_S: Final = 5.0
"""How long a partition is read on after the last one who waited, for the next one's sake."""
CALL_S: Final = 5.0
BATCH_MAX: Final = 500
STASH_MAX: Final = 64

Sink = Callable[[int, Event], None]


class Interest:
    """Somebody waits for events about one job. Ended by `cancel`.

    Attributes:
        key: The job's key.
        partition: The job's partition.
        position: Offset in the log partition from which on events are seen.
    """

    __slots__ = ("_follower", "_on_event", "_on_failure", "key", "partition", "position")

    def __init__(
        self,
        follower: Follower,
        key: str,
        partition: int,
        position: int,
        on_event: Sink,
        on_failure: Callable[[RelevoError], None],
    ) -> None:
        self._follower = follower
        self.key = key
        self.partition = partition
        self.position = position
        self._on_event = on_event
        self._on_failure = on_failure

    def cancel(self) -> None:
        """Wait no longer. Twice does no harm."""
        self._follower._drop(self)


class _View:
    """One log partition that is being read."""

    __slots__ = ("idle_since", "interests", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.interests: dict[bytes, list[Interest]] = {}
        self.idle_since: float | None = None


class Follower:
    """Reads the log partitions that somebody waits on, and tells each about its job's events.

    Args:
        bootstrap: ``host:port``, several separated by commas.
        cluster: The cluster.
        options: The user's librdkafka options.
    """

    def __init__(self, bootstrap: str, cluster: str, options: Mapping[str, Any]) -> None:
        self._bootstrap = bootstrap
        self._topic = names.log_topic(cluster)
        self._commands = names.commands_topic(cluster)
        self._config = options_for_consumer(
            bootstrap,
            options,
            # A group id is asked for, but no group is joined and nothing committed.
            {"group.id": f"{cluster}.follower", "auto.offset.reset": "error"},
            # A partition that is added, or sought back in, waits until the fetch under way is answered.
            fetch_wait_max_ms=20,
        )
        self._fork = ForkGuard("client")
        self._lock = threading.Lock()
        self._views: dict[int, _View] = {}
        self._calls: queue.SimpleQueue[Callable[[], bool] | None] = queue.SimpleQueue()
        self._partitions = 0
        self._consumer: Consumer | None = None
        self._searcher: Consumer | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def follow(
        self,
        key: str,
        on_event: Sink,
        on_failure: Callable[[RelevoError], None],
        *,
        partition: int | None = None,
        start: int | None = None,
    ) -> Future[Interest]:
        """Hear of every event about ``key`` from ``start`` on; None: from the log's end as it is now.

        The future is done when nothing written from then on can be missed: send the command after that.
        Callbacks come from the follower's thread, must be quick, and may hear of an event again.

        Args:
            key: The job's key.
            on_event: Called with the event's offset in its log partition and the event.
            on_failure: Called when the log can't be read on; no event follows.
            partition: The job's partition, where known.
            start: Offset in the log partition.
        """
        self._fork.check()
        future: Future[Interest] = Future()
        future.set_running_or_notify_cancel()
        make = partial(Interest, self, key, on_event=on_event, on_failure=on_failure)
        with self._lock:
            if self._closed:
                future.set_exception(Closed("the client was closed"))
                return future
            if partition is None and self._partitions:
                partition = partition_of(key, self._partitions)
            view = self._views.get(partition) if partition is not None else None
            if partition is not None and view is not None and (start is None or view.position <= start):
                future.set_result(self._join(view, make(partition=partition, position=view.position)))
                return future
            self._ensure_thread()
        self._calls.put(partial(self._attach, key, make, partition, start, future))
        return future

    def locate(self, partition: int, source: int, at_ms: int) -> Future[int]:
        """A position in the log from which on the event caused by the command at ``source`` can be read.

        Args:
            partition: The partition.
            source: Offset of the command.
            at_ms: Roughly when the command was sent, in milliseconds since the Unix epoch. It may be wrong:
                the position is proven by what stands there.
        """
        self._fork.check()
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                future.set_exception(Closed("the client was closed"))
                return future
            self._ensure_thread()
        self._calls.put(partial(self._locate, partition, source, at_ms, future))
        return future

    def hint(self, key: str) -> int | None:
        """A position in the log before whatever a command sent from now on causes; None: not known."""
        with self._lock:
            view = self._views.get(partition_of(key, self._partitions)) if self._partitions else None
            return view.position if view is not None else None

    def close(self) -> None:
        """End the thread; those who still wait hear of it."""
        if self._fork.foreign:
            return  # the lock may be held by a thread that doesn't exist here
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._calls.put(None)
            thread.join(10.0)

    # Any thread, with the lock

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="relevo-follower", daemon=True)
            self._thread.start()

    def _join(self, view: _View, interest: Interest) -> Interest:
        view.idle_since = None
        view.interests.setdefault(interest.key.encode(), []).append(interest)
        return interest

    def _drop(self, interest: Interest) -> None:
        key = interest.key.encode()
        with self._lock:
            view = self._views.get(interest.partition)
            waiting = view.interests.get(key) if view is not None else None
            if view is None or waiting is None or interest not in waiting:
                return
            waiting.remove(interest)
            if not waiting:
                del view.interests[key]
            if not view.interests:
                view.idle_since = time.monotonic()

    # The thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            _log.exception("following the log ended")
            self._fail_all(LogGap(f"following the log ended: {error}"))
        finally:
            self._fail_all(Closed("the client was closed"))
            for consumer in (self._consumer, self._searcher):
                if consumer is not None:
                    consumer.close()

    def _turn(self) -> bool:
        """One round; False: the end.

        What is asked is done before anything is read, which may wait; but of what asks Kafka, and may wait
        there, one only: those who wait already are read for in between.
        """
        try:
            call = self._calls.get_nowait() if self._views else self._calls.get()
            while True:
                if call is None:
                    return False
                if call():
                    break
                call = self._calls.get_nowait()
        except queue.Empty:
            pass
        if self._views:
            assert self._consumer is not None  # noqa: S101 - for the type checker
            first = self._consumer.poll(POLL_S)
            if first is not None:
                self._read([first, *self._consumer.consume(BATCH_MAX, 0)])
            self._let_go(time.monotonic())
        return True

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._config)
        return self._consumer

    def _attach(
        self,
        key: str,
        make: Callable[..., Interest],
        partition: int | None,
        start: int | None,
        future: Future[Interest],
    ) -> bool:
        """Whether Kafka had to be asked."""
        asks = partition is None and not self._partitions
        try:
            if partition is None:
                partition = partition_of(key, self._count())
            asks |= partition not in self._views
            interest = self._position(make, partition, start)
        except RelevoError as error:
            future.set_exception(error)
        except KafkaException as error:
            future.set_exception(unreachable(self._bootstrap, error))
        else:
            future.set_result(interest)
        return asks

    def _position(self, make: Callable[..., Interest], partition: int, start: int | None) -> Interest:
        consumer = self._open()
        view = self._views.get(partition)
        if view is None:
            position = self._end(partition) if start is None else start
            view = _View(position)
            consumer.incremental_assign([TopicPartition(self._topic, partition, position)])
            with self._lock:
                self._views[partition] = view
        elif start is not None and start < view.position:
            consumer.seek(TopicPartition(self._topic, partition, start))
            view.position = start
        with self._lock:
            return self._join(view, make(partition=partition, position=view.position))

    def _end(self, partition: int) -> int:
        """The end as a `read_committed` reader sees it: what is written from now on lies behind it."""
        found = self._open().get_watermark_offsets(TopicPartition(self._topic, partition), timeout=CALL_S)
        return int(found[1])

    def _count(self) -> int:
        if not self._partitions:
            found = self._open().list_topics(self._commands, timeout=CALL_S).topics[self._commands]
            if found.error is not None or not found.partitions:
                raise no_topic(self._bootstrap, self._commands, found.error)
            self._partitions = len(found.partitions)
        return self._partitions

    def _read(self, batch: list[Message]) -> None:
        for message in batch:
            partition = message.partition()
            view = self._views.get(partition) if partition is not None else None
            if view is None or partition is None:
                continue
            error = message.error()
            if error is not None:
                self._trouble(partition, view, error)
                continue
            offset, value = message.offset(), message.value()
            if offset is None or offset < view.position:
                continue
            with self._lock:
                view.position = offset + 1
                interested = view.interests.get(message.key() or b"", ())
                # Where one sought back, the others have heard it before, or don't ask for it.
                waiting = [each for each in interested if each.position <= offset]
            if waiting:
                self._tell(waiting, offset, value)

    def _tell(self, waiting: list[Interest], offset: int, value: bytes | None) -> None:
        try:
            event = decode(value)
        except RecordError as error:
            for interest in waiting:
                interest._on_failure(
                    LogGap(f"{self._topic} [{interest.partition}] at {offset} can't be read: {error}")
                )
            return
        if not isinstance(event, Event):
            return
        for interest in waiting:
            try:
                interest._on_event(offset, event)
            except Exception:
                _log.exception("hearing of an event failed")

    def _trouble(self, partition: int, view: _View, error: KafkaError) -> None:
        if error.code() not in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            _log.debug("%s [%d]: %s", self._topic, partition, error.str())
            return
        gap = LogGap(
            f"{self._topic} [{partition}] has no record at {view.position} any more: "
            f"the log was trimmed while it was followed"
        )
        self._fail(partition, gap)
        self._forget([partition])

    def _let_go(self, now: float) -> None:
        idle = [
            partition
            for partition, view in self._views.items()
            if view.idle_since is not None and now - view.idle_since > LINGER_S
        ]
        if idle:
            self._forget(idle)

    def _forget(self, partitions: list[int]) -> None:
        with self._lock:
            gone = [each for each in partitions if not self._views[each].interests]
            for each in gone:
                del self._views[each]
        if gone and self._consumer is not None:
            self._consumer.incremental_unassign([TopicPartition(self._topic, each) for each in gone])

    def _fail(self, partition: int, error: RelevoError) -> None:
        with self._lock:
            view = self._views[partition]
            waiting = [each for some in view.interests.values() for each in some]
            view.interests.clear()
            view.idle_since = 0.0
        for interest in waiting:
            interest._on_failure(error)

    def _fail_all(self, error: RelevoError) -> None:
        for partition in list(self._views):
            self._fail(partition, error)

    # The past

    def _locate(self, partition: int, source: int, at_ms: int, future: Future[int]) -> bool:
        try:
            if self._searcher is None:
                self._searcher = Consumer(self._config)
            future.set_result(search(self._searcher, self._topic, partition, source, at_ms))
        except KafkaException as error:
            future.set_exception(unreachable(self._bootstrap, error))
        return True
