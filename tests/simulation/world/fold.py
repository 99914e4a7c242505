"""A plain fold of a partition's log: what the events say of each job, in the fewest words.

Written from the meaning of the events and not from the product's code, so that a mistake there isn't made
here too.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo_schemas import events as ev
from relevo_schemas.records import Event

OPEN = ("SCHEDULED", "READY", "ACTIVE", "INCIDENT")


class Contradiction(AssertionError):  # noqa: N818 - named for what happened
    """An event that can't follow those before it."""


@dataclass
class JobLine:
    """One job, as the events tell it."""

    state: str
    attempt: int = 0
    started: bool = False
    completions: int = 0
    slot: int = -1
    type: str = ""
    checkpoint: bytes = b""
    created_seq: int = 0

    @property
    def open(self) -> bool:
        """Whether it isn't finished."""
        return self.state in OPEN


class Fold:
    """All jobs of one partition."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobLine] = {}
        self.seq = 0
        self.epoch = 0
        self.at = 0

    def apply(self, event: Event) -> None:
        """Take in the next event.

        Raises:
            Contradiction: It can't follow.
        """
        seq, epoch, at = event.seq, event.epoch, event.at
        if seq != self.seq + 1:
            raise Contradiction(f"seq contiguous: {seq} follows {self.seq}")
        if isinstance(event, ev.LeaderElected):
            if epoch != self.epoch + 1:
                raise Contradiction(f"epochs rise: {epoch} is announced after {self.epoch}")
        elif epoch != self.epoch:
            raise Contradiction(f"epochs rise: an event of epoch {epoch} in epoch {self.epoch}")
        if at < self.at:
            raise Contradiction(f"time goes on: {at} follows {self.at}")
        self.seq, self.epoch, self.at = seq, epoch, at
        self._job(event)

    def _job(self, event: Event) -> None:
        jobs = self.jobs
        match event:
            case ev.LeaderElected() | ev.CommandRejected():
                return
            case ev.JobCreated():
                key = event.job.key
                self._expect(key not in jobs, event, "no job completed twice: its key makes another job")
                state = "SCHEDULED" if event.job.run_at > event.at else "READY"
                jobs[key] = JobLine(state, type=event.job.type, created_seq=event.seq)
                return
        key = event.key  # type: ignore[attr-defined]
        job = jobs.get(key)
        self._expect(job is not None, event, "a job exists before anything happens to it")
        assert job is not None
        if isinstance(event, ev.JobCompleted) and job.completions:
            raise Contradiction(f"no job completed twice: {event}")
        self._expect(job.open, event, f"a finished job stays finished ({job.state})")
        match event:
            case ev.JobDue():
                self._expect(job.state == "SCHEDULED", event, "only what is scheduled becomes due")
                job.state = "READY"
            case ev.JobActivated():
                self._expect(job.state == "READY", event, f"only what is ready is handed out ({job.state})")
                self._expect(event.attempt == job.attempt + 1, event, f"attempts count up ({job.attempt})")
                job.state, job.attempt, job.started, job.slot = "ACTIVE", event.attempt, False, event.slot
            case ev.JobStarted():
                self._under_way(job, event, event.attempt)
                job.started = True
            case ev.JobCheckpointed():
                self._under_way(job, event, event.attempt)
                job.checkpoint = event.detail
            case ev.JobCompleted():
                job.state = "COMPLETED"
                job.completions += 1
            case ev.JobFailed():
                self._under_way(job, event, event.attempt)
                later = "SCHEDULED" if event.retry_at > event.at else "READY"
                job.state, job.started = ("INCIDENT" if event.retry_at < 0 else later), False
            case ev.JobErrored():
                self._under_way(job, event, event.attempt)
                job.state = "ERRORED"
            case ev.JobTimedOut():
                self._under_way(job, event, event.attempt)
                job.state, job.started = "READY", False
            case ev.JobIncident():
                job.state, job.started = "INCIDENT", False
            case ev.JobRetried():
                job.state = "READY"
            case ev.JobCancelled():
                job.state = "CANCELLED"
            case ev.JobExpired():
                job.state = "EXPIRED"

    def _under_way(self, job: JobLine, event: Event, attempt: int) -> None:
        fits = job.state == "ACTIVE" and job.attempt == attempt
        self._expect(fits, event, f"only the present attempt counts ({job.state} {job.attempt})")

    @staticmethod
    def _expect(true: bool, event: Event, what: str) -> None:
        if not true:
            raise Contradiction(f"{what}: {event}")
