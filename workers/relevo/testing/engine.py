"""An engine in memory, for tests of your own handlers: the real state machine, virtual time, no broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypeVar

from relevo.client.core import WaitFor
from relevo.client.requests import NewJob
from relevo.client.results import JobHandle, JobResult
from relevo.errors import ConfigurationError, InvalidRequest
from relevo.testing.inmemory.face import Face
from relevo.testing.inmemory.world import World

T = TypeVar("T")
PATIENCE_S: Final = 10.0
PARTITIONS: Final = 2
PARTITIONS_MAX: Final = 64


def loop_runs() -> bool:
    """Whether this thread runs an event loop, so that nothing in it may block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Engine(Face):
    """An engine and its workers in this process, for tests that take milliseconds.

    ::

        async with relevo.testing.Engine() as engine:
            engine.run(app)
            job = await engine.create("send-email", key="k1", variables={"to": "ana@example.com"})
            await engine.settle()
            assert engine.job(job).state == "COMPLETED"

    In a test that is no coroutine use ``with``: it gives a `BlockingEngine`, with the same calls.

    What is real: the engine's state machine with its encoded records, for every partition, and its replay
    after `failover`; in the worker the reading side with its rule of offsets, claims, the dedup store,
    leases, inquiries, the running of handlers, their endings and the order of its seven steps; `relevo.Job`.
    Coroutine handlers run in the test's event loop, plain ones in threads, as ever.

    What is replaced: Kafka by lists (nothing is ever late, and a consumer group hands over at once); the
    engine's term, election and transactions; the threads that drive a worker; the clock of engine and
    worker. A store outside, such as `relevo.RedisDedupStore`, has its own clock: claims in it are given back
    when they end in virtual time, but its window for what is done passes in real time. What a handler
    itself waits for is real time as well.

    Each engine has a cluster name of its own, so that nothing is found in a store that an earlier test left.

    Args:
        types: Job types whose worker is somebody else's: they can be created, and stay ACTIVE.
        partitions: Partitions of the cluster.
        start: Where virtual time begins; None: now.
        patience: How long a handler may take without anything happening, in seconds of real time.

    Raises:
        InvalidRequest: An argument can't be right.
    """

    def __init__(
        self,
        *,
        types: Collection[str] = (),
        partitions: int = PARTITIONS,
        start: datetime | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        if isinstance(types, str):
            raise InvalidRequest(f"types must be several names: [{types!r}]")
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidRequest(f"partitions must be between 1 and {PARTITIONS_MAX}, not {partitions!r}")
        if start is not None and start.tzinfo is None:
            raise InvalidRequest("start has no time zone: use datetime.now(timezone.utc) or .astimezone()")
        if not patience > 0:
            raise InvalidRequest(f"patience must be more than 0 seconds, not {patience!r}")
        begins_ms = round((start.timestamp() if start is not None else time.time()) * 1_000)
        self._make: Callable[[], World] = lambda: World(begins_ms, partitions, types, patience)
        self._blocking: BlockingEngine | None = None

    async def __aenter__(self) -> Engine:
        if self._opened is not None or self._blocking is not None:
            raise ConfigurationError("this engine is open already: make one for each test")
        self._opened = self._make()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        world, self._opened, self._closed = self._world, None, True
        await world.close()

    def __enter__(self) -> BlockingEngine:
        if self._opened is not None or self._blocking is not None:
            raise ConfigurationError("this engine is open already: make one for each test")
        self._blocking = BlockingEngine(self._make)
        return self._blocking

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        blocking, self._blocking, self._closed = self._blocking, None, True
        if blocking is not None:
            blocking._close()

    async def create(
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
    ) -> JobHandle:
        """As `relevo.AsyncClient.create`: the job is there at once, `settle` lets a worker run it.

        Raises:
            InvalidRequest: An argument can't be right, or nobody has a handler for the type.
            Rejected: The engine refused it (only with ``wait="decided"``). An existing key is no error.
        """
        job = NewJob(
            type=type, variables=variables, key=key, priority=priority, retries=retries, backoff=backoff,
            backoff_max=backoff_max, lease=lease, run_at=run_at, delay=delay, expires_at=expires_at,
            correlation_id=correlation_id, headers=headers or {},
        )  # fmt: skip
        return self._create(job, wait)

    async def cancel(
        self, job: JobHandle | str, reason: str = "", *, wait: WaitFor = "accepted"
    ) -> JobHandle:
        """As `relevo.AsyncClient.cancel`."""
        return self._cancel(job, reason, wait)

    async def retry(self, job: JobHandle | str, retries: int = 3, *, wait: WaitFor = "accepted") -> JobHandle:
        """As `relevo.AsyncClient.retry`."""
        return self._retry(job, retries, wait)

    async def update(
        self,
        job: JobHandle | str,
        *,
        priority: int | None = None,
        retries: int | None = None,
        wait: WaitFor = "accepted",
    ) -> JobHandle:
        """As `relevo.AsyncClient.update`."""
        return self._update(job, priority, retries, wait)

    async def settle(self, *, leave_running: bool = False) -> None:
        """Go on until nothing is to be done at the present virtual time.

        Args:
            leave_running: Return once every handler that may run has begun; don't wait for their ends.

        Raises:
            StillRunning: A handler takes longer than ``patience``, or the work has no end.
        """
        await self._world.settle(leave_running=leave_running)

    async def advance(self, seconds: float, *, leave_running: bool = False) -> None:
        """Let virtual time pass; what falls due meanwhile happens at its time, and is seen through.

        Raises:
            StillRunning: As `settle`.
            InvalidRequest: ``seconds`` is negative, no number, or leads beyond the year 9999.
        """
        await self._world.advance(seconds, leave_running=leave_running)

    async def await_result(self, job: JobHandle | str) -> JobResult:
        """How a job has ended, once everything is settled; time doesn't pass for it.

        Raises:
            ResultTimeout: It hasn't.
            InvalidRequest: There is no such job.
        """
        await self.settle()
        return self._result(job)

    async def deliver_twice(self, job: JobHandle | str, *, leave_running: bool = False) -> None:
        """Hand the job's latest activation to its worker once more, and settle.

        Raises:
            InvalidRequest: The job was not handed out yet.
        """
        self._deliver_again(job)
        await self.settle(leave_running=leave_running)

    async def expire_lease(self, job: JobHandle | str, *, leave_running: bool = False) -> None:
        """Let the worker that runs the job fall silent until lease and claim have run out, then wake up.

        Another worker process takes its partitions and gets the next attempt; then the first attempt goes on
        and ends late. A long pause of a process or its machine looks like this.

        Raises:
            InvalidRequest: No worker runs the job: freeze one before (``freeze_worker(after="start")``).
        """
        crew, process, seconds = self._freeze_holder(job)
        await self.advance(seconds, leave_running=leave_running)
        if process is crew.owner:
            self._world.hand_over(crew)
            await self.settle(leave_running=leave_running)
        process.thaw()
        await self.settle(leave_running=leave_running)


class BlockingEngine(Face):
    """`Engine` for tests that are no coroutines: ``with relevo.testing.Engine() as engine:``.

    It has an event loop of its own, which runs coroutine handlers, and only while a call waits.
    """

    def __init__(self, make: Callable[[], World]) -> None:
        if loop_runs():
            raise ConfigurationError(
                "an event loop runs in this thread: use 'async with relevo.testing.Engine() as engine:'"
            )

        async def begin() -> World:
            return make()

        self._engine = Engine()
        self._runner = asyncio.Runner()
        try:
            self._opened = self._engine._opened = self._runner.run(begin())
        except BaseException:
            self._runner.close()
            raise

    def _close(self) -> None:
        world, self._opened, self._closed = self._world, None, True
        try:
            self._runner.run(world.close())
        finally:
            self._runner.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            self._world  # noqa: B018 - raises where it was closed
        except BaseException:
            call.close()
            raise
        if loop_runs():
            return self._runner.run(call)  # which says that this can't be
        loop = self._runner.get_loop()
        task = loop.create_task(call)
        while not task.done():
            try:
                self._runner.run(_until_done(task))
            except (RuntimeError, SystemExit):
                # A handler has stopped the loop that it shares with us; as in a worker, that ends nothing.
                if loop.is_closed():
                    raise
            except BaseException:
                task.cancel()
                raise
        return task.result()

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
    ) -> JobHandle:
        """As `Engine.create`."""
        job = NewJob(
            type=type, variables=variables, key=key, priority=priority, retries=retries, backoff=backoff,
            backoff_max=backoff_max, lease=lease, run_at=run_at, delay=delay, expires_at=expires_at,
            correlation_id=correlation_id, headers=headers or {},
        )  # fmt: skip
        return self._create(job, wait)

    def cancel(self, job: JobHandle | str, reason: str = "", *, wait: WaitFor = "accepted") -> JobHandle:
        """As `Engine.cancel`."""
        return self._cancel(job, reason, wait)

    def retry(self, job: JobHandle | str, retries: int = 3, *, wait: WaitFor = "accepted") -> JobHandle:
        """As `Engine.retry`."""
        return self._retry(job, retries, wait)

    def update(
        self,
        job: JobHandle | str,
        *,
        priority: int | None = None,
        retries: int | None = None,
        wait: WaitFor = "accepted",
    ) -> JobHandle:
        """As `Engine.update`."""
        return self._update(job, priority, retries, wait)

    def settle(self, *, leave_running: bool = False) -> None:
        """As `Engine.settle`."""
        self._run(self._engine.settle(leave_running=leave_running))

    def advance(self, seconds: float, *, leave_running: bool = False) -> None:
        """As `Engine.advance`."""
        self._run(self._engine.advance(seconds, leave_running=leave_running))

    def await_result(self, job: JobHandle | str) -> JobResult:
        """As `Engine.await_result`."""
        return self._run(self._engine.await_result(job))

    def deliver_twice(self, job: JobHandle | str, *, leave_running: bool = False) -> None:
        """As `Engine.deliver_twice`."""
        self._run(self._engine.deliver_twice(job, leave_running=leave_running))

    def expire_lease(self, job: JobHandle | str, *, leave_running: bool = False) -> None:
        """As `Engine.expire_lease`."""
        self._run(self._engine.expire_lease(job, leave_running=leave_running))


async def _until_done(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])
