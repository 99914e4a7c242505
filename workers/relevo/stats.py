"""Plain counters of a worker, for metrics and for people."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, Protocol

FAILURES: Final = ("exception", "fail", "timeout", "cancelled", "result", "variables", "dedup_key")
"""Kinds of failure: an exception; a `Fail`; too long a run; a cancelled coroutine; a result that can't be
kept; variables that can't be read; no dedup key."""
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800)
"""Upper bounds of the buckets of a `Histogram`, in seconds."""


class Timed(Protocol):
    """A job on its way through a worker, as far as times go."""

    @property
    def at(self) -> float:
        """When the engine handed it over, in milliseconds since the Unix epoch."""

    @property
    def took(self) -> float:
        """How long its handler ran, in seconds."""


class Histogram:
    """How many observations fell below each bound, and their sum. Guarded by whoever holds it.

    Attributes:
        counts: Observations by bucket of `BOUNDS_S`, each on its own; the last is for those above all bounds.
        seconds: Their sum.
    """

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0

    def observe(self, several: Iterable[float]) -> None:
        """Several more, in seconds."""
        counts = self.counts
        for seconds in several:
            counts[bisect_left(BOUNDS_S, seconds)] += 1
            self.seconds += seconds

    def include(self, other: Histogram) -> None:
        """All that ``other`` has seen."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds

    def copy(self) -> Histogram:
        """The same, which stays as it is."""
        same = Histogram()
        same.include(self)
        return same


@dataclass(slots=True)
class WorkerStats:
    """What one worker has done since it started. Read the fields, or take a `snapshot`.

    Attributes:
        received: Activations read.
        started: Handlers started.
        suspects: Handlers started alone, as several attempts of their jobs had fallen silent.
        done: Handlers that returned, with an acknowledged completion.
        failed: Attempts that failed, with an acknowledged report.
        errored: Jobs ended with a business error.
        duplicates_suppressed: Activations of jobs that were done before, or ran here already.
        stale_dropped: Activations dropped unstarted, since their partition was no longer ours, or their
            job or attempt is over.
        claim_waits: Times another worker held the claim.
        claim_wait_ms: How long jobs have waited for such claims, in milliseconds.
        unknown_claims: Claims that the dedup store gave no clear answer to.
        unknown_done: Done marks that the dedup store gave no clear answer to.
        damaged: Activations that could not be read.
        lost: Attempts that lost their claim or lease while running.
        resent: Commands sent again, since Kafka didn't acknowledge them.
        started_sent: Attempts reported as running to the engine.
        extended: Lease renewals sent.
        commits: Offsets committed.
        commit_errors: Commits that Kafka refused.
        holes: Times messages had been swallowed and were read again.
        rebalances: Times partitions came or went.
        callback_errors: Exceptions in callbacks, caught.
    """

    received: int = 0
    started: int = 0
    suspects: int = 0
    done: int = 0
    failed: int = 0
    errored: int = 0
    duplicates_suppressed: int = 0
    stale_dropped: int = 0
    claim_waits: int = 0
    claim_wait_ms: int = 0
    unknown_claims: int = 0
    unknown_done: int = 0
    damaged: int = 0
    lost: int = 0
    resent: int = 0
    started_sent: int = 0
    extended: int = 0
    commits: int = 0
    commit_errors: int = 0
    holes: int = 0
    rebalances: int = 0
    callback_errors: int = 0
    _failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES, 0), repr=False)
    _queued: Histogram = field(default_factory=Histogram, repr=False, compare=False)
    _handled: Histogram = field(default_factory=Histogram, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, name: str, count: int = 1) -> None:
        """Count ``count`` more of ``name``."""
        with self._lock:
            setattr(self, name, getattr(self, name) + count)

    def concluded(self, ends: Mapping[str, int]) -> None:
        """Count acknowledged ends, by `relevo.worker.outcomes.counted_as`."""
        with self._lock:
            for end, count in ends.items():
                if end in self._failures:
                    self._failures[end] += count
                    end = "failed"
                setattr(self, end, getattr(self, end) + count)

    def begun(self, items: Sequence[Timed]) -> None:
        """Their handlers start now. How long each has waited is by the engine's clock and this machine's."""
        now_ms = time.time() * 1_000
        # Clocks differ: what seems to start before it was handed over has not waited.
        waited = [(now_ms - at) / 1_000 if (at := item.at) < now_ms else 0.0 for item in items]
        with self._lock:
            self._queued.observe(waited)

    def ended(self, items: Sequence[Timed]) -> None:
        """Their handlers have ended."""
        took = [item.took for item in items]
        with self._lock:
            self._handled.observe(took)

    def snapshot(self) -> dict[str, int]:
        """All counters by name."""
        with self._lock:
            return {
                each.name: getattr(self, each.name) for each in fields(self) if not each.name.startswith("_")
            }

    @property
    def failures(self) -> dict[str, int]:
        """What `failed` is made of, by kind of failure: see `FAILURES`."""
        with self._lock:
            return dict(self._failures)

    @property
    def queue_time(self) -> Histogram:
        """From the engine's hand-over of a job to the start of its handler."""
        with self._lock:
            return self._queued.copy()

    @property
    def handler_time(self) -> Histogram:
        """From a handler's start to its end, however it ended."""
        with self._lock:
            return self._handled.copy()


def total(stats: Iterable[WorkerStats]) -> WorkerStats:
    """The sum of several workers' counters."""
    summed = WorkerStats()
    for each in stats:
        for name, value in each.snapshot().items():
            summed.add(name, value)
        for kind, count in each.failures.items():
            summed._failures[kind] += count
        summed._queued.include(each.queue_time)
        summed._handled.include(each.handler_time)
    return summed


__all__ = ["BOUNDS_S", "Histogram", "WorkerStats", "total"]
