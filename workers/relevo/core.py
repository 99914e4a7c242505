"""What a client does, whether its caller blocks or awaits: see `steps`."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, Message

from relevo import names
from relevo.errors import (
    DecisionTimeout,
    InvalidRequest,
    OutcomeUnknown,
    Rejected,
    RelevoError,
    ResultTimeout,
)
from relevo.follower import Follower, Interest
from relevo.requests import NewJob
from relevo.results import FINISHED_STATES, CreateResult, JobHandle, JobResult, finish_of
from relevo.sender import Sender, delivery_error
from relevo.steps import Steps, Wait
from relevo_schemas import commands, events
from relevo_schemas.codec import encode
from relevo_schemas.errors import RecordError
from relevo_schemas.records import Command, Event

WaitFor = Literal["accepted", "decided"]
IN_FLIGHT_MAX: Final = 5_000


class Receipt:
    """Where Kafka put a record."""

    __slots__ = ("at", "offset", "partition")

    def __init__(self, message: Message) -> None:
        self.partition: int = message.partition() or 0
        self.offset: int = message.offset() or 0
        self.at: int = message.timestamp()[1]


class Core:
    """The shared part of `Client` and `AsyncClient`.

    Args:
        bootstrap: ``host:port``, several separated by commas.
        cluster: The cluster.
        options: The user's librdkafka options.
    """

    def __init__(self, bootstrap: str, cluster: str, options: Mapping[str, Any]) -> None:
        self.bootstrap = bootstrap
        self.cluster = names.check_cluster(cluster)
        self.options = dict(options)
        self.topic = names.commands_topic(cluster)
        self.sender = Sender(bootstrap, options, linger_ms=1, delivery_timeout_ms=30_000)
        self.follower = Follower(bootstrap, cluster, options)

    def close(self, timeout: float) -> int:
        """Deliver what is queued and end the threads; returns how many records were not delivered."""
        left = self.sender.close(timeout)
        self.follower.close()
        return left

    # Calls, as steps

    def create(self, job: NewJob, wait: WaitFor, timeout: float) -> Steps[JobHandle]:
        """Create a job."""
        _check_wait(wait, timeout)
        self.sender.check()
        spec = job.spec()
        value = _encode(commands.CreateJob(spec))
        return self._command(spec.key, value, wait, timeout, "CreateJob")

    def command(self, key: str, command: Command, wait: WaitFor, timeout: float) -> Steps[JobHandle]:
        """Send any other command about a job."""
        _check_wait(wait, timeout)
        self.sender.check()
        return self._command(key, _encode(command), wait, timeout, type(command).__name__)

    def _command(self, key: str, value: bytes, wait: WaitFor, timeout: float, kind: str) -> Steps[JobHandle]:
        deadline = time.monotonic() + timeout
        if wait == "accepted":
            receipt = yield from self._send(key, value, deadline)
            return JobHandle(key, receipt.partition, receipt.offset, receipt.at)
        decision = _Decision(key, kind)
        interest: Interest = yield from self._follow(key, decision.heard, decision.failed, deadline)
        try:
            receipt = yield from self._send(key, value, deadline)
            if receipt.partition != interest.partition:
                raise OutcomeUnknown(
                    f"the number of partitions of {self.topic} has changed: the command is in "
                    f"{receipt.partition}, and was expected in {interest.partition}. Ask again with the same key"
                )
            decision.sent_as(receipt.offset)
            try:
                found: _Found = yield Wait(decision.future, deadline)
            except TimeoutError as error:
                raise DecisionTimeout(
                    f"Kafka has the {kind} of job {key!r}, the engine has not decided it in {timeout:g} s. "
                    f"Does the cluster {self.cluster!r} run?"
                ) from error
        finally:
            interest.cancel()
        return JobHandle(
            key,
            receipt.partition,
            receipt.offset,
            receipt.at,
            found.created,
            found.state,
            log_offset=found.at,
        )

    def _follow(
        self,
        key: str,
        heard: Callable[[int, Event], None],
        failed: Callable[[RelevoError], None],
        deadline: float,
        *,
        partition: int | None = None,
        start: int | None = None,
    ) -> Steps[Interest]:
        following = self.follower.follow(key, heard, failed, partition=partition, start=start)
        try:
            interest: Interest = yield Wait(following, deadline)
        except BaseException:
            # It may come after we have stopped waiting for it.
            following.add_done_callback(lambda late: late.result().cancel() if not late.exception() else None)
            raise
        return interest

    def _send(self, key: str, value: bytes, deadline: float) -> Steps[Receipt]:
        future: Future[Receipt] = Future()
        future.set_running_or_notify_cancel()
        report = partial(_settle, future, self.topic)
        while not self.sender.try_send(self.topic, key.encode(), value, report):
            try:
                yield Wait(self.sender.room(), deadline)
            except TimeoutError as error:
                raise self.sender.full() from error
        try:
            receipt: Receipt = yield Wait(future, deadline)
        except TimeoutError as error:
            raise OutcomeUnknown(
                f"no acknowledgement from Kafka at {self.bootstrap} for job {key!r} in time. It may "
                f"still get there: send it again with the same key"
            ) from error
        return receipt

    def result(self, handle: JobHandle, timeout: float) -> Steps[JobResult]:
        """Wait until a job has ended."""
        if not isinstance(handle, JobHandle):
            raise InvalidRequest(
                "await_result takes the handle that create returned: only it says where in the log to look"
            )
        _check_wait("decided", timeout)
        self.sender.check()
        return self._result(handle, timeout)

    def _result(self, handle: JobHandle, timeout: float) -> Steps[JobResult]:
        deadline = time.monotonic() + timeout
        if handle.state in FINISHED_STATES:
            return JobResult(handle.key, handle.state or "")
        start = handle.log_offset
        ending = _Ending(handle)
        try:
            if start is None:
                start = yield Wait(self.follower.locate(handle.partition, handle.offset, handle.at), deadline)
            interest: Interest = yield from self._follow(
                handle.key, ending.heard, ending.failed, deadline, partition=handle.partition, start=start
            )
            try:
                result: JobResult = yield Wait(ending.future, deadline)
            finally:
                interest.cancel()
        except TimeoutError as error:
            raise ResultTimeout(
                f"job {handle.key!r} has not ended after {timeout:g} s; last heard: {ending.last}"
            ) from error
        return result


def _check_wait(wait: str, timeout: float) -> None:
    if wait not in ("accepted", "decided"):
        raise InvalidRequest(
            f"wait={wait!r}: it is 'accepted' (Kafka has it) or 'decided' (the engine has answered)"
        )
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidRequest(f"timeout must be more than 0 seconds, not {timeout!r}")


def _encode(command: Command) -> bytes:
    try:
        return encode(command)
    except RecordError as error:
        raise InvalidRequest(str(error)) from error


def _settle(future: Future[Receipt], topic: str, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        future.set_exception(delivery_error(error, topic))
    else:
        future.set_result(Receipt(message))


class _Found:
    """What the engine decided."""

    __slots__ = ("at", "created", "state")

    def __init__(self, at: int, created: bool | None = None, state: str | None = None) -> None:
        self.at = at
        self.created = created
        self.state = state


class _Decision:
    """Waits for the first event that names our command; it may come before we know the command's offset."""

    def __init__(self, key: str, kind: str) -> None:
        self.future: Future[_Found] = Future()
        self.future.set_running_or_notify_cancel()
        self._key = key
        self._kind = kind
        self._lock = threading.Lock()
        self._offset: int | None = None
        self._early: deque[tuple[int, Event]] = deque(maxlen=256)

    def sent_as(self, offset: int) -> None:
        """The command stands at ``offset``."""
        with self._lock:
            self._offset = offset
            for position, event in self._early:
                self._look(position, event)
            self._early.clear()

    def heard(self, position: int, event: Event) -> None:
        """An event about the job."""
        with self._lock:
            if self._offset is None:
                self._early.append((position, event))
            else:
                self._look(position, event)

    def failed(self, error: RelevoError) -> None:
        """The log can't be followed on."""
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def _look(self, position: int, event: Event) -> None:
        if event.source != self._offset or self.future.done():
            return
        match event:
            case events.CommandRejected(reason="ALREADY_EXISTS"):
                self.future.set_result(_Found(position, created=False, state=event.found))
            case events.CommandRejected():
                self.future.set_exception(
                    Rejected(event.key or self._key, self._kind, event.reason, event.expected, event.found)
                )
            case events.JobCreated():
                self.future.set_result(_Found(position, created=True))
            case _:
                self.future.set_result(_Found(position))


