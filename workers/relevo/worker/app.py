"""The faces of a worker process: `WorkerApp` with a decorator, `JobWorker` as an object."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar

from relevo.client.aclient import AsyncClient
from relevo.client.client import Client
from relevo.dedup.store import DedupStore
from relevo.environment import find_place
from relevo.errors import ConfigurationError
from relevo.health.pages import health_server
from relevo.health.server import HealthServer, parse_address
from relevo.stats import WorkerStats, total
from relevo.worker.dedup_key import DedupBy
from relevo.worker.execution import Handler
from relevo.worker.waiting import SUSPECT_AFTER
from relevo.worker.worker import BUFFER, DRAIN_S, STOP_S, Delivery, JobType, Workers

_log: Final = logging.getLogger("relevo.worker")
H = TypeVar("H", bound=Handler)

_WAKE_S: Final = 0.2


class _Runnable:
    """What both faces share: start, stop, run until told to end."""

    _workers: Workers
    _http: str | None = None
    _server: HealthServer | None = None

    @property
    def http(self) -> str | None:
        """Where ``/healthz``, ``/readyz`` and ``/metrics`` are served while it works; None: nowhere.

        Set it before the start, as ``host:port``. Port 0: any that is free; once started, this says which.

        Raises:
            ConfigurationError: It is no address, or the worker was started already.
        """
        return self._server.address if self._server is not None else self._http

    @http.setter
    def http(self, address: str | None) -> None:
        if self._workers.workers:
            raise ConfigurationError("the worker runs already: set http before it is started")
        if address is not None:
            parse_address(address)
        self._http = address

    @property
    def stats(self) -> WorkerStats:
        """Counters, summed over all job types."""
        return total(list(self._workers.stats.values()))

    @property
    def stats_by_type(self) -> Mapping[str, WorkerStats]:
        """Counters by job type, live."""
        return self._workers.stats

    @property
    def alive(self) -> bool:
        """Whether all job types are being worked on; False before the start and after the end."""
        return self._workers.alive

    def start(self) -> None:
        """Start working, in threads; returns at once.

        Raises:
            ConfigurationError: No job type has a handler, it was started before, or the port in `http` is in
                use.
            UsedAfterFork: It was made in another process.
        """
        if self._http is None or self._workers.workers:
            self._workers.start()
            return
        # The port first: without it nothing is begun that would have to be ended.
        server = health_server(self._http, self._workers)
        try:
            self._workers.start()
        except BaseException:
            server.close()
            raise
        self._server = server
        server.start()

    def stop(self, drain: float = STOP_S) -> None:
        """Start no more jobs, let running ones finish for ``drain`` seconds, commit, and leave.

        What has not finished by then is delivered again, here or elsewhere, once its claim has ended.
        Twice does no harm.
        """
        try:
            self._workers.stop(drain)
        finally:
            if self._server is not None:
                self._server.close()

    def run(self, drain: float = STOP_S) -> None:
        """Work until SIGTERM or SIGINT, then `stop`; a second signal ends it at once.

        Signals are taken only when called from the main thread; elsewhere it works until `request_stop`.

        Raises:
            StoreUnsafe: The dedup store would forget claims.
            RelevoError: The worker can't go on; the message says why.
        """
        signals = 0

        def on_signal(number: int, frame: FrameType | None) -> None:
            # No event is set: this thread may be inside of its lock right now, and would wait for itself.
            nonlocal signals
            signals += 1

        in_main = threading.current_thread() is threading.main_thread()
        before = (
            {each: signal.signal(each, on_signal) for each in (signal.SIGTERM, signal.SIGINT)}
            if in_main
            else {}
        )
        try:
            self.start()
            while not self._stopping.wait(_WAKE_S) and not signals and self._workers.alive:
                pass
            self._stopping.set()
            ending = threading.Thread(target=self.stop, args=(drain,), name="relevo-stop", daemon=True)
            ending.start()
            while ending.is_alive() and signals < 2:
                ending.join(_WAKE_S)
            if signals > 1:
                _log.warning("ended at once; jobs that were running are delivered again")
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._workers.fault is not None:
            raise self._workers.fault

    def request_stop(self) -> None:
        """Let `run` drain and return, as a first signal does. From any thread."""
        self._stopping.set()

    _stopping: threading.Event


class WorkerApp(_Runnable):
    """A worker process: handlers by job type.

    Args:
        bootstrap: ``host:port`` of Kafka, several separated by commas; None: ``RELEVO_KAFKA`` in the
            environment (with ``RELEVO_KAFKA_OPTIONS``), else localhost:9092.
        cluster: The cluster's name; None: ``RELEVO_CLUSTER`` in the environment, else relevo.
        dedup: Remembers what was done; None: `MemoryDedupStore`, which knows of this process only.
        drain: How long running handlers may finish when a partition goes to another worker, in seconds.
        watch: Follow the log for jobs that run long, to learn that they were cancelled or timed out.
        suspect_after: A job of which so many attempts fell silent runs alone in this process: nothing else
            is started until it has ended, so that if it kills the process, no other job is taken along. To
            help, it must be less than the nodes' ``lease_expiries_max``. None: it runs beside others.
        http: Where to serve health and metrics, as ``host:port``; see `http`. None: nowhere.
        tracing: Open a span for each attempt, where OpenTelemetry is installed; None: unless
            ``RELEVO_TRACING`` in the environment says ``off``.
        **kafka_options: librdkafka's options, with underscores for dots or by ``**{"…": …}``.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        cluster: str | None = None,
        *,
        dedup: DedupStore | None = None,
        drain: float = DRAIN_S,
        watch: bool = True,
        suspect_after: int | None = SUSPECT_AFTER,
        http: str | None = None,
        tracing: bool | None = None,
        **kafka_options: Any,
    ) -> None:
        place = find_place(bootstrap, cluster, kafka_options)
        self._workers = Workers(*place, dedup, drain, watch, suspect_after, tracing)
        self._stopping = threading.Event()
        self.http = http

    def job(
        self,
        type: str,
        *,
        lease: float | None = None,
        concurrency: int | None = None,
        delivery: Delivery = "at-least-once",
        timeout: float | None = None,
        ttl: float | None = None,
        buffer: int = BUFFER,
        dedup_by: DedupBy | None = None,
        ordered: bool = False,
        cancel_when_lost: bool = False,
    ) -> Callable[[H], H]:
        """Make the decorated function the handler of a job type. For the arguments see `JobType`.

        Raises:
            ConfigurationError: An argument can't be right, or the type has a handler already.
        """
        if callable(type):
            raise ConfigurationError("name the job type: @app.job('send-email')")

        def register(handler: H) -> H:
            self._workers.add(
                JobType(
                    type,
                    handler,
                    lease=lease,
                    concurrency=concurrency,
                    delivery=delivery,
                    timeout=timeout,
                    ttl=ttl,
                    buffer=buffer,
                    dedup_by=dedup_by,
                    ordered=ordered,
                    cancel_when_lost=cancel_when_lost,
                )
            )
            return handler

        return register

    @property
    def types(self) -> tuple[JobType, ...]:
        """How each job type is run."""
        return tuple(self._workers.types)

    def __enter__(self) -> WorkerApp:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class JobWorker(_Runnable):
    """A worker for one job type.

    Args:
        client: Where to work: its address, cluster and options are used. The worker has connections of its
            own.
        job_type: The job type.
        handler: A coroutine function or a plain one, called with the `Job`.
        dedup_store: Remembers what was done; None: `MemoryDedupStore`.
        ttl: Dedup window in seconds; None: the store's own.
        lease: See `JobType`.
        concurrency: See `JobType`.
        delivery: See `JobType`.
        timeout: See `JobType`.
        buffer: See `JobType`.
        dedup_by: See `JobType`.
        ordered: See `JobType`.
        drain: How long running handlers may finish when a partition goes to another worker, in seconds.
        watch: Follow the log for jobs that run long.
        suspect_after: See `WorkerApp`.
        http: See `WorkerApp`.
        tracing: See `WorkerApp`.
    """

    def __init__(
        self,
        *,
        client: Client | AsyncClient,
        job_type: str,
        handler: Handler,
        dedup_store: DedupStore | None = None,
        ttl: float | None = None,
        lease: float | None = None,
        concurrency: int | None = None,
        delivery: Delivery = "at-least-once",
        timeout: float | None = None,
        buffer: int = BUFFER,
        dedup_by: DedupBy | None = None,
        ordered: bool = False,
        cancel_when_lost: bool = False,
        drain: float = DRAIN_S,
        watch: bool = True,
        suspect_after: int | None = SUSPECT_AFTER,
        http: str | None = None,
        tracing: bool | None = None,
    ) -> None:
        if not all(hasattr(client, name) for name in ("bootstrap", "cluster", "kafka_options")):
            raise ConfigurationError(
                f"client must be a relevo.Client or relevo.AsyncClient, not {client!r:.100}: its address, "
                f"cluster and options are used"
            )
        self._workers = Workers(
            client.bootstrap,
            client.cluster,
            client.kafka_options,
            dedup_store,
            drain,
            watch,
            suspect_after,
            tracing,
        )
        self._workers.add(
            JobType(
                job_type,
                handler,
                lease=lease,
                concurrency=concurrency,
                delivery=delivery,
                timeout=timeout,
                ttl=ttl,
                buffer=buffer,
                dedup_by=dedup_by,
                ordered=ordered,
                cancel_when_lost=cancel_when_lost,
            )
        )
        self._stopping = threading.Event()
        self.http = http

    def __enter__(self) -> JobWorker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
