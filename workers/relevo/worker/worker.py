"""One job type's worker: what belongs together, started and ended in the right order."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from relevo import names
from relevo.consumer.consumer import ActivationConsumer
from relevo.consumer.offsets import OffsetTracker
from relevo.consumer.options import check_options
from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.store import DedupStore
from relevo.errors import ConfigurationError, RelevoError
from relevo.forks import ForkGuard
from relevo.stats import WorkerStats
from relevo.tracing import Tracer, tracer_for
from relevo.worker.claim_keeper import ClaimKeeper
from relevo.worker.dedup_key import DedupBy, DedupKey
from relevo.worker.execution import (
    AsyncHandler,
    AsyncRunner,
    Handler,
    Runner,
    SyncHandler,
    ThreadRunner,
    is_async,
    takes_a_job,
)
from relevo.worker.gate import Gate
from relevo.worker.inquiries import Inquiries
from relevo.worker.item import Item
from relevo.worker.leases import LeaseKeeper
from relevo.worker.locks import lock_prefix
from relevo.worker.settings import check_counts, check_process, check_store, check_times
from relevo.worker.shared import Shared
from relevo.worker.slot_reports import SlotReports
from relevo.worker.waiting import SUSPECT_AFTER

_log: Final = logging.getLogger("relevo.worker")

Delivery = Literal["at-least-once", "at-most-once"]
ASYNC_CONCURRENCY: Final = 100
SYNC_CONCURRENCY: Final = 8
BUFFER: Final = 2_000
DRAIN_S: Final = 10.0
STOP_S: Final = 30.0
CLAIM_MIN_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class JobType:
    """How jobs of one type are run.

    Attributes:
        type: Job type.
        handler: A coroutine function or a plain one, called with the `Job`; what it returns is the result.
        lease: How long an attempt may go without a sign of life, in seconds, from 1 to 86,400; None: as the
            job says. Signs of life come from this package by themselves, so it is the time after which a dead
            worker is replaced.
        concurrency: How many handlers run at once; None: 100 coroutines or 8 threads.
        delivery: ``at-least-once``: run, and then commit. ``at-most-once``: commit, then run, once; a job
            may be lost, and one that fails is not tried again.
        timeout: Longest run of a handler in seconds; a coroutine is cancelled then, for a plain function the
            lease is no longer renewed. None: any.
        ttl: Dedup window in seconds; None: the store's own.
        buffer: How many activations may be unfinished in this process at once.
        dedup_by: What the dedup store knows a job by: ``correlation_id``, or a function of the job that gives
            a text. Jobs of this type for which it is the same are run once, and all end with that result.
            None: the job's own key, as for a job without a correlation id or where the function gives None.
        ordered: Run one job of a correlation id at a time, among all workers that share the dedup store, and
            those that wait in this process in the order in which the engine handed them out. Jobs without a
            correlation id run as ever.
        cancel_when_lost: Cancel a coroutine whose attempt has lost its lease or claim, as another worker may
            run it by then. A plain function can't be interrupted: it looks at `Job.lost`.
    """

    type: str
    handler: Handler
    lease: float | None = None
    concurrency: int | None = None
    delivery: Delivery = "at-least-once"
    timeout: float | None = None
    ttl: float | None = None
    buffer: int = BUFFER
    dedup_by: DedupBy | None = None
    ordered: bool = False
    cancel_when_lost: bool = False

    def __post_init__(self) -> None:
        names.check_type(self.type)
        if not callable(self.handler):
            raise ConfigurationError(f"the handler of {self.type!r} can't be called: {self.handler!r}")
        if not takes_a_job(self.handler):
            raise ConfigurationError(
                f"the handler of {self.type!r} must take one argument, the job: "
                f"{getattr(self.handler, '__qualname__', self.handler)}{inspect.signature(self.handler)}"
            )
        if self.delivery not in ("at-least-once", "at-most-once"):
            raise ConfigurationError(f"delivery {self.delivery!r}: it is 'at-least-once' or 'at-most-once'")
        if self.dedup_by is not None and not (self.dedup_by == "correlation_id" or callable(self.dedup_by)):
            raise ConfigurationError(
                f"dedup_by of {self.type!r} must be 'correlation_id' or a function of the job, not "
                f"{self.dedup_by!r}"
            )
        if self.dedup_by is not None and self.delivery == "at-most-once":
            raise ConfigurationError(
                f"dedup_by of {self.type!r} needs the dedup store, and what is run at most once uses none"
            )
        self._check_ordered()
        self._check_cancel()
        check_times(self.type, lease=self.lease, timeout=self.timeout, ttl=self.ttl)
        check_counts(self.type, concurrency=self.concurrency, buffer=self.buffer)

    def _check_cancel(self) -> None:
        asked, name = self.cancel_when_lost, f"cancel_when_lost of {self.type!r}"
        if type(asked) is not bool:
            raise ConfigurationError(f"{name} must be True or False, not {asked!r}")
        if asked and not is_async(self.handler):
            raise ConfigurationError(
                f"{name}: a plain function can't be interrupted. Make the handler a coroutine function, or "
                f"let it look at job.lost"
            )

    def _check_ordered(self) -> None:
        if type(self.ordered) is not bool:
            raise ConfigurationError(f"ordered of {self.type!r} must be True or False, not {self.ordered!r}")
        if self.ordered and self.delivery == "at-most-once":
            raise ConfigurationError(
                f"ordered of {self.type!r} needs the dedup store, and what is run at most once uses none"
            )
        if self.ordered and self.dedup_by == "correlation_id":
            raise ConfigurationError(
                f"{self.type!r} has dedup_by='correlation_id': of all jobs of a correlation id one is run: "
                f"there is nothing to put in order. Leave one of the two out"
            )


class TypeWorker:
    """Reads, runs and finishes the jobs of one type."""

    def __init__(self, spec: JobType, shared: Shared) -> None:
        self.spec = spec
        self.stats = WorkerStats()
        self.tracker = OffsetTracker()
        at_most_once = spec.delivery == "at-most-once"
        store = None if at_most_once else shared.store
        concurrency = spec.concurrency or (ASYNC_CONCURRENCY if is_async(spec.handler) else SYNC_CONCURRENCY)
        commands = names.commands_topic(shared.cluster)
        group = names.workers_group(shared.cluster, spec.type)
        #: How many handlers may run at once.
        self.concurrency = concurrency
        namespace = f"{shared.cluster}:dedup:"
        self.gate = Gate(
            commands=commands,
            namespace=DedupKey(shared.cluster, spec.type, spec.dedup_by),
            tracker=self.tracker,
            sender=shared.sender,
            store=store,
            concurrency=concurrency,
            claim_s=self._claim_s,
            ttl=spec.ttl,
            stats=self.stats,
            name=spec.type,
            on_fault=lambda: self.consumer.abandon(),
            solitude=shared.solitude,
            suspect_after=shared.suspect_after,
            order_prefix=lock_prefix(shared.cluster, spec.type) if spec.ordered else None,
            commit_first=(lambda *wish: self.consumer.commit_first(*wish)) if at_most_once else None,
        )
        self.runner = self._make_runner(shared, tracer_for(spec.type, group, shared.tracing))
        self.consumer = ActivationConsumer(
            shared.bootstrap,
            shared.options,
            topic=names.activations_topic(shared.cluster, spec.type),
            group=group,
            tracker=self.tracker,
            deliver=self.gate.deliver,
            buffer=spec.buffer,
            concurrency=concurrency,
            drain_s=shared.drain_s,
            stats=self.stats,
            commit_first=at_most_once,
            name=spec.type,
        )
        leases = self._make_lease_keeper(shared, commands)
        shared.leases.add(leases)
        self.claims = self._make_claim_keeper(leases, namespace, store) if store is not None else None
        if self.claims is not None:
            shared.claims.add(self.claims)
        self._inquiries = (
            Inquiries(shared.follower, shared.sender, commands, shared.identity, self.gate.decided)
            if shared.follower is not None and not at_most_once
            else None
        )

    def _make_lease_keeper(self, shared: Shared, commands: str) -> LeaseKeeper:
        return LeaseKeeper(
            commands=commands,
            identity=shared.identity,
            kept=self.gate.kept,
            runner=self.runner,
            sender=shared.sender,
            lease_ms=round((self.spec.lease or 0) * 1_000),
            timeout=self.spec.timeout,
            follower=shared.follower,
            superseded=self.gate.superseded,
            stats=self.stats,
            slots=SlotReports(commands, shared.identity, self.spec.type, self.tracker, shared.sender),
            cancel_when_lost=self.spec.cancel_when_lost,
        )

    def _make_claim_keeper(self, leases: LeaseKeeper, namespace: str, store: DedupStore) -> ClaimKeeper:
        return ClaimKeeper(
            namespace=namespace,
            kept=self.gate.kept,
            store=store,
            claim_s=self._claim_s,
            lose=leases.lose,
            stats=self.stats,
        )

    def _make_runner(self, shared: Shared, tracer: Tracer | None) -> Runner:
        kind, handler, finished = self.spec.type, self.spec.handler, self.gate.finished
        if is_async(handler):
            return AsyncRunner(shared.loop, cast("AsyncHandler", handler), finished, self.stats, tracer)
        plain = cast("SyncHandler", handler)
        return ThreadRunner(plain, self.concurrency, finished, kind, self.stats, tracer)

    def _claim_s(self, lease_ms: int) -> float:
        return max(CLAIM_MIN_S, self.spec.lease or lease_ms / 1_000)

    def start(self) -> None:
        """Start reading."""
        self.gate.start(self.runner, self._inquiries)
        self.consumer.start()

    @property
    def alive(self) -> bool:
        """Whether it works; False once it was stopped, or can't go on."""
        return self.consumer.thread.is_alive() and self.gate.thread.is_alive()

    @property
    def store_silent(self) -> bool:
        """Whether the dedup store gave no answer when it was asked last."""
        return self.gate._claims.silent

    def stop(self, drain_s: float) -> None:
        """Ask it to drain; `join` waits for that."""
        self.consumer.stop(drain_s)

    def join(self, deadline: float) -> None:
        """Wait until it has drained and left; at the ``deadline`` (monotonic seconds) end it as it is."""
        self.consumer.thread.join(max(0.0, deadline - time.monotonic()) + 1.0)
        self.gate.stop()
        self.gate.thread.join(max(0.1, deadline - time.monotonic()))
        self.consumer.abandon()
        self.gate.abandon()
        self.runner.close()


