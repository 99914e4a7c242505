"""One activation on its way through a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relevo.job import Job

if TYPE_CHECKING:
    from relevo.dedup.store import Claim
    from relevo.offsets import Entry
    from relevo.outcomes import Ending
    from relevo_schemas.delivery import Activation


class Item:
    """A job in this worker.

    Attributes:
        key: The job's key.
        attempt: The highest attempt handed to us; commands speak of it.
        expiries: Attempts that had fallen silent before that.
        partition: The job's partition.
        entries: The messages that are finished when this is: one, and those that handed over the same job
            again.
        job: What the handler gets.
        token: Owner of the dedup claim; the same for all tries of this item.
        lease_ms: The job's lease.
        outcome: How the attempt ended; None until it has.
        tries: Answers in a row that were no help; for backoff.
        running: Whether the handler is at it.
        started_at: When the handler was started, in monotonic seconds.
        renew_at: When lease and claim are due for renewal.
        claim: What is asked of the dedup store, once it has been.
        claim_until: When the claim ends unless renewed, in monotonic seconds.
        reported: The attempt that the engine was told is running; 0: none.
        behind: Activations of later attempts that must wait until this one has been reported.
        task: The coroutine's task, where it is one.
        timed_out: Whether it ran longer than its type allows.
        due: When it is brought again, in monotonic seconds, if it is.
        watch: Follows what the log says about the job, while that matters.
    """

    __slots__ = (
        "attempt", "behind", "claim", "claim_until", "due", "entries", "expiries", "job", "key", "lease_ms",
        "outcome", "partition", "renew_at", "reported", "running", "started_at", "task", "timed_out", "token",
        "tries", "watch",
    )  # fmt: skip

    def __init__(self, entry: Entry, activation: Activation, token: str) -> None:
        self.key: str = activation.job.key
        self.attempt: int = activation.attempt
        self.expiries: int = activation.expiries
        self.partition: int = activation.partition
        self.entries: list[Entry] = [entry]
        self.job = Job(activation)
        self.token = token
        self.lease_ms: int = activation.job.lease_ms
        self.outcome: Ending | None = None
        self.tries = 0
        self.running = False
        self.started_at = 0.0
        self.renew_at = 0.0
        self.claim: Claim | None = None
        self.claim_until = 0.0
        self.reported = 0
        self.behind: list[tuple[Entry, Activation]] | None = None
        self.task: Any = None
        self.timed_out = False
        self.due = 0.0
        self.watch: Any = None

    def start(self, now: float, renew_in: float) -> None:
        """Its handler starts now; lease and claim are due for renewal in so many seconds."""
        self.running = True
        self.started_at = now
        self.renew_at = now + renew_in

    def again(self) -> None:
        """As if its handler had not run: another worker has the job, and may leave it to us yet."""
        self.job = Job(self.job._activation)
        self.outcome = None
        self.timed_out = False
        self.tries += 1
