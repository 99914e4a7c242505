"""What a node tells Prometheus. Counts come from the host's calls; gauges are asked for at a scrape."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relevo_engine import logs
from relevo_engine.snapshot_metrics import REFUSED, SnapshotMetrics
from relevo_partitions.observer import Observer
from relevo_partitions.term.takeover import Takeover

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# The steps of a takeover say little to anybody but a developer.
_STEPS: Final = frozenset({"FENCING", "VERIFYING", "REPLAYING", "ANNOUNCING"})


@dataclass(frozen=True, slots=True)
class PartitionGauges:
    """One partition as this node sees it at the moment of a scrape.

    Attributes:
        partition: Its number.
        role: What this node is to it.
        epoch: Number of its last term that this node knows of.
        lag: Commands that wait to be decided, where this node leads; else None.
        jobs: Jobs by state and type, where this node leads.
        oldest_ready_ms: How long the next job of a type has waited in the engine, by type, in milliseconds.
        oldest_offered_ms: Age of the oldest activation that no worker has started, in milliseconds.
        oldest_overdue_ms: Milliseconds since the lease ran out that ran out first and hasn't been ended; 0
            where none is overdue.
    """

    partition: int
    role: str
    epoch: int
    lag: int | None = None
    jobs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    oldest_ready_ms: Mapping[str, int] = field(default_factory=dict)
    oldest_offered_ms: int = 0
    oldest_overdue_ms: int = 0


class NodeMetrics(Observer):
    """Metrics and log lines of one node. Never raises into the host.

    Args:
        roles: All roles there are, so that the one a node isn't in reads 0.
        wall: Seconds since the Unix epoch.
    """

    def __init__(self, roles: Iterable[str], wall: Callable[[], float] = time.time) -> None:
        # Half of all lines, of no use where every counter starts at 0 with the process.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._log: structlog.stdlib.BoundLogger = logs.get("partitions")
        self._roles = tuple(roles)
        label = ("partition",)
        self._role = Gauge(
            "relevo_partition_role", "1 for the role this node has in the partition, else 0.",
            (*label, "role"), registry=self.registry,
        )  # fmt: skip
        self._changes = Counter(
            "relevo_role_changes_total", "Changes of role.", (*label, "role"), registry=self.registry
        )
        self._steps = Histogram(
            "relevo_takeover_step_seconds",
            "Duration of a step of a takeover; detect: since the dead leader's connection ended, or since "
            "ZooKeeper showed no leader.",
            ("step",),
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._takeovers = Counter(
            "relevo_takeovers_total", "Partitions that this node took over.", ("cause", "standby"),
            registry=self.registry,
        )  # fmt: skip
        self._standby_lag = Gauge(
            "relevo_standby_lag_records", "Records of the log that this node's standby hasn't applied.",
            label, registry=self.registry,
        )  # fmt: skip
        self._hand_overs = Counter(
            "relevo_hand_overs_total", "Partitions that this node gave to another one.",
            ("reason", "result"), registry=self.registry,
        )  # fmt: skip
        self._transactions = Counter(
            "relevo_transactions_total", "Committed transactions.", label, registry=self.registry
        )
        self._commands = Counter("relevo_commands_total", "Commands decided.", label, registry=self.registry)
        self._records = Counter(
            "relevo_records_total", "Records written: events and activations.", label, registry=self.registry
        )
        self._latency = Histogram(
            "relevo_transaction_seconds", "Duration of a transaction, from its first record to its commit.",
            label, buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._held_back = Gauge(
            "relevo_held_back_records", "Records that wait behind another producer's open transaction.",
            ("topic", "partition"), registry=self.registry,
        )  # fmt: skip
        self._leaderless = Gauge(
            "relevo_partitions_without_leader", "Partitions that nobody leads, as ZooKeeper showed it last.",
            registry=self.registry,
        )  # fmt: skip
        self._faults = Counter(
            "relevo_faults_total", "What went wrong and was dealt with.", ("partition", "kind"),
            registry=self.registry,
        )  # fmt: skip

        self._snapshots = SnapshotMetrics(self.registry, wall)

    def observe(self, gauges: Callable[[], Iterable[PartitionGauges]]) -> None:
        """Asks for this node's partitions at every scrape."""
        self.registry.register(_Snapshot(gauges))

    def render(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)

    def role_changed(self, partition: int, before: str, after: str, reason: str) -> None:
        """Counts and logs it."""
        for role in self._roles:
            self._role.labels(partition, role).set(role == after)
        self._changes.labels(partition, after).inc()
        if after == "OUT":
            self._snapshots.forget(partition)
        tell = self._log.debug if after in _STEPS else self._log.info
        tell("role changed", partition=partition, before=before, after=after, reason=reason)

    def takeover_step(self, partition: int, step: str, seconds: float) -> None:
        """Measures it."""
        self._steps.labels(step).observe(seconds)
        self._log.debug("takeover step", partition=partition, step=step, seconds=round(seconds, 4))

    def takeover(self, takeover: Takeover) -> None:
        """Counts it, and logs where the time went."""
        standby = "hot" if takeover.standby else "none"
        self._takeovers.labels(str(takeover.cause), standby).inc()
        seconds = takeover.seconds or 0.0
        self._log.info("took over", **takeover.as_dict(), milliseconds=round(seconds * 1000, 1))

    def standby_lag(self, partition: int, records: int | None) -> None:
        """Shows it, while this node stands by."""
        if records is None:
            with contextlib.suppress(KeyError):  # it didn't before
                self._standby_lag.remove(partition)
        elif records >= 0:
            self._standby_lag.labels(partition).set(records)

    def handed_over(self, partition: int, reason: str, to: str | None, seconds: float) -> None:
        """Counts and logs it."""
        self._hand_overs.labels(reason, "taken" if to is not None else "not taken").inc()
        tell = self._log.info if to is not None else self._log.warning
        tell("handed over", partition=partition, reason=reason, to=to, seconds=round(seconds, 3))

    def committed(self, partition: int, commands: int, records: int, seconds: float) -> None:
        """Counts and measures it."""
        self._transactions.labels(partition).inc()
        self._commands.labels(partition).inc(commands)
        self._records.labels(partition).inc(records)
        self._latency.labels(partition).observe(seconds)

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        """Counts and logs it."""
        self._faults.labels("" if partition is None else partition, kind).inc()
        self._log.warning("fault", partition=partition, kind=kind, detail=detail)

    def held_back(self, topic: str, partition: int, records: int) -> None:
        """Shows it, while it lasts."""
        if records:
            self._held_back.labels(topic, partition).set(records)
            return
        with contextlib.suppress(KeyError):  # it wasn't
            self._held_back.remove(topic, partition)
        self._log.info("held back no more", topic=topic, partition=partition)

    def leaderless(self, partitions: int) -> None:
        """Shows it, and logs it."""
        self._leaderless.set(partitions)
        if partitions:
            self._log.warning("partitions without leader", count=partitions)

    def note(self, event: str, **fields: Any) -> None:
        """Logs it, and counts what it says of snapshots."""
        self._snapshots.heard(event, fields)
        tell = self._log.warning if event == REFUSED else self._log.info
        tell(event, **fields)


