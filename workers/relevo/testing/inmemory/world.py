"""Engine and workers together: what makes them go, and what goes wrong between them."""

# ruff: noqa: N818 - named by what happened, as all errors of this package
from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final

from relevo import names
from relevo.client.requests import MOMENT_MAX_MS
from relevo.dedup.store import DedupStore
from relevo.errors import ConfigurationError, InvalidRequest, RelevoError
from relevo.testing.inmemory.clock import VirtualClock, virtual_time
from relevo.testing.inmemory.faults import Faults
from relevo.testing.inmemory.kafka import MemoryKafka, MemoryMessage
from relevo.testing.inmemory.leading import Leaders
from relevo.testing.inmemory.logbook import Logbook
from relevo.testing.inmemory.process import Habits, Surroundings, WorkerProcess
from relevo.testing.inmemory.stores import Memory, ProcessStore
from relevo.worker.app import JobWorker, WorkerApp
from relevo.worker.settings import check_store
from relevo.worker.worker import JobType
from relevo_schemas.codec import encode
from relevo_schemas.partitioning import partition_of
from relevo_schemas.records import Command

ROUNDS_MAX: Final = 100_000
_END_S: Final = 2.0
_TURNS_TO_END: Final = 5
"""Rounds of the event loop: one that cleans up without waiting for anything needs two or three."""


class StillRunning(RelevoError, TimeoutError):
    """A handler has not ended in the real time that it may take, or the work goes on for ever."""


class Crew:
    """The worker processes of one app: one has the partitions, former ones may still run handlers."""

    def __init__(self, types: tuple[JobType, ...], memory: Memory, habits: Habits) -> None:
        self.types = types
        self.memory = memory
        self.habits = habits
        self.processes: list[WorkerProcess] = []
        self.started = 0

    @property
    def owner(self) -> WorkerProcess:
        """The process that has the partitions."""
        return self.processes[-1]


