"""`Job`: one open job as a partition's state holds it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from relevo_schemas.codec import decode_job
from relevo_schemas.job import JobSpec


class JobState(StrEnum):
    """Where a job stands. The values are public."""

    SCHEDULED = "SCHEDULED"
    """Waits for its run_at, or for the next attempt after a failure."""
    READY = "READY"
    """Waits in the engine to be handed out."""
    ACTIVE = "ACTIVE"
    """Handed to workers: its activation stands in Kafka."""
    INCIDENT = "INCIDENT"
    """Needs a person: stays until it is retried, cancelled, completed late or expired."""
    COMPLETED = "COMPLETED"
    """Done."""
    ERRORED = "ERRORED"
    """Ended with a business error."""
    CANCELLED = "CANCELLED"
    """Ended by request."""
    EXPIRED = "EXPIRED"
    """Still open at its expires_at."""


OPEN_STATES: Final = (JobState.SCHEDULED, JobState.READY, JobState.ACTIVE, JobState.INCIDENT)
FINISHED_STATES: Final = (JobState.COMPLETED, JobState.ERRORED, JobState.CANCELLED, JobState.EXPIRED)

ReadyEntry = tuple[int, int, str]
"""A place in a ready queue: (rank, seq of the event that made the job ready, key). Lower is earlier."""

Finished = tuple[JobState, int, str, int]
"""What is remembered of a finished job: (state, time it ended, type, attempt)."""


class Job:
    """One open job. Written by `relevo_engine.core.appliers` only.

    A partition may hold a million of these, so what is rarely needed (backoff, lease, headers) is read from
    ``body`` when it is.

    Attributes:
        key: Identity.
        type: Job type; one string object per type.
        body: The Avro encoding of the `JobSpec`, as its creator sent it.
        state: One of `OPEN_STATES`.
        priority: Current priority.
        retries: Failures that will still be answered with another attempt.
        failures: Failures since the creation or the last retry by request.
        attempt: Number of the last hand-over, 0 before the first.
        lease_expiries: Attempts that fell silent since the creation or the last retry by request.
        created_seq: Number of the event that created it, by which it differs from an earlier job of the same
            key; 0: not known, as it comes from a snapshot of an earlier version.
        created_at: When it was created, in milliseconds since the Unix epoch like all times here.
        since: When it entered its state.
        due_at: SCHEDULED: when it becomes ready; otherwise 0.
        expires_at: When it expires; 0: never.
        entry: READY: its place in the ready queue; otherwise None.
        slot: ACTIVE: partition of the activation topic it went to. READY after a lease expiry: the slot to
            avoid. Otherwise -1.
        worker: ACTIVE and started: who runs it; otherwise empty.
        cause: INCIDENT: why; otherwise empty.
        error: The last failure's text; empty before the first.
    """

    __slots__ = (
        "attempt",
        "body",
        "cause",
        "created_at",
        "created_seq",
        "due_at",
        "entry",
        "error",
        "expires_at",
        "failures",
        "key",
        "lease_expiries",
        "priority",
        "retries",
        "since",
        "slot",
        "state",
        "type",
        "worker",
    )

    def __init__(
        self,
        key: str,
        type: str,
        body: bytes,
        priority: int,
        retries: int,
        expires_at: int,
        state: JobState,
        at: int,
        seq: int,
    ) -> None:
        self.key = key
        self.type = type
        self.body = body
        self.state = state
        self.priority = priority
        self.retries = retries
        self.failures = 0
        self.attempt = 0
        self.lease_expiries = 0
        self.created_seq = seq
        self.created_at = at
        self.since = at
        self.due_at = 0
        self.expires_at = expires_at
        self.entry: ReadyEntry | None = None
        self.slot = -1
        self.worker = ""
        self.cause = ""
        self.error = ""

    def spec(self) -> JobSpec:
        """The job as its creator described it, decoded anew."""
        return decode_job(self.body)

    def __repr__(self) -> str:
        return f"Job({self.key!r}, {self.type!r}, {self.state.value}, attempt {self.attempt})"
