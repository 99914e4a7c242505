"""The client for coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Any

from relevo.client.bulk import IN_FLIGHT_MAX as CREATES_IN_FLIGHT_MAX
from relevo.client.bulk import Bulk
from relevo.client.client import TIMEOUT_S, _key, retry_calls, update_command
from relevo.client.core import Core, WaitFor
from relevo.client.many import IN_FLIGHT_MAX, check_in_flight, run_many_async
from relevo.client.requests import JobDefaults, NewJob, check_reason, check_retries
from relevo.client.results import BulkResult, JobHandle, JobResult
from relevo.client.steps import run_async
from relevo.environment import find_place
from relevo_schemas import commands


class AsyncClient:
    """`Client` with awaitable calls: the same arguments, results and errors.

    It may serve several event loops.

    Args:
        bootstrap: ``host:port`` of Kafka, several separated by commas; None: ``RELEVO_KAFKA`` in the
            environment (with ``RELEVO_KAFKA_OPTIONS``), else localhost:9092.
        cluster: The cluster's name; None: ``RELEVO_CLUSTER`` in the environment, else relevo.
        defaults: What jobs get where their creation doesn't say, by job type.
        tracing: Whether new jobs carry the caller's trace in their headers, where OpenTelemetry is installed;
            None: unless ``RELEVO_TRACING`` in the environment says ``off``.
        **kafka_options: librdkafka's options, with underscores for dots or by ``**{"…": …}``.

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

    async def create(
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
        """As `Client.create`."""
        job = NewJob(
            type=type, variables=variables, key=key, priority=priority, retries=retries, backoff=backoff,
            backoff_max=backoff_max, lease=lease, run_at=run_at, delay=delay, expires_at=expires_at,
            correlation_id=correlation_id, headers=headers or {},
        )  # fmt: skip
        return await run_async(self._core.create(job, wait, timeout))

    async def create_many(
        self,
        jobs: Iterable[NewJob | Mapping[str, Any]] | AsyncIterable[NewJob | Mapping[str, Any]],
        *,
        in_flight: int = CREATES_IN_FLIGHT_MAX,
        timeout: float = TIMEOUT_S,
    ) -> AsyncIterator[BulkResult]:
        """As `Client.create_many`; ``jobs`` may be an asynchronous iterable."""
        bulk = Bulk(self._core, in_flight)
        sender = self._core.sender
        async for job in _each(jobs):
            while not bulk.offer(job):
                # Asked for before looking once more: an answer in between ends the wait at once.
                room = sender.room()
                if bulk.offer(job):
                    break
                found = bulk.answers()
                for result in found:
                    yield result
                if not found and not await _await_room(room, timeout):
                    for result in bulk.give_up():
                        yield result
                    raise sender.full()
            for result in bulk.answers():
                yield result
        while bulk.pending():
            room = sender.room()
            found = bulk.answers()
            for result in found:
                yield result
            if bulk.pending() and not found and not await _await_room(room, timeout):
                for result in bulk.give_up():
                    yield result

    async def cancel(
        self,
        job: JobHandle | str,
        reason: str = "",
        *,
        wait: WaitFor = "accepted",
        timeout: float = TIMEOUT_S,
    ) -> JobHandle:
        """As `Client.cancel`."""
        key = _key(job)
        return await run_async(
            self._core.command(key, commands.CancelJob(key, check_reason(reason)), wait, timeout)
        )

    async def retry(
        self,
        job: JobHandle | str,
        retries: int = 3,
        *,
        wait: WaitFor = "accepted",
        timeout: float = TIMEOUT_S,
    ) -> JobHandle:
        """As `Client.retry`."""
        key = _key(job)
        return await run_async(
            self._core.command(key, commands.RetryJob(key, check_retries(retries)), wait, timeout)
        )

    def retry_many(
        self,
        jobs: Iterable[JobHandle | str],
        retries: int = 3,
        *,
        wait: WaitFor = "decided",
        in_flight: int = IN_FLIGHT_MAX,
        timeout: float = TIMEOUT_S,
    ) -> AsyncIterator[BulkResult]:
        """As `Client.retry_many`."""
        core = self._core
        core.sender.check()
        return run_many_async(retry_calls(core, jobs, retries, wait, timeout), check_in_flight(in_flight))

    async def update(
        self,
        job: JobHandle | str,
        *,
        priority: int | None = None,
        retries: int | None = None,
        wait: WaitFor = "accepted",
        timeout: float = TIMEOUT_S,
    ) -> JobHandle:
        """As `Client.update`."""
        key = _key(job)
        command = update_command(key, priority, retries)
        return await run_async(self._core.command(key, command, wait, timeout))

    async def await_result(self, handle: JobHandle, timeout: float = TIMEOUT_S) -> JobResult:
        """As `Client.await_result`."""
        return await run_async(self._core.result(handle, timeout))

    async def close(self, timeout: float = 10.0) -> int:
        """As `Client.close`."""
        return await asyncio.to_thread(self._core.close, timeout)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _await_room(room: Future[None], timeout: float) -> bool:
    try:
        await asyncio.wait_for(asyncio.wrap_future(room), timeout)
    except TimeoutError:
        return False
    return True


async def _each(
    jobs: Iterable[NewJob | Mapping[str, Any]] | AsyncIterable[NewJob | Mapping[str, Any]],
) -> AsyncIterator[NewJob | Mapping[str, Any]]:
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            yield job
        return
    turn = time.monotonic()
    for job in jobs:
        yield job
        if time.monotonic() - turn > 0.005:
            # A long list must not keep the loop to itself.
            await asyncio.sleep(0)
            turn = time.monotonic()
