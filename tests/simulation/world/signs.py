"""Signs of life of the attempts under way, as they came to Kafka: who gives them in time isn't given up."""

from __future__ import annotations

from relevo_engine.core.job import Job
from relevo_partitions.term.clock import SLEW_MAX
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev

Attempt = tuple[str, int, int]
"""(key, number of the event that created the job, attempt)."""


class Signs:
    """All attempts of a world."""

    def __init__(self) -> None:
        self._of: dict[Attempt, _SignsOfOne] = {}

    def given(self, job: Job | None, ref: cmd.LeaseRef, at: float) -> None:
        """A sign of life about ``ref`` was written; ``job`` is the one with its key, if there is one."""
        if job is not None and (job.created_seq, job.attempt) == (ref.created_seq, ref.attempt):
            attempt = (job.key, job.created_seq, job.attempt)
            self._of.setdefault(attempt, _SignsOfOne(job.spec().lease_ms / 1000)).given(at)

    def contradiction(self, job: Job, event: ev.JobTimedOut, now: float) -> str | None:
        """What speaks against the end of a lease that is decided on now; None where nothing does."""
        signs = self._of.get((event.key, job.created_seq, event.attempt))
        if signs is None or not signs.live(now):
            return None
        return (
            f"{event.key}, attempt {event.attempt}, although a sign of life reached Kafka "
            f"{now - signs.last_at:.3f} s ago, of a lease of {signs.lease_s:g} s"
        )


class _SignsOfOne:
    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.last_at = -1.0
        self._in_time = True

    def given(self, at: float) -> None:
        self._in_time = self._in_time and (self.last_at < 0 or self._covers(at))
        self.last_at = at

    def live(self, now: float) -> bool:
        """Whether each came, and ``now`` is, before the lease could have run out by a leader's clock."""
        return self._in_time and self._covers(now)

    def _covers(self, at: float) -> bool:
        return at - self.last_at < self.lease_s / (1 + SLEW_MAX)
