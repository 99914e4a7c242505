"""What a client does, whether its caller blocks or awaits: see `steps`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, Message

from relevo import names
from relevo.client.answers import Decision, Ending, Found
from relevo.client.receipts import Receipt, encode_command
from relevo.client.requests import JobDefaults, NewJob, check_defaults
from relevo.client.results import FINISHED_STATES, JobHandle, JobResult
from relevo.client.steps import Steps, Wait
from relevo.errors import (
    DecisionTimeout,
    InvalidRequest,
    Outcome,
    OutcomeUnknown,
    Rejected,
    RelevoError,
    ResultTimeout,
    Retry,
    Unreachable,
)
from relevo.follower import Follower, Interest
from relevo.sender import Sender
from relevo.tracing import TraceHeaders
from relevo_schemas import commands
from relevo_schemas.records import Command, Event

WaitFor = Literal["accepted", "decided"]
_AGAIN_S: Final = 0.2
"""Pause before Kafka is asked again that didn't answer."""


class Core:
    """The shared part of `Client` and `AsyncClient`.

    Args:
        bootstrap: ``host:port``, several separated by commas.
        cluster: The cluster.
        options: The user's librdkafka options.
        defaults: For new jobs, by type.
        tracing: Whether new jobs carry the caller's trace; None: as the environment says.
    """

    def __init__(
        self,
        bootstrap: str,
        cluster: str,
        options: Mapping[str, Any],
        defaults: Mapping[str, JobDefaults] | None = None,
        tracing: bool | None = None,
    ) -> None:
        self._trace = TraceHeaders(tracing)
        self._defaults = check_defaults(defaults)
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
        check_wait(wait, timeout)
        self.sender.check()
        key, value = self.creation(job)
        return self._command(key, value, wait, timeout, "CreateJob")

    def creation(self, job: NewJob) -> tuple[str, bytes]:
        """The key of a new job and the command that makes it: of one alone, and of each of many.

        Raises:
            InvalidRequest: Something in it can't be right.
        """
        defaults = self._defaults.get(job.type) if self._defaults else None
        job = self._trace.add_to(job)
        spec = job.spec(defaults)
        return spec.key, encode_command(commands.CreateJob(spec))

    def command(self, key: str, command: Command, wait: WaitFor, timeout: float) -> Steps[JobHandle]:
        """Send any other command about a job."""
        check_wait(wait, timeout)
        self.sender.check()
        return self._command(key, encode_command(command), wait, timeout, type(command).__name__)

    def _command(self, key: str, value: bytes, wait: WaitFor, timeout: float, kind: str) -> Steps[JobHandle]:
        deadline = time.monotonic() + timeout
        if wait == "accepted":
            hint = self.follower.hint(key)
            receipt = yield from self._send(key, value, deadline)
            return JobHandle(key, receipt.partition, receipt.offset, receipt.at, log_offset=hint)
        decision = Decision(key, kind)
        interest: Interest = yield from self._follow(key, decision.heard, decision.failed, deadline)
        try:
            receipt = yield from self._send(key, value, deadline)
            if receipt.partition != interest.partition:
                raise OutcomeUnknown(
                    f"the number of partitions of {self.topic} has changed: the command is in "
                    f"{receipt.partition}, expected in {interest.partition}. Ask again with the same key"
                )
            decision.sent_as(receipt.offset)
            try:
                found: Found = yield Wait(decision.future, deadline)
            except TimeoutError as error:
                raise DecisionTimeout(
                    f"Kafka has the {kind} of job {key!r}, the engine has not decided it in {timeout:g} s. "
                    f"Does the cluster {self.cluster!r} run?"
                ) from error
            except Rejected:
                raise
            except RelevoError as error:
                # Closed, or the log can't be read: the command stands, whatever became of our ears.
                raise OutcomeUnknown(
                    f"Kafka has the {kind} of job {key!r}, and what the engine decides can't be heard: "
                    f"{error.text}"
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
        """Listen to the log; as long as Kafka doesn't answer it is asked again, until the deadline."""
        while True:
            following = self.follower.follow(key, heard, failed, partition=partition, start=start)
            try:
                interest: Interest = yield Wait(following, deadline)
            except Unreachable:
                if time.monotonic() + _AGAIN_S >= deadline:
                    raise
                yield from _pause(_AGAIN_S)
            except BaseException as error:
                # It may come after we have stopped waiting for it.
                following.add_done_callback(_let_go)
                if isinstance(error, TimeoutError):
                    raise Unreachable(
                        f"Kafka doesn't answer at {self.bootstrap} in time, nothing was sent. "
                        f"Is it running, is the address right?"
                    ) from error
                raise
            else:
                return interest

    def _send(self, key: str, value: bytes, deadline: float) -> Steps[Receipt]:
        future: Future[Receipt] = Future()
        future.set_running_or_notify_cancel()
        report = partial(_settle, future, self.sender)
        while not self.sender.try_send(self.topic, key.encode(), value, report):
            # Asked for before trying once more: room that comes in between ends the wait at once.
            room = self.sender.room()
            if self.sender.try_send(self.topic, key.encode(), value, report):
                break
            self.sender.check()
            try:
                yield Wait(room, deadline)
            except TimeoutError as error:
                raise self.sender.full() from error
        try:
            receipt: Receipt = yield Wait(future, deadline)
        except TimeoutError as error:
            raise OutcomeUnknown(
                f"no acknowledgement from Kafka at {self.bootstrap} for job {key!r} in time. It may be "
                f"there, or may still get there: send it again with the same key{self.sender.last_error}"
            ) from error
        return receipt

    def result(self, handle: JobHandle, timeout: float) -> Steps[JobResult]:
        """Wait until a job has ended."""
        if not isinstance(handle, JobHandle):
            raise InvalidRequest(
                "await_result takes the handle that create returned: only it says where in the log to look"
            )
        check_wait("decided", timeout)
        self.sender.check()
        return self._result(handle, timeout)

    def _result(self, handle: JobHandle, timeout: float) -> Steps[JobResult]:
        deadline = time.monotonic() + timeout
        if handle.state in FINISHED_STATES:
            return JobResult(handle.key, handle.state or "")
        ending = Ending(handle)
        try:
            start = handle.log_offset
            if start is None:
                start = yield from self._locate(handle, deadline)
            interest: Interest = yield from self._follow(
                handle.key, ending.heard, ending.failed, deadline, partition=handle.partition, start=start
            )
            try:
                result: JobResult = yield Wait(ending.future, deadline)
            finally:
                interest.cancel()
        except (TimeoutError, Unreachable) as error:
            heard = (
                f"Kafka doesn't answer at {self.bootstrap}"
                if isinstance(error, Unreachable)
                else (f"last heard: {ending.last}")
            )
            raise ResultTimeout(
                f"job {handle.key!r} has not been seen to end in {timeout:g} s; {heard}"
            ) from error
        except Rejected:
            raise
        except RelevoError as error:
            raise error.but(Outcome.DONE, Retry.STOP) from error.__cause__
        return result

    def _locate(self, handle: JobHandle, deadline: float) -> Steps[int]:
        while True:
            try:
                start: int = yield Wait(
                    self.follower.locate(handle.partition, handle.offset, handle.at), deadline
                )
            except TimeoutError as error:
                raise Unreachable(f"Kafka doesn't answer at {self.bootstrap} in time") from error
            except Unreachable:
                if time.monotonic() + _AGAIN_S >= deadline:
                    raise
                yield from _pause(_AGAIN_S)
            else:
                return start


def _pause(seconds: float) -> Steps[None]:
    never: Future[None] = Future()
    try:
        yield Wait(never, time.monotonic() + seconds)
    except TimeoutError:
        return


def _let_go(late: Future[Interest]) -> None:
    if not late.exception():
        late.result().cancel()


def check_wait(wait: str, timeout: Any) -> None:
    """Do nothing with a way and a time to wait that can be.

    Raises:
        InvalidRequest: One can't.
    """
    if wait not in ("accepted", "decided"):
        raise InvalidRequest(
            f"wait={wait!r}: it is 'accepted' (Kafka has it) or 'decided' (the engine has answered)"
        )
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidRequest(f"timeout must be more than 0 seconds, not {timeout!r}")


def _settle(future: Future[Receipt], sender: Sender, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        future.set_exception(sender.failure(error, message))
    else:
        future.set_result(Receipt(message))
