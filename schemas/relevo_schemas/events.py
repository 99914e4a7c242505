"""The events: what happened, as the log tells it. Meaning and units of each field: its `.avsc`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo_schemas.records import Event, record

if TYPE_CHECKING:
    from relevo_schemas.job import JobSpec


@record
class JobCreated(Event):
    """A job exists. It is ready, or scheduled where job.run_at lies ahead."""

    seq: int
    epoch: int
    at: int
    source: int
    job: JobSpec


@record
class JobDue(Event):
    """A scheduled job's time has come; it is ready."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str


@record
class JobActivated(Event):
    """A job was handed to workers: the activation stands in the same transaction."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    attempt: int
    slot: int


@record
class JobStarted(Event):
    """A worker runs the attempt; its lease begins."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    attempt: int
    worker: str
    lease_ms: int


@record
class JobCheckpointed(Event):
    """How far the attempt has come was stored; the next attempt is handed it."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    attempt: int
    detail: bytes


@record
class JobCompleted(Event):
    """The job is done."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    attempt: int
    result: bytes


@record
class JobFailed(Event):
    """An attempt failed."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    attempt: int
    error: str
    retries: int
    retry_at: int


@record
class JobErrored(Event):
    """The job ended with a business error."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    attempt: int
    code: str
    message: str


@record
class JobTimedOut(Event):
    """An attempt fell silent, or nobody took it up for very long."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    attempt: int
    cause: str
    expiries: int


@record
class JobIncident(Event):
    """The job needs a person: it stays where it is until it is retried or cancelled."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    attempt: int
    cause: str
    message: str


@record
class JobRetried(Event):
    """A job was made ready by request."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    retries: int


@record
class JobUpdated(Event):
    """Priority or retries of a job were changed."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    priority: int
    retries: int


@record
class JobCancelled(Event):
    """The job was ended by request."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    reason: str


@record
class JobExpired(Event):
    """The job was still open at its expires_at."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str


@record
class LeaderElected(Event):
    """A new term begins; events of an older epoch after this one are damage."""

    seq: int
    epoch: int
    at: int
    source: int
    node: str
    incarnation: str


@record
class CommandRejected(Event):
    """A command was refused and changed nothing."""

    seq: int
    epoch: int
    at: int
    source: int
    key: str
    command: str
    reason: str
    expected: str
    found: str