class _Ending:
    """Waits for the event that ends a job."""

    def __init__(self, handle: JobHandle) -> None:
        self.future: Future[JobResult] = Future()
        self.future.set_running_or_notify_cancel()
        self.last = "nothing"
        self._handle = handle

    def heard(self, position: int, event: Event) -> None:
        """An event about the job, from the follower's thread only."""
        if self.future.done():
            return
        self.last = _describe(event)
        result = finish_of(event)
        if result is not None:
            self.future.set_result(result)
        elif isinstance(event, events.CommandRejected) and event.source == self._handle.offset:
            self._refused(event)

    def _refused(self, event: events.CommandRejected) -> None:
        if event.reason != "ALREADY_EXISTS":
            self.future.set_exception(
                Rejected(self._handle.key, event.command, event.reason, event.expected, event.found)
            )
        elif event.found in FINISHED_STATES:
            # How it ended stands earlier in the log, before anything this handle knows of.
            self.future.set_result(JobResult(self._handle.key, event.found))

    def failed(self, error: RelevoError) -> None:
        """The log can't be followed on."""
        if not self.future.done():
            self.future.set_exception(error)


def _describe(event: Event) -> str:
    match event:
        case events.JobIncident():
            return f"an incident ({event.cause}: {event.message}), it waits for a person"
        case events.JobFailed():
            return f"attempt {event.attempt} failed: {event.error}"
        case _:
            return type(event).__name__


