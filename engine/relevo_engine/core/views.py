"""Reading a partition's state for people and programs outside."""

from __future__ import annotations

from itertools import islice
from typing import Any

from relevo_engine.core.job import Job, JobState
from relevo_engine.core.state import State
from relevo_engine.core.timers import Leases

View = dict[str, Any]


def job_view(state: State, leases: Leases, key: str) -> View | None:
    """What is known about one job, None where nothing is.

    Times are in milliseconds since the Unix epoch; None where there is none. Of a finished job only `key`,
    `type`, `state`, `attempt` and `finished_at` are known: the log has the rest. `variables` are the
    creator's JSON bytes, `checkpoint` those that an attempt has stored last.
    """
    job = state.jobs.get(key)
    if job is None:
        return _finished_view(state, key)
    spec = job.spec()
    return {
        **_summary(job),
        "lease_until": leases.until(key),
        "worker": job.worker or None,
        "slot": job.slot if job.state is JobState.ACTIVE else None,
        "lease_ms": spec.lease_ms,
        "backoff_ms": spec.backoff_ms,
        "backoff_max_ms": spec.backoff_max_ms,
        "correlation_id": spec.correlation_id,
        "headers": dict(spec.headers),
        "checkpoint": state.checkpoints.get(key),
        "variables": spec.variables,
    }


def _finished_view(state: State, key: str) -> View | None:
    finished = state.finished.get(key)
    if finished is None:
        return None
    outcome, at, job_type, attempt = finished
    return {"key": key, "type": job_type, "state": outcome.value, "attempt": attempt, "finished_at": at}


def _summary(job: Job) -> View:
    return {
        "key": job.key,
        "type": job.type,
        "state": job.state.value,
        "priority": job.priority,
        "retries": job.retries,
        "failures": job.failures,
        "attempt": job.attempt,
        "lease_expiries": job.lease_expiries,
        "created_at": job.created_at,
        "since": job.since,
        "due_at": job.due_at or None,
        "expires_at": job.expires_at or None,
        "cause": job.cause or None,
        "error": job.error or None,
    }


def counts(state: State) -> dict[str, dict[str, int]]:
    """Jobs per type: those that are in each open state, and those that ever ended in each finished one."""
    return {
        name: {where.value: count for where, count in lane.counts.items()}
        for name, lane in state.lanes.items()
    }


def list_jobs(state: State, where: JobState | None, job_type: str | None, limit: int) -> list[View]:
    """The oldest open jobs, at most ``limit``, of one state and type or of all; a walk over all of them."""
    found = (
        job
        for job in state.jobs.values()
        if (where is None or job.state is where) and (job_type is None or job.type == job_type)
    )
    return [_summary(job) for job in islice(found, limit)]


def summary(state: State, leases: Leases) -> View:
    """The partition in numbers."""
    oldest = {
        name: state.jobs[key].since for name, lane in state.waiting.items() if (key := lane.queue.head())
    }
    return {
        "epoch": state.epoch,
        "position": state.position,
        "last_seq": state.last_seq,
        "last_at": state.last_at,
        "open": len(state.jobs),
        "remembered": len(state.finished),
        "unclaimed": len(state.unclaimed),
        "oldest_unclaimed_at": next(iter(state.unclaimed.values()), None),
        "started": len(state.started),
        "leases": len(leases),
        "next_lease_until": lease[0] if (lease := leases.head()) is not None else None,
        "timers": len(state.timers),
        "next_ready_since": oldest,
        "counts": counts(state),
    }
