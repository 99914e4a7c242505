"""A worker process: the real `TypeWorker`s, driven turn by turn, and the steps at which it can die."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from confluent_kafka import TopicPartition

from relevo import names
from relevo.follower import Follower
from relevo.sender import Sender
from relevo.testing.inmemory.clock import VirtualClock
from relevo.testing.inmemory.connections import MemoryConsumer, MemoryFollower, MemorySender
from relevo.testing.inmemory.faults import Faults, ProcessEnded, WorkerDied
from relevo.testing.inmemory.kafka import MemoryKafka
from relevo.testing.inmemory.stores import ProcessStore
from relevo.worker.execution import Handler, LoopThread, Runner, is_async
from relevo.worker.gate import Gate
from relevo.worker.item import Item
from relevo.worker.job import Job
from relevo.worker.keeper_thread import Keeper, KeeperThread
from relevo.worker.leases import REPORT_AFTER_S
from relevo.worker.worker import JobType, Shared, TypeWorker

_SLACK_S: Final = 0.001
"""Comparisons of sums in floating point: by then they are true."""


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process finds where it starts.

    Attributes:
        kafka: The lists.
        clock: The time.
        faults: What is planned.
        cluster: Name of the cluster.
        partitions: Partitions of every topic.
        loop: Runs coroutine handlers.
        wake: Called from any thread when a handler has begun or ended.
    """

    kafka: MemoryKafka
    clock: VirtualClock
    faults: Faults
    cluster: str
    partitions: int
    loop: asyncio.AbstractEventLoop
    wake: Callable[[], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Habits:
    """What an app says about its worker processes, by the names of `relevo.WorkerApp`'s arguments."""

    watch: bool
    suspect_after: int | None
    tracing: bool | None


class _Loop:
    """Stands for `LoopThread`: the handlers' loop is the test's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop


class _Keepers:
    """Stands for each `KeeperThread`: `WorkerProcess` ticks the keepers."""

    def __init__(self) -> None:
        self.keepers: list[Keeper] = []

    def add(self, keeper: Keeper) -> None:
        self.keepers.append(keeper)


class _Stage:
    """The runner that a gate sees: may hold items back where their process is to stop before the handler."""

    def __init__(self, process: WorkerProcess, inner: Runner) -> None:
        self._process = process
        self.inner = inner
        self.held: list[Item] = []

    def submit(self, items: Sequence[Item]) -> None:
        if self._process.stops_at_start():
            self.held += items
        else:
            self.inner.submit(items)

    def resume(self) -> None:
        held, self.held = self.held, []
        if held:
            self.inner.submit(held)

    def cancel(self, item: Item) -> None:
        self.inner.cancel(item)

    def close(self) -> None:
        self.inner.close()


class WorkerProcess:
    """One worker process of an app.

    Attributes:
        number: Its number, from 1.
        frozen: It does nothing, as if it was stopped or its machine paused.
        dying: It has got to the step where it dies; `crash` does the rest.
        entered: Attempts whose handler has begun.
    """

    def __init__(
        self,
        number: int,
        types: Sequence[JobType],
        store: ProcessStore,
        habits: Habits,
        around: Surroundings,
    ) -> None:
        self.number = number
        self.frozen = False
        self.dying = False
        self.entered: set[Job] = set()
        self._around = around
        self._stop_at_start: str | None = None
        self._keepers = _Keepers()
        self._sender = MemorySender(around.kafka, around.faults)
        self._follower = (
            MemoryFollower(around.kafka, names.log_topic(around.cluster), around.partitions)
            if habits.watch
            else None
        )
        shared = Shared(
            "memory",
            around.cluster,
            {},
            store,
            0.0,
            **dataclasses.asdict(habits),
            identity=f"worker-{number}",
        )
        shared.sender = cast(Sender, self._sender)
        shared.loop = cast(LoopThread, _Loop(around.loop))
        shared.leases = shared.claims = cast(KeeperThread, self._keepers)
        shared.follower = cast("Follower | None", self._follower)
        self.workers = [
            TypeWorker(dataclasses.replace(spec, handler=self._watched(spec.handler)), shared)
            for spec in types
        ]
        self._stages = [self._stage(worker) for worker in self.workers]
        self._consumers = [self._consumer(worker) for worker in self.workers]

    # Putting it together

    def _watched(self, handler: Handler) -> Handler:
        """The handler, which tells that it has begun."""
        if is_async(handler):

            async def run_async(job: Job) -> Any:
                self._enter(job)
                try:
                    return await handler(job)
                except WorkerDied:
                    self.dying = True
                    raise

            return run_async

        def run(job: Job) -> Any:
            self._enter(job)
            try:
                return handler(job)
            except WorkerDied:
                self.dying = True
                raise

        return run

    def _enter(self, job: Job) -> None:
        self.entered.add(job)
        self._around.wake()

    def _stage(self, worker: TypeWorker) -> _Stage:
        stage = _Stage(self, worker.runner)
        worker.gate._runner = stage
        worker.gate._inquiries = worker._inquiries
        # What the runner calls when a handler has ended.
        cast(Any, worker.runner)._finished = lambda items: self._finished(worker.gate, items)
        return stage

    def _consumer(self, worker: TypeWorker) -> MemoryConsumer:
        group = names.workers_group(self._around.cluster, worker.spec.type)
        consumer = MemoryConsumer(self._around.kafka, group, worker.consumer._config["on_commit"])
        worker.consumer._consumer = consumer
        return consumer

    def _finished(self, gate: Gate, items: list[Item]) -> None:
        """From any thread: handlers have ended. What a dying process hears is lost."""
        if not self.dying:
            action = self._around.faults.take("effect")
            if action == "die":
                self.dying = True
            else:
                self.frozen = self.frozen or action == "freeze"
                gate.finished(items)
        self._around.wake()

    def stops_at_start(self) -> bool:
        """Whether the handlers that are to start now don't, as this is where the process stops."""
        if self._stop_at_start is None:
            self._stop_at_start = self._around.faults.take("start")
        return self._stop_at_start is not None

    # Partitions

    def _places(self, worker: TypeWorker) -> list[TopicPartition]:
        topic = names.activations_topic(self._around.cluster, worker.spec.type)
        return [TopicPartition(topic, number) for number in range(self._around.partitions)]

    def assign(self) -> None:
        """It gets all partitions of its types."""
        for worker, consumer in zip(self.workers, self._consumers, strict=True):
            worker.consumer._on_assign(cast(Any, consumer), self._places(worker))

    def lose_partitions(self) -> None:
        """Another process has them: what runs here goes on, and moves no offset."""
        for worker, consumer in zip(self.workers, self._consumers, strict=True):
            worker.consumer._on_lost(cast(Any, consumer), self._places(worker))

    # Working

    @property
    def running(self) -> dict[str, Item]:
        """Jobs whose handlers were started here and have not been seen to end, by key."""
        return {key: item for worker in self.workers for key, item in list(worker.gate.running.items())}

    @property
    def idle(self) -> bool:
        """Whether it has nothing under way at all."""
        return not any(worker.gate._by_key for worker in self.workers) and not self._sender.unacknowledged

    def turn(self) -> bool:
        """Do all that can be done now; whether there was anything."""
        if self.frozen or self.dying or not self._busy():
            return False
        try:
            with self._around.clock.driving():
                self._work()
        except ProcessEnded:
            self.dying = True
        return True

    def _busy(self) -> bool:
        return self._sender.unacknowledged or any(
            (consumer.behind and worker.consumer._free() > 0)
            or worker.consumer._commits.due()
            or _gate_at(worker.gate, self._now) <= self._now
            or _keeper_at(worker) <= self._now
            for worker, consumer in zip(self.workers, self._consumers, strict=True)
        )

    @property
    def _now(self) -> float:
        return self._around.clock.monotonic()

    def _work(self) -> None:
        self._sender.ack()
        for worker, consumer in zip(self.workers, self._consumers, strict=True):
            self._read(worker, consumer)
            # One round that doesn't wait: something is in the inbox.
            worker.gate._inbox.put(lambda: None)
            worker.gate._turn()
        if self._stop_at_start is not None:
            self._stop(self._stop_at_start)
            return
        for keeper in self._keepers.keepers:
            keeper.tick()
        for worker in self.workers:
            self._commit(worker)

    def _read(self, worker: TypeWorker, consumer: MemoryConsumer) -> None:
        found = consumer.take(max(0, worker.consumer._free()))
        if found:
            worker.consumer._take(cast(Any, found))
            self._around.faults.pass_by("read")

    def _commit(self, worker: TypeWorker) -> None:
        # Also where nothing is to be committed then: what runs at most once was committed before.
        if self._sender.endings_acknowledged:
            self._sender.endings_acknowledged = 0
            self._around.faults.pass_by("complete")
        if not worker.consumer._commits.due():
            return
        worker.consumer._commit_async()
        self._around.faults.pass_by("commit")

    def _stop(self, action: str) -> None:
        """At the start of handlers: die or freeze, once it has been reported that they run."""
        self._stop_at_start = None
        self.report_started()
        if action == "die":
            raise ProcessEnded("start")
        self.frozen = True

    def report_started(self) -> None:
        """Let so much time pass that what runs here is reported to the engine as started."""
        self._around.clock.now_ms += math.ceil((REPORT_AFTER_S + _SLACK_S) * 1_000)
        with self._around.clock.driving():
            for keeper in self._keepers.keepers:
                keeper.tick()

    def next_at(self) -> float:
        """When it has something to do by time alone, in virtual seconds."""
        if self.frozen or self.dying:
            return math.inf
        return min(
            (min(_gate_at(worker.gate, self._now), _keeper_at(worker)) for worker in self.workers),
            default=math.inf,
        )

    # Ending

    def thaw(self) -> None:
        """It goes on where it was."""
        self.frozen = False
        for stage in self._stages:
            stage.resume()

    def end(self, reason: str) -> None:
        """It is gone: coroutines are cancelled, threads are left to themselves, nothing is reported."""
        self.dying = True
        for worker in self.workers:
            worker.runner.close()
            for item in list(worker.gate.running.values()):
                item.job._mark_lost(reason)
                if item.task is not None:
                    item.task.cancel()
        if self._follower is not None:
            self._follower.close()

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Coroutine handlers that run here."""
        return [item.task for item in self.running.values() if item.task is not None]


def _gate_at(gate: Gate, now: float) -> float:
    """When a gate's next round has something to do."""
    if gate._ended or not gate._inbox.empty():
        return now
    due = gate._later.next_at(math.inf)
    if gate._waiting and not gate._desk.shut_out and gate._free() > 0:
        due = min(due, max(now, gate._claims.pause_until))
    return due


def _keeper_at(worker: TypeWorker) -> float:
    """When the keepers of leases and claims have something to do."""
    timeout = worker.spec.timeout
    due = math.inf
    for item in list(worker.gate.kept.values()):
        if item.reported != item.attempt:
            due = min(due, item.started_at + REPORT_AFTER_S + _SLACK_S)
        elif not item.timed_out:
            due = min(due, item.renew_at)
        if worker.claims is not None and not item.timed_out:
            due = min(due, item.claim_due)
        noted = item.job._note.due_at if item.job._note is not None else None
        if noted is not None and not (item.timed_out or item.job.lost):
            due = min(due, noted + _SLACK_S)
        if timeout is not None and item.running and not item.timed_out:
            due = min(due, item.started_at + timeout + _SLACK_S)
    return due
