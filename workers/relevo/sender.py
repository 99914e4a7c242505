"""The one producer of a process: sends commands, serves delivery reports, and says when it is full."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from relevo.errors import (
    Closed,
    ClusterNotFound,
    NotSent,
    OutcomeUnknown,
    QueueFull,
    Refused,
    RelevoError,
)
from relevo.forks import ForkGuard
from relevo.kafka_options import guarded, options_for_producer, unreachable

_log: Final = logging.getLogger("relevo.client")
_POLL_S: Final = 0.2

Report = Callable[[KafkaError | None, Message], None]

_REFUSED: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    }
)
_NOT_SENT: Final = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._QUEUE_FULL}
)


def delivery_error(error: KafkaError, topic: str) -> RelevoError:
    """What a failed delivery means for the caller.

    librdkafka doesn't tell whether a record that timed out had been on the wire, so a time-out is unknown.
    """
    code = error.code()
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return ClusterNotFound(
            f"Kafka has no topic {topic}: make the cluster's topics first (relevo topics init)"
        )
    if code in _REFUSED:
        return Refused(f"Kafka refused the record for {topic}: {error.str()}")
    if code in _NOT_SENT:
        return NotSent(f"the record for {topic} was not taken: {error.str()}")
    return OutcomeUnknown(
        f"no acknowledgement for a record to {topic}: {error.str()}. It may have arrived: "
        f"send it again with the same key"
    )


class Sender:
    """A producer and the thread that serves it.

    Args:
        bootstrap: ``host:port``, several separated by commas.
        options: The user's librdkafka options.
        what: What to call it when it is used after a fork.
        defaults: Further librdkafka options that the user may override.
    """

    def __init__(
        self, bootstrap: str, options: Mapping[str, Any], *, what: str = "client", **defaults: Any
    ) -> None:
        self._fork = ForkGuard(what)
        self._bootstrap = bootstrap
        self._producer = Producer(options_for_producer(bootstrap, options, **defaults))
        self._lock = threading.Lock()
        self._room: deque[Future[None]] = deque()
        self._after: list[Callable[[], None]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="relevo-sender", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Records and reports that wait in this process."""
        return len(self._producer)

    def check(self) -> None:
        """Do nothing while it can be used.

        Raises:
            UsedAfterFork: This is another process than the one it was made in.
            Closed: It was closed.
        """
        self._fork.check()
        if self._closed.is_set():
            raise Closed("the client was closed")

    def after_reports(self, hook: Callable[[], None]) -> None:
        """Call ``hook`` after each round of delivery reports: one wake-up for many of them."""
        self._after = [*self._after, guarded(hook)]

    def try_send(self, topic: str, key: bytes, value: bytes, report: Report, partition: int = -1) -> bool:
        """Queue a record; ``report`` is called once, from the sender's thread. False: the queue is full.

        Raises:
            Refused: librdkafka won't take it, whatever the queue.
        """
        try:
            self._producer.produce(topic, value, key, partition, report)
        except BufferError:
            return False
        except KafkaException as error:
            raise delivery_error(error.args[0], topic) from error
        return True

    def send_batch(self, topic: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Queue many records (``key``, ``value``, ``partition``, ``callback``); returns those not taken."""
        try:
            taken = self._producer.produce_batch(topic, messages)
        except (BufferError, KafkaException):
            taken = -1
        if taken == len(messages):
            return []
        left = [message for message in messages if message.pop("_error", None) is not None]
        return left if taken >= 0 else messages

    def room(self) -> Future[None]:
        """Done as soon as the full queue has got shorter."""
        future: Future[None] = Future()
        with self._lock:
            self._room.append(future)
        return future

    def await_room(self, future: Future[None], deadline: float) -> None:
        """Wait, in the caller's thread, for what `room` returned.

        Raises:
            QueueFull: It isn't done at ``deadline`` (monotonic seconds).
        """
        try:
            future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise self.full() from error

    def full(self) -> QueueFull:
        """The error of a caller that waited for room in vain."""
        return QueueFull(
            f"{self.queued} records wait for Kafka at {self._bootstrap}; this one was not queued"
        )

    def partitions(self, topic: str, timeout: float = 10.0) -> int:
        """Number of partitions of ``topic``. Asks Kafka, so it blocks.

        Raises:
            Unreachable: Kafka doesn't answer.
            ClusterNotFound: There is no such topic.
        """
        try:
            found = self._producer.list_topics(topic, timeout=timeout).topics[topic]
        except KafkaException as error:
            raise unreachable(self._bootstrap, error) from error
        if found.error is not None or not found.partitions:
            raise ClusterNotFound(
                f"Kafka at {self._bootstrap} has no topic {topic}: make the cluster's topics first"
            )
        return len(found.partitions)

    def _serve(self) -> None:
        last_log = 0.0
        while not self._closed.is_set():
            try:
                served = self._producer.poll(_POLL_S)
            except Exception:  # a report that raised: the others are served in the next round
                if time.monotonic() - last_log > 1:
                    _log.exception("a delivery report failed")
                    last_log = time.monotonic()
                served = 1
            if served:
                self._reported()

    def _reported(self) -> None:
        for hook in self._after:
            hook()
        if self._room:
            with self._lock:
                waiting, self._room = self._room, deque()
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def close(self, timeout: float = 10.0) -> int:
        """Deliver what is queued, for ``timeout`` seconds at most; returns how many records were not."""
        if self._fork.foreign or self._closed.is_set():
            return 0
        try:
            left = self._producer.flush(timeout)
        except KafkaException:
            left = len(self._producer)
        if left:
            self._producer.purge()
            left = self._producer.flush(1.0) or left
        self._closed.set()
        self._thread.join(5.0)
        self._reported()
        return int(left)
