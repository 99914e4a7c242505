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
    Outcome,
    OutcomeUnknown,
    QueueFull,
    Refused,
    RelevoError,
    Retry,
)
from relevo.forks import ForkGuard
from relevo.kafka_options import bad_option, guarded, no_topic, options_for_producer, unreachable

_log: Final = logging.getLogger("relevo.client")
_POLL_S: Final = 0.2

Report = Callable[[KafkaError | None, Message], None]

_NO_TOPIC: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_REFUSED: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    }
)


def delivery_error(error: KafkaError, topic: str, *, first_try: bool = True) -> RelevoError:
    """What a failed delivery means for the caller.

    librdkafka doesn't tell whether a record that it gives up had been on the wire before: not of one that
    timed out, nor of one that was purged, nor of one that the broker refuses at the second try, after the
    answer to the first was lost. All of these are unknown.

    Args:
        error: librdkafka's.
        topic: Where the record was to go.
        first_try: Whether it can't have been sent before.
    """
    code = error.code()
    refusal: RelevoError
    if code in _NO_TOPIC:
        refusal = ClusterNotFound(
            f"Kafka has no topic {topic}: make the cluster's topics first (relevo topics init)"
        )
    elif code in _REFUSED:
        refusal = Refused(f"Kafka refused the record for {topic}: {error.str()}{_remedy(code)}")
    elif code == KafkaError._QUEUE_FULL:
        refusal = NotSent(f"the record for {topic} was not taken: {error.str()}")
    else:
        return OutcomeUnknown(
            f"no acknowledgement for a record to {topic}: {error.str()}. It may have arrived: "
            f"send it again with the same key"
        )
    return refusal if first_try else refusal.but(Outcome.UNKNOWN, Retry.SAME)


def _remedy(code: int) -> str:
    match code:
        case KafkaError.TOPIC_AUTHORIZATION_FAILED | KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            return ". Its user needs the right to write there, and to write idempotently"
        case KafkaError.MSG_SIZE_TOO_LARGE | KafkaError.RECORD_LIST_TOO_LARGE:
            return ". Store large variables elsewhere and send where"
        case _:
            return ""


