"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

from relevo.bulk import IN_FLIGHT_MAX, Bulk
from relevo.core import Core, WaitFor
from relevo.environment import find_place
from relevo.requests import NewJob, check_key, check_priority, check_reason, check_retries
from relevo.results import CreateResult, JobHandle, JobResult
from relevo.steps import run
from relevo_schemas import commands

TIMEOUT_S = 30.0


class Client:
    """Creates jobs and hears of them. Safe to use from several threads; not after a fork.

    A command is accepted once Kafka has it on all in-sync replicas: from then on it can't be lost. Every
    error says by its `outcome` whether that has happened, and by its `retry` what to do; a create may always
    be repeated with the same key.

    Args:
        bootstrap: ``host:port`` of Kafka, several separated by commas; None: ``RELEVO_KAFKA`` in the
            environment (with ``RELEVO_KAFKA_OPTIONS``), else localhost:9092.
        cluster: The cluster's name; None: ``RELEVO_CLUSTER`` in the environment, else relevo.
        **kafka_options: librdkafka's options, with underscores for dots (``sasl_username="…"``) or by
            ``**{"…": …}``.

    Raises:
        ConfigurationError: An option contradicts what delivery rests on.
    """

    def __init__(
        self, bootstrap: str | None = None, cluster: str | None = None, **kafka_options: Any
    ) -> None:
        self._core = Core(*find_place(bootstrap, cluster, kafka_options))

    @property
    def bootstrap(self) -> str:
        """Where Kafka is."""
        return self._core.bootstrap

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self._core.cluster

    @property
    def kafka_options(self) -> Mapping[str, Any]:
        """The options it was made with."""
        return self._core.options

    def create(
        self,
        type: str,
        variables: Any = None,
        *,
        key: str | None = None,
        priority: int = 0,
        retries: int = 3,
        backoff: float = 1.0,
        backoff_max: float = 300.0,
        lease: float = 30.0,
        run_at: datetime | int | None = None,
        delay: float | None = None,
        expires_at: datetime | int | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        wait: WaitFor = "accepted",
        timeout: float = TIMEOUT_S,
    ) -> JobHandle:
        """Create a job.

        Args:
            type: Job type.
            variables: The job's input, anything with a JSON form.
            key: The job's identity; None: a new one. Creating a key twice gives the same job.
            priority: Higher runs earlier.
            retries: How many failures are answered with another attempt.
            backoff: Pause after the first failure in seconds, doubled for each further one.
            backoff_max: Longest pause in seconds.
            lease: How long a started attempt may run without a sign of life, in seconds.
            run_at: Not before: a datetime with a time zone, or milliseconds since the Unix epoch.
            delay: Not before so many seconds from now. Not together with ``run_at``.
            expires_at: A job still open then becomes EXPIRED: as ``run_at``.
            correlation_id: The caller's own identifier, handed to the worker.
            headers: Handed to the worker as they are.
            wait: ``accepted``: return once Kafka has it. ``decided``: return once the engine has answered.
            timeout: How long to wait, in seconds.

        Raises:
            InvalidRequest: An argument can't be right; nothing was sent.
            QueueFull: Too much waits for Kafka already; nothing was sent.
            OutcomeUnknown: No acknowledgement in time: repeat it with the same key.
            Rejected: The engine refused it (only with ``wait="decided"``). An existing key is no error.
            DecisionTimeout: It is accepted, and the engine didn't answer in time (only with ``decided``).
        """
        job = NewJob(
            type=type, variables=variables, key=key, priority=priority, retries=retries, backoff=backoff,
            backoff_max=backoff_max, lease=lease, run_at=run_at, delay=delay, expires_at=expires_at,
            correlation_id=correlation_id, headers=headers or {},
        )  # fmt: skip
        return run(self._core.create(job, wait, timeout))

    def create_many(
        self,
        jobs: Iterable[NewJob | Mapping[str, Any]],
        *,
        in_flight: int = IN_FLIGHT_MAX,
        timeout: float = TIMEOUT_S,
    ) -> Iterator[CreateResult]:
        """Create many jobs, and say of each what became of it, in order.

        One that is bad doesn't stop the others. ``jobs`` is read as answers come in, so it may be endless;
        nothing is sent before the result is iterated.

        Args:
            jobs: `NewJob` items, or mappings with its arguments.
            in_flight: How many may wait for Kafka at once.
            timeout: How long the next answer may take, in seconds.

        Raises:
            QueueFull: No answer, and no room for the next, in ``timeout`` seconds.
        """
        bulk = Bulk(self._core, in_flight)
        sender = self._core.sender
        for job in jobs:
            while bulk.full or not bulk.offer(job):
                # Asked for before looking: an answer in between ends the wait at once.
                room = sender.room()
                found = bulk.answers()
                yield from found
                if not found:
                    sender.await_room(room, time.monotonic() + timeout)
            yield from bulk.answers()
        while bulk.pending():
            room = sender.room()
            found = bulk.answers()
            yield from found
            if bulk.pending() and not found:
                sender.await_room(room, time.monotonic() + timeout)

    def cancel(
        self,
        job: JobHandle | str,
        reason: str = "",
        *,
        wait: WaitFor = "accepted",
        timeout: float = TIMEOUT_S,
    ) -> JobHandle:
        """End a job that is still open. A handler that runs it is told by `Job.lost`.

        Raises:
            Rejected: There is no such job, or it has ended (only with ``wait="decided"``).
        """
        key = _key(job)
        return run(self._core.command(key, commands.CancelJob(key, check_reason(reason)), wait, timeout))

    def retry(
        self,
        job: JobHandle | str,
        retries: int = 3,
        *,
        wait: WaitFor = "accepted",
        timeout: float = TIMEOUT_S,
    ) -> JobHandle:
        """Make a job that is an incident, or waits for its next attempt, ready now, with so many retries.

        Raises:
            Rejected: There is no such job, or it is in no state to be retried (only with ``wait="decided"``).
        """
        key = _key(job)
        return run(self._core.command(key, commands.RetryJob(key, check_retries(retries)), wait, timeout))

    def update(
        self,
        job: JobHandle | str,
        *,
        priority: int | None = None,
        retries: int | None = None,
        wait: WaitFor = "accepted",
        timeout: float = TIMEOUT_S,
    ) -> JobHandle:
        """Change priority or retries of an open job; what is None stays as it is.

        Raises:
            Rejected: There is no such job, or it has ended (only with ``wait="decided"``).
        """
        key = _key(job)
        command = update_command(key, priority, retries)
        return run(self._core.command(key, command, wait, timeout))

    def await_result(self, handle: JobHandle, timeout: float = TIMEOUT_S) -> JobResult:
        """Wait until a job has ended: completed, with a business error, cancelled or expired.

        Args:
            handle: What `create` returned, also in another process.
            timeout: How long to wait, in seconds.

        Raises:
            ResultTimeout: It has not ended in time; the message tells what was heard last.
            LogGap: The log was trimmed meanwhile.
        """
        return run(self._core.result(handle, timeout))

    def close(self, timeout: float = 10.0) -> int:
        """Deliver what is queued, for ``timeout`` seconds at most. Returns how many records were not."""
        return self._core.close(timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _key(job: JobHandle | str) -> str:
    return job.key if isinstance(job, JobHandle) else check_key(job)


def update_command(key: str, priority: int | None, retries: int | None) -> commands.UpdateJob:
    """The command that changes what is not None.

    Raises:
        InvalidRequest: A value can't be right.
    """
    return commands.UpdateJob(
        key,
        None if priority is None else check_priority(priority),
        None if retries is None else check_retries(retries),
    )
