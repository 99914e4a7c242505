"""What a worker tells Prometheus. Nothing is counted here: a scrape reads the worker's own counters."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from relevo.errors import MissingExtra
from relevo.stats import BOUNDS_S, Histogram

if TYPE_CHECKING:
    from relevo.worker.worker import TypeWorker

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "relevo_worker_"

# The counter of `relevo.stats.WorkerStats`, its name here, and what it says.
_COUNTERS: Final = (
    ("received", "received", "Activations read."),
    ("started", "started", "Handlers started."),
    ("done", "done", "Jobs completed, and the completion acknowledged."),
    ("errored", "errored", "Jobs ended with a business error, and that acknowledged."),
    ("duplicates_suppressed", "duplicates_suppressed", "Activations of jobs done before, or at work here."),
    ("stale_dropped", "stale_dropped", "Activations dropped unstarted: another worker's, or outdated."),
    ("claim_waits", "claim_waits", "Times another worker held the claim of a job."),
    ("suspects", "suspects", "Handlers started alone, as several attempts of their jobs had fallen silent."),
    ("lost", "leases_lost", "Attempts that lost their lease or claim while they ran."),
    ("extended", "leases_renewed", "Renewals of leases sent."),
    ("started_sent", "starts_reported", "Attempts reported to the engine as running."),
    ("resent", "resent", "Outcomes sent again, as Kafka had not acknowledged them."),
    ("damaged", "damaged", "Activations that could not be read."),
    ("commits", "commits", "Offsets committed, by partition."),
    ("commit_errors", "commit_errors", "Commits that Kafka refused."),
    ("rebalances", "rebalances", "Times partitions came or went."),
    ("holes", "reread", "Times messages had been swallowed and were read again."),
    ("callback_errors", "callback_errors", "Exceptions in callbacks and reads that were caught."),
)  # fmt: skip

_GAUGES: Final = (
    ("alive", "1 while its threads live, else 0."),
    ("running", "Handlers at work."),
    ("concurrency", "Handlers that may be at work at once."),
    ("buffered", "Activations read and not finished, those at work included."),
    ("partitions", "Kafka partitions that this worker has."),
    ("paused_partitions", "Kafka partitions that aren't read for now, as the worker is full."),
    ("store_silent", "1 where the dedup store gave no answer when last asked, else 0."),
)


def _gauges(worker: TypeWorker) -> tuple[float, ...]:
    """A worker's `_GAUGES`, in their order."""
    partitions = len(worker.tracker.owned())
    return (
        worker.alive,
        len(worker.gate.running),
        worker.concurrency,
        worker.tracker.unfinished,
        partitions,
        partitions if worker.consumer.reading.paused else 0,
        worker.store_silent,
    )


class WorkerCollector:
    """The figures of a worker process, as Prometheus' registries ask for them.

    Args:
        workers: Gives the workers of all types, as they are at the moment.
    """

    def __init__(self, workers: Callable[[], Sequence[TypeWorker]]) -> None:
        self._workers = workers
        self._core: Any = importlib.import_module("prometheus_client.core")

    def describe(self) -> Iterable[Any]:
        """Nothing: a registry need not collect in order to learn the names."""
        return []

    def collect(self) -> Iterator[Any]:
        """The metrics, read now."""
        workers = self._workers()
        counters = {each.spec.type: each.stats.snapshot() for each in workers}
        for name, shown, says in _COUNTERS:
            yield self._counter(shown, says, {kind: found[name] for kind, found in counters.items()})
        waited = {kind: found["claim_wait_ms"] / 1_000 for kind, found in counters.items()}
        yield self._counter("claim_wait_seconds", "How long jobs waited for other workers' claims.", waited)
        yield self._failed(workers)
        yield self._unanswered(counters)
        gauges = {each.spec.type: _gauges(each) for each in workers}
        for at, (name, says) in enumerate(_GAUGES):
            gauge = self._core.GaugeMetricFamily(_PREFIX + name, says, labels=("type",))
            for kind, values in gauges.items():
                gauge.add_metric((kind,), values[at])
            yield gauge
        yield self._lag(workers)
        yield self._histogram(
            "queue_seconds",
            "From a job's hand-over by the engine to its handler's start, by the clocks of both machines.",
            {each.spec.type: each.stats.queue_time for each in workers},
        )
        yield self._histogram(
            "handler_seconds",
            "From a handler's start to its end, however it ended.",
            {each.spec.type: each.stats.handler_time for each in workers},
        )

    def _counter(self, name: str, says: str, values: dict[str, float]) -> Any:
        family = self._core.CounterMetricFamily(_PREFIX + name, says, labels=("type",))
        for kind, value in values.items():
            family.add_metric((kind,), value)
        return family

    def _failed(self, workers: Sequence[TypeWorker]) -> Any:
        family = self._core.CounterMetricFamily(
            _PREFIX + "failed", "Attempts that failed, and the report acknowledged.", labels=("type", "kind")
        )
        for each in workers:
            for kind, count in each.stats.failures.items():
                family.add_metric((each.spec.type, kind), count)
        return family

    def _unanswered(self, counters: dict[str, dict[str, int]]) -> Any:
        family = self._core.CounterMetricFamily(
            _PREFIX + "store_unanswered",
            "Questions to the dedup store that got no clear answer.",
            labels=("type", "call"),
        )
        for kind, found in counters.items():
            family.add_metric((kind, "claim"), found["unknown_claims"])
            family.add_metric((kind, "done"), found["unknown_done"])
        return family

    def _lag(self, workers: Sequence[TypeWorker]) -> Any:
        family = self._core.GaugeMetricFamily(
            _PREFIX + "lag",
            "Offsets in Kafka that this worker has not read yet.",
            labels=("type", "partition"),
        )
        for each in workers:
            for partition, lag in sorted(each.consumer.reading.lag.items()):
                family.add_metric((each.spec.type, str(partition)), lag)
        return family

    def _histogram(self, name: str, says: str, found: dict[str, Histogram]) -> Any:
        family = self._core.HistogramMetricFamily(_PREFIX + name, says, labels=("type",))
        for kind, histogram in found.items():
            below = 0
            buckets = []
            for bound, count in zip((*map(str, map(float, BOUNDS_S)), "+Inf"), histogram.counts, strict=True):
                below += count
                buckets.append((bound, below))
            family.add_metric((kind,), buckets, histogram.seconds)
        return family


def exposition(workers: Callable[[], Sequence[TypeWorker]]) -> Callable[[], bytes]:
    """A function that gives the worker's figures, and what else this process counts, for Prometheus.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """
    try:
        prometheus: Any = importlib.import_module("prometheus_client")
    except ImportError as error:
        raise MissingExtra("/metrics", "metrics") from error
    registry = prometheus.CollectorRegistry()
    registry.register(WorkerCollector(workers))

    def render() -> bytes:
        # What handlers count by themselves lies in the default registry, as do the process' own figures.
        return bytes(prometheus.generate_latest(registry) + prometheus.generate_latest(prometheus.REGISTRY))

    return render


__all__ = ["CONTENT_TYPE", "WorkerCollector", "exposition"]