class Sender:
    """A producer and the thread that serves it.

    librdkafka may give an idempotent producer up for good, where going on could write a record twice or out
    of order: whether those under way have arrived is unknown then, and no further one is taken. `fault` says
    why.

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
        config = options_for_producer(bootstrap, options, **defaults)
        self._trouble_at = float("-inf")
        self._last_error = ""
        self._note_error = config["error_cb"]
        try:
            self._producer = Producer({**config, "error_cb": self._trouble})
        except KafkaException as error:
            raise bad_option(error) from None
        self._lock = threading.Lock()
        # Held while a record is queued, and while the queue is closed: what is in it then is all of it.
        self._entrance = threading.Lock()
        self._room: deque[Future[None]] = deque()
        self._after: list[Callable[[], None]] = []
        self._fatal: KafkaError | None = None
        self._at_fault: Callable[[RelevoError], None] | None = None
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="relevo-sender", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Records and reports that wait in this process."""
        return len(self._producer)

    @property
    def alive(self) -> bool:
        """Whether its thread works."""
        return self._thread.is_alive()

    @property
    def fault(self) -> RelevoError | None:
        """Why it can't send anything any more, if it can't."""
        fatal = self._fatal
        if fatal is None:
            return None
        text = (
            f"librdkafka has given up this producer for good: {fatal.str()}. Nothing more was sent, and "
            f"nothing will be: make a new client, or start the process anew{_remedy(fatal.code())}"
        )
        return NotSent(text).but(Outcome.NOT_DONE, Retry.STOP)

    def at_fault(self, hook: Callable[[RelevoError], None]) -> None:
        """Call ``hook`` once with `fault`, as soon as there is one."""
        with self._lock:
            self._at_fault = guarded(hook)
            fault = self.fault
        if fault is not None:
            hook(fault)

    def check(self) -> None:
        """Do nothing while it can be used.

        Raises:
            UsedAfterFork: This is another process than the one it was made in.
            Closed: It was closed.
            NotSent: It can't send anything any more.
        """
        self._fork.check()
        if self._closed.is_set():
            raise Closed("the client was closed; nothing was sent")
        fault = self.fault
        if fault is not None:
            raise fault

    def failure(self, error: KafkaError, message: Message) -> RelevoError:
        """What a delivery report's error means for the caller."""
        # How long ago it was queued, in seconds.
        latency = message.latency()
        first_try = latency is not None and self._trouble_at < time.monotonic() - latency
        return delivery_error(error, message.topic() or "Kafka", first_try=first_try)

    @property
    def last_error(self) -> str:
        """What librdkafka reported last, as the end of a sentence; empty: nothing."""
        return f"; last trouble with the connection: {self._last_error}" if self._last_error else ""

    def _trouble(self, error: KafkaError) -> None:
        """Called by librdkafka; whatever was under way then may have been sent and be tried again."""
        self._trouble_at = time.monotonic()
        self._last_error = error.str()
        self._note_error(error)

    def after_reports(self, hook: Callable[[], None]) -> None:
        """Call ``hook`` after each round of delivery reports: one wake-up for many of them."""
        self._after = [*self._after, guarded(hook)]

    def try_send(self, topic: str, key: bytes, value: bytes, report: Report, partition: int = -1) -> bool:
        """Queue a record; ``report`` is called once, from the sender's thread.

        False: the queue is full, was closed in the meantime, or has a `fault` (`check` tells).

        Raises:
            Refused: librdkafka won't take it, whatever the queue.
        """
        try:
            with self._entrance:
                if self._closed.is_set() or self._fatal is not None:
                    return False
                self._producer.produce(topic, value, key, partition, report)
        except BufferError:
            return False
        except KafkaException as error:
            if self._is_over(error.args[0]):
                return False
            raise delivery_error(error.args[0], topic) from error
        return True

    def send_batch(
        self, topic: str, messages: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], KafkaError]]]:
        """Queue many records (``key``, ``value``, ``partition``, ``callback``).

        Returns:
            Those for which the queue has no room now (closed, or with a `fault`: all), and those that
            librdkafka won't take, with the reason; nobody calls these ones' ``callback``.
        """
        try:
            with self._entrance:
                if self._closed.is_set() or self._fatal is not None:
                    return messages, []
                taken = self._producer.produce_batch(topic, messages)
        except (BufferError, KafkaException):
            return messages, []
        if taken == len(messages):
            return [], []
        left, refused = [], []
        for message in messages:
            error = message.pop("_error", None)
            if error is None:
                continue
            known = isinstance(error, KafkaError) and error.code() != KafkaError._QUEUE_FULL
            if known and not self._is_over(error):
                refused.append((message, error))
            else:
                left.append(message)
        return left, refused

    def room(self) -> Future[None]:
        """Done as soon as the full queue has got shorter."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # who waits may be cancelled; that must not meet `set_result`
        with self._lock:
            self._room.append(future)
        return future

    def await_room(self, future: Future[None], timeout: float) -> bool:
        """Wait, in the caller's thread, ``timeout`` seconds for what `room` returned; False: in vain."""
        try:
            future.result(min(timeout, threading.TIMEOUT_MAX))
        except TimeoutError:
            return False
        return True

    def full(self) -> QueueFull:
        """The error of a caller that waited for room in vain."""
        return QueueFull(
            f"{self.queued} records wait for Kafka at {self._bootstrap}; this one was not queued"
            f"{self.last_error}"
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
            raise no_topic(self._bootstrap, topic, found.error)
        return len(found.partitions)

    def _serve(self) -> None:
        last_log = 0.0
        while not self._ended.is_set():
            try:
                served = self._producer.poll(_POLL_S)
            except Exception as error:  # a report that raised: the others are served in the next round
                over = isinstance(error, KafkaException) and self._is_over(error.args[0])
                if not over and time.monotonic() - last_log > 1:
                    _log.exception("a delivery report failed")
                    last_log = time.monotonic()
                served = 1
            if served:
                self._reported()

    def _is_over(self, error: KafkaError) -> bool:
        """Whether librdkafka says that this producer is of no more use; the hook hears of it once.

        It says so by raising from the next poll, with the reason, and for each new record without one.
        """
        if not error.fatal() and error.code() != KafkaError._FATAL:
            return False
        with self._lock:
            hook = self._at_fault if self._fatal is None else None
            self._fatal = error if self._fatal is None or error.fatal() else self._fatal
            fault = self.fault
        if hook is not None and fault is not None:
            hook(fault)
        return True

    def _reported(self) -> None:
        for hook in self._after:
            hook()
        if self._room:
            with self._lock:
                waiting, self._room = self._room, deque()
            for future in waiting:
                future.set_result(None)

    def close(self, timeout: float = 10.0) -> int:
        """Deliver what is queued, for ``timeout`` seconds at most; returns how many records were not.

        Nothing is taken from the start on: what came after the last look at the queue would neither be
        delivered nor reported.
        """
        if self._fork.foreign:
            return 0
        with self._entrance:
            if self._closed.is_set():
                return 0
            self._closed.set()
        self._reported()
        try:
            left = self._producer.flush(timeout)
        except KafkaException:
            left = len(self._producer)
        if left:
            self._producer.purge()
            left = self._producer.flush(1.0) or left
        self._ended.set()
        self._thread.join(5.0)
        self._reported()
        return int(left)
