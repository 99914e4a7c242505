"""The commands: what clients and workers ask for. Meaning and units of each field: its `.avsc`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo_schemas.records import Command, Record, record

if TYPE_CHECKING:
    from relevo_schemas.job import JobSpec


@record
class LeaseRef(Record):
    """One attempt of one job, and the lease wished for it."""

    key: str
    created_seq: int
    attempt: int
    lease_ms: int


@record
class CreateJob(Command):
    """Create a job, or be told about the one that has this key."""

    job: JobSpec


@record
class StartJobs(Command):
    """These attempts are running; their leases begin. Of one partition only."""

    worker: str
    jobs: tuple[LeaseRef, ...]


@record
class ExtendJobs(Command):
    """These attempts are alive; their leases begin anew. Of one partition only."""

    worker: str
    jobs: tuple[LeaseRef, ...]


@record
class ReportSlots(Command):
    """These partitions of an activation topic are the worker's own. Leaves no event."""

    worker: str
    type: str
    slots: tuple[int, ...]


@record
class CheckpointJob(Command):
    """Store how far the attempt has come, for the one after it. A sign of life as well."""

    key: str
    created_seq: int
    attempt: int
    detail: bytes


@record
class CompleteJob(Command):
    """The job is done. Accepted from any attempt of it while it is open."""

    key: str
    created_seq: int
    attempt: int
    result: bytes


@record
class FailJob(Command):
    """The attempt failed."""

    key: str
    created_seq: int
    attempt: int
    error: str
    retry_in_ms: int
    retriable: bool


@record
class ThrowError(Command):
    """The job ends with a business error."""

    key: str
    created_seq: int
    attempt: int
    code: str
    message: str


@record
class CancelJob(Command):
    """End the job if it is still open."""

    key: str
    reason: str


@record
class RetryJob(Command):
    """Make a job that is an incident, or waits for its next attempt, ready now."""

    key: str
    retries: int


@record
class UpdateJob(Command):
    """Change what may be changed of an open job."""

    key: str
    priority: int | None
    retries: int | None