class Workers:
    """The workers of one process: `WorkerApp` and `JobWorker` are faces of it.

    Attributes:
        types: How each job type is run.
    """

    def __init__(
        self,
        bootstrap: str,
        cluster: str,
        options: Mapping[str, Any],
        dedup: DedupStore | None,
        drain_s: float,
        watch: bool = True,
        suspect_after: int | None = SUSPECT_AFTER,
        tracing: bool | None = None,
    ) -> None:
        names.check_cluster(cluster)
        check_process(drain=drain_s, suspect_after=suspect_after)
        check_store(dedup)
        self.types: list[JobType] = []
        self._args = (bootstrap, cluster, options, dedup, drain_s)
        self._watch = watch
        self._suspect_after = suspect_after
        self._tracing = tracing
        #: When it was started, in monotonic seconds.
        self.started_at = 0.0
        #: Whether it was asked to end.
        self.stopping = False
        self._fork = ForkGuard("worker")
        self._shared: Shared | None = None
        self._workers: list[TypeWorker] = []
        self._lock = threading.Lock()

    def add(self, spec: JobType) -> None:
        """Run a further type."""
        if self._workers:
            raise ConfigurationError("the worker runs already: add types before it is started")
        if any(each.type == spec.type for each in self.types):
            raise ConfigurationError(f"job type {spec.type!r} has a handler already")
        self.types.append(spec)

    def start(self) -> None:
        """Start all types; returns at once.

        Raises:
            ConfigurationError: There is no type, or an option can't be right.
            UsedAfterFork: The worker was made in another process.
        """
        self._fork.check()
        with self._lock:
            if self._workers:
                raise ConfigurationError("the worker was started before")
            if not self.types:
                raise ConfigurationError("no job type has a handler: nothing to run")
            bootstrap, cluster, options, dedup, drain_s = self._args
            check_options(bootstrap, options, drain_s)
            shared = Shared(
                bootstrap,
                cluster,
                options,
                dedup if dedup is not None else MemoryDedupStore(),
                drain_s,
                self._watch,
                self._suspect_after,
                self._tracing,
            )
            shared.open()
            self._shared = shared
            self._workers = [TypeWorker(spec, shared) for spec in self.types]
            shared.sender.at_fault(self._give_up)
            self.started_at = time.monotonic()
            shared.leases.start()
            shared.claims.start()
            for worker in self._workers:
                worker.start()
            kinds = ", ".join(spec.type for spec in self.types)
            _log.info("%s works on %s, cluster %s, Kafka at %s", shared.identity, kinds, cluster, bootstrap)

    def _give_up(self, error: RelevoError) -> None:
        """Nothing can be reported any more: what would still be run, somebody else would run again."""
        for worker in self._workers:
            worker.gate.give_up(error)

    @property
    def stats(self) -> dict[str, WorkerStats]:
        """Counters by job type."""
        return {worker.spec.type: worker.stats for worker in self._workers}

    @property
    def running(self) -> list[Item]:
        """Handlers at work."""
        return [item for worker in self._workers for item in list(worker.gate.running.values())]

    @property
    def workers(self) -> list[TypeWorker]:
        """The workers, once started."""
        return self._workers

    @property
    def shared(self) -> Shared | None:
        """What the workers use together, from the start until they are stopped."""
        return self._shared

    @property
    def fault(self) -> Exception | None:
        """Why a worker can't go on, if one can't."""
        faults = (fault for each in self._workers for fault in (each.gate.fault, each.consumer.fault))
        return next((fault for fault in faults if fault is not None), None)

    @property
    def alive(self) -> bool:
        """Whether all types work."""
        return bool(self._workers) and all(worker.alive for worker in self._workers)

    def stop(self, drain_s: float) -> None:
        """Start no more jobs, let running ones finish for ``drain_s`` seconds, commit, leave."""
        if self._fork.foreign:
            return
        with self._lock:
            shared, self._shared = self._shared, None
            self.stopping = self.stopping or shared is not None
        if shared is None:
            return
        deadline = time.monotonic() + drain_s
        for worker in self._workers:
            worker.stop(drain_s)
        for worker in self._workers:
            worker.join(deadline)
        shared.close(max(0.5, min(5.0, deadline - time.monotonic())))


__all__ = ["Delivery", "JobType", "Shared", "TypeWorker", "Workers"]