class Bulk:
    """Many creates under way at once, answered in their order.

    Bounded: `offer` takes no more than it has room for.

    Used by one thread; delivery reports come from the sender's.
    """

    def __init__(self, core: Core, in_flight: int) -> None:
        if in_flight < 1:
            raise InvalidRequest(f"in_flight must be at least 1, not {in_flight!r}")
        core.sender.check()
        self._core = core
        self._in_flight = in_flight
        self._slots: deque[_Slot] = deque()
        self._index = 0

    @property
    def full(self) -> bool:
        """Whether an answer has to come before the next can be offered."""
        return len(self._slots) >= self._in_flight

    def offer(self, job: NewJob | Mapping[str, Any]) -> bool:
        """Send one more; False: the send queue is full, try again when there is room."""
        slot = _Slot(self._index)
        try:
            spec = _new_job(job).spec()
            slot.key = spec.key
            value = _encode(commands.CreateJob(spec))
            if not self._core.sender.try_send(self._core.topic, spec.key.encode(), value, slot.reported):
                return False
        except RelevoError as error:
            slot.error = error
            slot.ready = True
        self._index += 1
        self._slots.append(slot)
        return True

    def answers(self) -> list[CreateResult]:
        """What has been answered, in order, up to the first that hasn't."""
        found = []
        while self._slots and self._slots[0].ready:
            found.append(self._slots.popleft().result(self._core.topic))
        return found

    @property
    def pending(self) -> bool:
        """Whether answers are still to come."""
        return bool(self._slots)


class _Slot:
    __slots__ = ("_report", "error", "index", "key", "ready")

    def __init__(self, index: int) -> None:
        self.index = index
        self.key: str | None = None
        self.error: RelevoError | None = None
        self.ready = False
        self._report: tuple[KafkaError | None, Message] | None = None

    def reported(self, error: KafkaError | None, message: Message) -> None:
        """From the sender's thread."""
        self._report = (error, message)
        self.ready = True

    def result(self, topic: str) -> CreateResult:
        """What became of it."""
        if self._report is None or self.key is None:
            return CreateResult(self.index, self.key, error=self.error)
        error, message = self._report
        if error is not None:
            return CreateResult(self.index, self.key, error=delivery_error(error, topic))
        receipt = Receipt(message)
        return CreateResult(
            self.index, self.key, handle=JobHandle(self.key, receipt.partition, receipt.offset, receipt.at)
        )


def _new_job(job: NewJob | Mapping[str, Any]) -> NewJob:
    if isinstance(job, NewJob):
        return job
    try:
        return NewJob(**job)
    except TypeError as error:
        raise InvalidRequest(f"not a job: {str(error).replace('NewJob.__init__() ', '')}") from error