class _Snapshot(Collector):
    """Gauges that are computed when somebody asks."""

    def __init__(self, gauges: Callable[[], Iterable[PartitionGauges]]) -> None:
        self._gauges = gauges

    def describe(self) -> list[Metric]:
        """Nothing: registering must not ask anybody."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges."""
        epoch = GaugeMetricFamily(
            "relevo_partition_epoch", "Number of the partition's last term.", labels=("partition",)
        )
        lag = GaugeMetricFamily(
            "relevo_partition_lag", "Commands that wait to be decided.", labels=("partition",)
        )
        jobs = GaugeMetricFamily("relevo_jobs", "Jobs.", labels=("partition", "state", "type"))
        ready = GaugeMetricFamily(
            "relevo_oldest_ready_seconds", "How long the next job of the type has waited in the engine.",
            labels=("partition", "type"),
        )  # fmt: skip
        offered = GaugeMetricFamily(
            "relevo_oldest_offered_seconds", "Age of the oldest activation that no worker has started.",
            labels=("partition",),
        )  # fmt: skip
        overdue = GaugeMetricFamily(
            "relevo_oldest_overdue_lease_seconds", "How long the lease that ran out first waits for its end.",
            labels=("partition",),
        )  # fmt: skip
        for each in self._gauges():
            name = str(each.partition)
            epoch.add_metric((name,), each.epoch)
            if each.lag is not None:
                lag.add_metric((name,), each.lag)
                offered.add_metric((name,), each.oldest_offered_ms / 1000)
                overdue.add_metric((name,), each.oldest_overdue_ms / 1000)
            for (state, job_type), count in each.jobs.items():
                jobs.add_metric((name, state, job_type), count)
            for job_type, age_ms in each.oldest_ready_ms.items():
                ready.add_metric((name, job_type), age_ms / 1000)
        yield from (epoch, lag, jobs, ready, offered, overdue)
