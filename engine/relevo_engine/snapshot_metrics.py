"""What a node tells Prometheus of the snapshots that it takes and loads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LOADED: Final = "snapshot_loaded"
VERIFIED: Final = "snapshot_verified"
WRITTEN: Final = "snapshot_written"
RETIRED: Final = "snapshot_retired"
REFUSED: Final = "snapshot_refused"


class SnapshotMetrics:
    """Follows the host's notes of snapshots. Thread-safe; never raises into the host.

    Args:
        registry: Gets the metrics.
        wall: Seconds since the Unix epoch.
    """

    def __init__(self, registry: CollectorRegistry, wall: Callable[[], float] = time.time) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"relevo_snapshot_{name}", text, ("partition",), registry=registry)

        self._of_the_last = {
            "seq": gauge("seq", "Number of the last event in the newest snapshot that this node verified."),
            "bytes": gauge("bytes", "Size of the newest snapshot that this node verified."),
        }
        self._pause = gauge(
            "longest_pause_seconds", "Longest time that the last snapshot taken here kept its replica busy."
        )
        self._write = gauge("write_seconds", "Duration of the last snapshot taken here, without its check.")
        self._verify = gauge("verify_seconds", "Duration of the last check of a snapshot taken here.")
        self._begin = gauge("log_begin", "Offset that the log begins at, as this node trimmed it last.")
        self._verified = Counter(
            "relevo_snapshots_verified_total", "Snapshots taken here and read back.", ("partition",),
            registry=registry,
        )  # fmt: skip
        self._refused = Counter(
            "relevo_snapshots_refused_total", "Snapshots that couldn't be used for a start.", ("partition",),
            registry=registry,
        )  # fmt: skip
        self._age = _Age(wall)
        registry.register(self._age)

    def heard(self, event: str, fields: dict[str, Any]) -> None:
        """Take in a note of the host; others than those of snapshots mean nothing here."""
        partition = fields.get("partition")
        if event in (LOADED, VERIFIED):
            self._age.set(str(partition), fields["taken_at"] / 1000)
            for name, shown in self._of_the_last.items():
                shown.labels(partition).set(fields[name])
        if event == VERIFIED:
            self._verified.labels(partition).inc()
            self._verify.labels(partition).set(fields["seconds"])
        elif event == WRITTEN:
            self._write.labels(partition).set(fields["seconds"])
            self._pause.labels(partition).set(fields["slice_max_ms"] / 1000)
        elif event == RETIRED:
            self._begin.labels(partition).set(fields["log_begin"])
        elif event == REFUSED:
            self._refused.labels(partition).inc()

    def forget(self, partition: int) -> None:
        """This node has no part in ``partition`` any more: another one knows better."""
        self._age.remove(str(partition))
        for shown in (*self._of_the_last.values(), self._pause, self._write, self._verify, self._begin):
            with contextlib.suppress(KeyError):  # it had none
                shown.remove(partition)


class _Age(Collector):
    """Grows by itself, so it is computed when somebody asks."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._taken_at: dict[str, float] = {}

    def set(self, partition: str, taken_at: float) -> None:
        with self._lock:
            self._taken_at[partition] = taken_at

    def remove(self, partition: str) -> None:
        with self._lock:
            self._taken_at.pop(partition, None)

    def describe(self) -> list[Metric]:
        """Nothing: there is none yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The age for each partition."""
        family = GaugeMetricFamily(
            "relevo_snapshot_age_seconds",
            "Age of the newest snapshot that this node verified or loaded.",
            labels=("partition",),
        )
        with self._lock:
            known = dict(self._taken_at)
        now = self._wall()
        for partition, taken_at in sorted(known.items()):
            family.add_metric((partition,), max(0.0, now - taken_at))
        yield family
