"""Plain counters of a worker, for metrics and for people."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields


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
        stale_dropped: Activations dropped unstarted, since their partition was no longer ours.
        claim_waits: Times another worker held the claim.
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
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, name: str, count: int = 1) -> None:
        """Count ``count`` more of ``name``."""
        with self._lock:
            setattr(self, name, getattr(self, name) + count)

    def snapshot(self) -> dict[str, int]:
        """All counters by name."""
        with self._lock:
            return {
                each.name: getattr(self, each.name) for each in fields(self) if not each.name.startswith("_")
            }


def total(stats: list[WorkerStats]) -> WorkerStats:
    """The sum of several workers' counters."""
    summed = WorkerStats()
    for each in stats:
        for name, value in each.snapshot().items():
            summed.add(name, value)
    return summed


__all__ = ["WorkerStats", "total"]
