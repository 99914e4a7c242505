"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any

from relevo.client.bulk import IN_FLIGHT_MAX as CREATES_IN_FLIGHT_MAX
from relevo.client.bulk import Bulk
from relevo.client.core import Core, WaitFor, check_wait
from relevo.client.many import IN_FLIGHT_MAX, Call, check_in_flight, run_many
from relevo.client.requests import JobDefaults, NewJob, check_key, check_priority, check_reason, check_retries
from relevo.client.results import BulkResult, JobHandle, JobResult
from relevo.client.steps import Steps, run
from relevo.environment import find_place
from relevo.errors import InvalidRequest
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
        defaults: What jobs get where their creation doesn't say, by job type.
        tracing: Whether new jobs carry the caller's trace in their headers, where OpenTelemetry is installed;
            None: unless ``RELEVO_TRACING`` in the environment says ``off``.
        **kafka_options: librdkafka's options, with underscores for dots (``sasl_username="…"``) or by
            ``**{"…": …}``.

    Raises:
        ConfigurationError: An option contradicts what delivery rests on.
        InvalidRequest: The defaults can't be right.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        cluster: str | None = None,
        *,
        defaults: Mapping[str, JobDefaults] | None = None,
        tracing: bool | None = None,
        **kafka_options: Any,
    ) -> None:
        self._core = Core(*find_place(bootstrap, cluster, kafka_options), defaults, tracing)

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
        priority: int | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        backoff_max: float | None = None,
        lease: float | None = None,
        run_at: datetime | int | None = None,
        delay: float | None = None,
        expires_at: datetime | int | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        wait: WaitFor = "accepted",
        timeout: float = TIMEOUT_S,
    ) -> JobHandle:
        """Create a job.

        Where priority, retries, backoff, backoff_max or lease is None, it is as this client's ``defaults``
        say for the type, else 0, 3, 1, 300 and 30.

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
        in_flight: int = CREATES_IN_FLIGHT_MAX,
        timeout: float = TIMEOUT_S,
    ) -> Iterator[BulkResult]:
        """Create many jobs, and say of each what became of it, in order.

        One that is bad doesn't stop the others. ``jobs`` is read as answers come in, so it may be endless;
        nothing is sent before the result is iterated. Of every job that was read there is a result, and only
        of the last one, where `QueueFull` is raised, there is none: it wasn't sent.

        Args:
            jobs: `NewJob` items, or mappings with its arguments.
            in_flight: How many may wait for Kafka at once.
            timeout: How long the next answer may take, in seconds. After that those under way are given out
                with `OutcomeUnknown`.

        Raises:
            QueueFull: No answer, and no room for the next, in ``timeout`` seconds.
        """
        bulk = Bulk(self._core, in_flight)
        sender = self._core.sender
        for job in jobs:
            while not bulk.offer(job):
                # Asked for before looking once more: an answer in between ends the wait at once.
                room = sender.room()
                if bulk.offer(job):
                    break
                found = bulk.answers()
                yield from found
                if not found and not sender.await_room(room, timeout):
                    yield from bulk.give_up()
                    raise sender.full()
            yield from bulk.answers()
        while bulk.pending():
            room = sender.room()
            found = bulk.answers()
            yield from found
            if bulk.pending() and not found and not sender.await_room(room, timeout):
                yield from bulk.give_up()

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

    def retry_many(
        self,
        jobs: Iterable[JobHandle | str],
        retries: int = 3,
        *,
        wait: WaitFor = "decided",
        in_flight: int = IN_FLIGHT_MAX,
        timeout: float = TIMEOUT_S,
    ) -> Iterator[BulkResult]:
        """Do `retry` for many jobs, and say of each what became of it, in order.

        One that is refused or bad doesn't stop the others. Safe to repeat after an interruption: what is
        ready, runs or has ended by then is refused and left as it is. ``jobs`` is read as answers come in;
        nothing is sent before the result is iterated.

        Args:
            jobs: Handles or keys.
            retries: As of `retry`, for each.
            wait: As of `retry`. With ``accepted`` nobody hears of those that the engine refuses.
            in_flight: How many may be under way at once.
            timeout: How long each may take, in seconds.
        """
        core = self._core
        core.sender.check()
        return run_many(retry_calls(core, jobs, retries, wait, timeout), check_in_flight(in_flight))

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


def retry_calls(
    core: Core, jobs: Iterable[JobHandle | str], retries: int, wait: WaitFor, timeout: float
) -> Iterator[Call]:
    """The calls of `Client.retry_many`; what is no key is an error of its own place only.

    Raises:
        InvalidRequest: What is for all of them can't be right.
    """
    if isinstance(jobs, str):
        raise InvalidRequest(f"jobs must be several: [{jobs!r:.100}]")
    check_retries(retries)
    check_wait(wait, timeout)

    def call(job: JobHandle | str) -> Steps[JobHandle]:
        key = _key(job)
        return core.command(key, commands.RetryJob(key, retries), wait, timeout)

    return ((job.key if isinstance(job, JobHandle) else job, partial(call, job)) for job in jobs)


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