class World:
    """The engine's leaders, the workers' processes and Kafka's lists, in one event loop.

    Args:
        now_ms: Where virtual time begins, in milliseconds since the Unix epoch.
        partitions: Partitions of the cluster.
        types: Job types that there are besides those that apps run.
        patience: Real seconds that a handler may take.
    """

    def __init__(self, now_ms: int, partitions: int, types: Iterable[str], patience: float) -> None:
        self.cluster = f"test-{secrets.token_hex(4)}"
        self.clock = VirtualClock(now_ms)
        self.kafka = MemoryKafka()
        self.faults = Faults()
        self.types = {names.check_type(each) for each in types}
        self.log = Logbook(self.kafka, names.log_topic(self.cluster))
        self.leaders = Leaders(self.kafka, self.clock, self.cluster, partitions, self.types)
        self.crews: list[Crew] = []
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._progress = asyncio.Event()
        self._settling = False
        self._cancelled: list[asyncio.Task[Any]] = []
        self._open = ExitStack()
        self._open.enter_context(virtual_time())

    # Workers

    def run(self, app: WorkerApp | JobWorker, dedup: DedupStore | None) -> None:
        """Start a worker process for an app."""
        if not isinstance(app, WorkerApp | JobWorker):
            raise InvalidRequest(
                f"run takes a relevo.WorkerApp or relevo.JobWorker, not a {type(app).__name__}: a handler is "
                f"registered with @app.job(...) first"
            )
        check_store(dedup)
        if app._workers.workers:
            raise ConfigurationError("this app was started already: it works for a real cluster")
        types = tuple(app._workers.types)
        if not types:
            raise ConfigurationError("no job type has a handler: nothing to run")
        taken = {spec.type for crew in self.crews for spec in crew.types} & {spec.type for spec in types}
        if taken:
            raise ConfigurationError(f"job type {min(taken)!r} is run already by an app of this engine")
        self.types |= {spec.type for spec in types}
        workers = app._workers
        store = dedup if dedup is not None else workers._args[3]
        habits = Habits(workers._watch, workers._suspect_after, workers._tracing)
        crew = Crew(types, Memory(store, self.clock), habits)
        self._hire(crew)
        self.crews.append(crew)

    def _hire(self, crew: Crew) -> None:
        crew.started += 1
        around = Surroundings(
            self.kafka, self.clock, self.faults, self.cluster, self.leaders.partitions, self._loop, self._wake
        )
        store = ProcessStore(crew.memory, self.clock, self.faults)
        process = WorkerProcess(crew.started, crew.types, store, crew.habits, around)
        process.assign()
        crew.processes.append(process)

    def replace(self, crew: Crew, process: WorkerProcess) -> None:
        """A process is gone; where it had the partitions, a new one gets them."""
        had_partitions = process is crew.owner
        self._cancelled += process.tasks()
        process.end("the worker process died")
        crew.processes.remove(process)
        if had_partitions:
            self._hire(crew)

    def hand_over(self, crew: Crew) -> None:
        """The partitions go to a new process; the former one goes on with what it runs."""
        crew.owner.lose_partitions()
        self._hire(crew)

    def holder_of(self, key: str) -> tuple[Crew, WorkerProcess] | None:
        """The process that runs the handler of a job, the first one where there are several."""
        for crew in self.crews:
            for process in crew.processes:
                if key in process.running:
                    return crew, process
        return None

    @property
    def processes(self) -> list[WorkerProcess]:
        """All processes that there are."""
        return [process for crew in self.crews for process in crew.processes]

    # Commands and activations

    def send(self, key: str, command: Command) -> tuple[int, int]:
        """Put a command into Kafka and let the engine decide; returns partition and offset."""
        partition = partition_of(key, self.leaders.partitions)
        topic = names.commands_topic(self.cluster)
        offset = self.kafka.append(topic, partition, key.encode(), encode(command))
        self.leaders.step(partition)
        self._wake()
        return partition, offset

    def activations(self, key: str) -> list[MemoryMessage]:
        """The activations of a job, in order."""
        found = []
        for job_type in self.types:
            topic = names.activations_topic(self.cluster, job_type)
            for slot in range(self.leaders.partitions):
                records = self.kafka.read(topic, slot, 0, self.kafka.end(topic, slot))
                found += [each for each in records if each.key() == key.encode()]
        return found

    # Going on

    def _wake(self) -> None:
        """From any thread: something has happened."""
        try:
            self._loop.call_soon_threadsafe(self._progress.set)
        except RuntimeError:
            # The loop is closed: a thread's handler has outlived its engine, and nobody waits for it.
            if not self._loop.is_closed():
                raise

    def _turn(self) -> bool:
        moved = self.leaders.step()
        for crew in self.crews:
            for process in list(crew.processes):
                moved = process.turn() or moved
                if process.dying:
                    self.replace(crew, process)
                    moved = True
                elif process is not crew.owner and process.idle:
                    process.end("its partitions went to another worker")
                    crew.processes.remove(process)
        return moved

    async def settle(self, *, leave_running: bool = False) -> None:
        """Go on until nothing is to be done at the present time."""
        if self._settling:
            raise ConfigurationError(
                "settle and advance are the test's, one at a time: this engine is at it already. A handler "
                "that creates jobs needn't wait for them"
            )
        self._settling = True
        try:
            await self._settle(leave_running)
        finally:
            self._settling = False

    async def _settle(self, leave_running: bool) -> None:
        for _ in range(ROUNDS_MAX):
            self._progress.clear()
            if self._turn():
                continue
            running = [process for process in self.processes if process.running and not process.frozen]
            if not running:
                return
            if not (leave_running and all(_all_entered(each) for each in running)):
                await self._await_handlers(running)
            elif not any(_cancelled(each) for each in running) or not await self._let_end():
                return
        raise StillRunning(
            f"the work goes on and on at one point of time (after {ROUNDS_MAX} rounds): does a handler "
            f"create jobs without end?"
        )

    async def _let_end(self) -> bool:
        """Give coroutines that are cancelled their turn; whether one of them has ended."""
        for _ in range(_TURNS_TO_END):
            await asyncio.sleep(0)
        return self._progress.is_set()

    async def _await_handlers(self, processes: list[WorkerProcess]) -> None:
        try:
            await asyncio.wait_for(self._progress.wait(), self._patience)
        except TimeoutError:
            jobs = [f"{item.job.type} {key!r}" for each in processes for key, item in each.running.items()]
            raise StillRunning(
                f"nothing has happened for {self._patience:g} s of real time, and these handlers still run: "
                f"{', '.join(jobs[:5])}{' ...' if len(jobs) > 5 else ''}. A handler's own waits are real: "
                f"let it wait for less, give Engine(patience=...), or leave it running with "
                f"leave_running=True"
            ) from None

    async def advance(self, seconds: float, *, leave_running: bool = False) -> None:
        """Let time pass: whatever falls due in it happens at its time."""
        if not seconds >= 0:
            raise InvalidRequest(f"time only goes forward: {seconds!r} seconds can't pass")
        if self.clock.now_ms + seconds * 1_000 > MOMENT_MAX_MS:
            raise InvalidRequest(f"time ends with the year 9999: {seconds!r} seconds can't pass")
        until = self.clock.now_ms + round(seconds * 1_000)
        await self.settle(leave_running=leave_running)
        while (due := self._next_ms()) is not None and due <= until:
            self.clock.now_ms = due
            await self.settle(leave_running=leave_running)
        self.clock.now_ms = max(until, self.clock.now_ms)
        await self.settle(leave_running=leave_running)

    def _next_ms(self) -> int | None:
        dues = [self.clock.ms_at(at) for each in self.processes if (at := each.next_at()) < float("inf")]
        engine = self.leaders.next_ms()
        if engine is not None:
            dues.append(max(engine, self.clock.now_ms + 1))
        return min(dues, default=None)

    async def close(self) -> None:
        """End all processes; coroutine handlers that still run are cancelled."""
        try:
            for process in self.processes:
                self._cancelled += process.tasks()
                process.end("the engine was closed")
            self.crews.clear()
            if self._cancelled:
                await asyncio.wait(self._cancelled, timeout=_END_S)
        finally:
            self._open.close()


def _cancelled(process: WorkerProcess) -> bool:
    return any(item.called_off or item.timed_out for item in process.running.values())


def _all_entered(process: WorkerProcess) -> bool:
    return all(item.job in process.entered for item in process.running.values())


__all__ = ["Crew", "StillRunning", "World"]
