"""A job as a test sees it: what its leader knows, and what the log says of its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from relevo.errors import JobNotCompleted
from relevo.events.events import JobEvent
from relevo_schemas import events as ev


@dataclass(frozen=True, slots=True)
class JobView:
    """One job at one moment. Times are in milliseconds since the Unix epoch, in virtual time.

    Attributes:
        key: Its key.
        type: Its type.
        state: SCHEDULED, READY, ACTIVE, INCIDENT, COMPLETED, ERRORED, CANCELLED or EXPIRED.
        attempt: Number of the last hand-over, 0 before the first.
        created_at: When it was created.
        retries: Failures that are still answered with another attempt.
        failures: Attempts that failed.
        lease_expiries: Attempts that fell silent.
        due_at: SCHEDULED: when it becomes ready; else None.
        lease_until: When the lease of the attempt that runs ends; None where none was reported as running.
        error: Text of the last failure, of the business error, or of why it was cancelled.
        code: Code of the business error, where it ended with one.
        cause: INCIDENT: why, such as RETRIES_EXHAUSTED; else None.
        result_json: COMPLETED: what the handler returned, as JSON; empty: nothing.
    """

    key: str
    type: str
    state: str
    attempt: int
    created_at: int
    retries: int
    failures: int = 0
    lease_expiries: int = 0
    due_at: int | None = None
    lease_until: int | None = None
    error: str | None = None
    code: str | None = None
    cause: str | None = None
    result_json: bytes = b""

    @property
    def result(self) -> Any:
        """What the handler returned.

        Raises:
            JobNotCompleted: It isn't COMPLETED.
        """
        if self.state != "COMPLETED":
            raise JobNotCompleted(self.key, self.state, self.error or "")
        return orjson.loads(self.result_json) if self.result_json else None


def lives(history: Iterable[JobEvent]) -> list[list[JobEvent]]:
    """A key's events cut where a job was created, oldest first: once forgotten, a key may be used anew."""
    found: list[list[JobEvent]] = []
    for each in history:
        if isinstance(each.event, ev.JobCreated):
            found.append([])
        if found:
            found[-1].append(each)
    return found


def job_view(known: dict[str, Any], history: Iterable[JobEvent]) -> JobView:
    """The view of a job from what its leader knows and from all events about it, none of an earlier life."""
    told: dict[str, Any] = {"created_at": 0, "retries": 0, "failures": 0, "lease_expiries": 0}
    for each in history:
        match each.event:
            case ev.JobCreated(at=at, job=job):
                told |= {"created_at": at, "retries": job.retries}
            case ev.JobFailed(error=error, retries=retries):
                told |= {"error": error, "retries": retries, "failures": told["failures"] + 1}
            case ev.JobTimedOut(cause="LEASE" | "TAKEN_OVER"):
                told["lease_expiries"] += 1
            case ev.JobErrored(code=code, message=message):
                told |= {"code": code, "error": message}
            case ev.JobCancelled(reason=reason):
                told |= {"error": reason or None}
            case ev.JobCompleted(result=result):
                told |= {"result_json": result, "error": None}
    names = ("key", "type", "state", "attempt", "due_at", "lease_until", "cause", "retries", "created_at")
    return JobView(**(told | {name: known[name] for name in names if name in known}))
