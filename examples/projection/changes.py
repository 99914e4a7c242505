"""What an event changes in the row of its job."""

from __future__ import annotations

from typing import Any

from relevo_schemas import events as happened
from relevo_schemas.records import Event


def changes(event: Event) -> dict[str, Any]:
    """Columns with their new values; empty where the event is about no job, or changes nothing."""
    columns = _of_its_kind(event)
    return {**columns, "changed_at": event.at} if columns else {}


def _of_its_kind(event: Event) -> dict[str, Any]:
    match event:
        case happened.JobCreated(job=job):
            later = job.run_at > event.at
            return {
                "type": job.type, "state": "SCHEDULED" if later else "READY", "attempt": 0,
                "priority": job.priority, "retries": job.retries, "run_at": job.run_at if later else None,
                "correlation_id": job.correlation_id, "created_at": event.at,
                # The key may have had a job before, which is forgotten.
                "worker": None, "result": None, "problem": None,
            }  # fmt: skip
        case happened.JobDue():
            return {"state": "READY", "run_at": None}
        case happened.JobActivated():
            return {"state": "ACTIVE", "attempt": event.attempt, "run_at": None, "worker": None}
        case happened.JobStarted():
            return {"worker": event.worker}
        case happened.JobCompleted():
            return {"state": "COMPLETED", "attempt": event.attempt, "result": event.result.decode()}
        case happened.JobFailed():
            return {"problem": event.error, "retries": event.retries, **_next_attempt(event)}
        case happened.JobErrored():
            return {"state": "ERRORED", "problem": f"{event.code}: {event.message}"}
        case happened.JobTimedOut():
            return {"state": "READY", "problem": event.cause}
        case happened.JobIncident():
            return {"state": "INCIDENT", "problem": f"{event.cause}: {event.message}"}
        case happened.JobRetried():
            return {"state": "READY", "retries": event.retries, "run_at": None, "problem": None}
        case happened.JobUpdated():
            return {"priority": event.priority, "retries": event.retries}
        case happened.JobCancelled():
            return {"state": "CANCELLED", "run_at": None, "problem": event.reason or None}
        case happened.JobExpired():
            return {"state": "EXPIRED", "run_at": None}
        case _:
            return {}


def _next_attempt(event: happened.JobFailed) -> dict[str, Any]:
    if event.retry_at < 0:
        return {}  # there is none: a JobIncident follows
    if event.retry_at <= event.at:
        return {"state": "READY", "run_at": None}  # at once: no JobDue follows
    return {"state": "SCHEDULED", "run_at": event.retry_at}
