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
            }  # fmt: skip
        case happened.JobDue():
            return {"state": "READY", "run_at": None}
        case happened.JobActivated():
            return {"state": "ACTIVE", "attempt": event.attempt, "worker": None}
        case happened.JobStarted():
            return {"worker": event.worker}
        case happened.JobCompleted():
            return {"state": "COMPLETED", "attempt": event.attempt, "result": event.result.decode()}
        case happened.JobFailed(retry_at=-1):
            return {"problem": event.error, "retries": event.retries}
        case happened.JobFailed():
            return {
                "state": "SCHEDULED", "run_at": event.retry_at, "problem": event.error,
                "retries": event.retries,
            }  # fmt: skip
        case happened.JobErrored():
            return {"state": "ERRORED", "problem": f"{event.code}: {event.message}"}
        case happened.JobTimedOut():
            return {"state": "READY", "problem": event.cause}
        case happened.JobIncident():
            return {"state": "INCIDENT", "problem": f"{event.cause}: {event.message}"}
        case happened.JobRetried():
            return {"state": "READY", "retries": event.retries, "problem": None}
        case happened.JobUpdated():
            return {"priority": event.priority, "retries": event.retries}
        case happened.JobCancelled():
            return {"state": "CANCELLED", "problem": event.reason or None}
        case happened.JobExpired():
            return {"state": "EXPIRED"}
        case _:
            return {}
