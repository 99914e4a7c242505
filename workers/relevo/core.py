"""What a client does, whether its caller blocks or awaits: see `steps`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

from confluent_kafka import KafkaError, Message

from relevo import names
from relevo.answers import Decision, Ending, Found
from relevo.errors import (
    DecisionTimeout,
    InvalidRequest,
    OutcomeUnknown,
    RelevoError,
    ResultTimeout,
    Unreachable,
)
from relevo.follower import Follower, Interest
from relevo.receipts import Receipt, encode_command
from relevo.requests import NewJob
from relevo.results import FINISHED_STATES, JobHandle, JobResult
from relevo.sender import Sender, delivery_error
from relevo.steps import Steps, Wait
from relevo_schemas import commands
from relevo_schemas.records import Command, Event

WaitFor = Literal["accepted", "decided"]


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
        value = encode_command(commands.CreateJob(spec))
        return self._command(spec.key, value, wait, timeout, "CreateJob")

    def command(self, key: str, command: Command, wait: WaitFor, timeout: float) -> Steps[JobHandle]:
        """Send any other command about a job."""
        _check_wait(wait, timeout)
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
        except BaseException as error:
            # It may come after we have stopped waiting for it.
            following.add_done_callback(lambda late: late.result().cancel() if not late.exception() else None)
            if isinstance(error, TimeoutError):
                raise Unreachable(
                    f"Kafka doesn't answer at {self.bootstrap} in time. Is it running, is the address right?"
                ) from error
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
        ending = Ending(handle)
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


def _check_wait(wait: str, timeout: Any) -> None:
    if wait not in ("accepted", "decided"):
        raise InvalidRequest(
            f"wait={wait!r}: it is 'accepted' (Kafka has it) or 'decided' (the engine has answered)"
        )
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidRequest(f"timeout must be more than 0 seconds, not {timeout!r}")


def _settle(future: Future[Receipt], topic: str, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        future.set_exception(delivery_error(error, topic))
    else:
        future.set_result(Receipt(message))
