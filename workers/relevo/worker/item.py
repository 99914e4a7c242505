"""One activation on its way through a worker."""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING, Any

from relevo.worker.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relevo.consumer.offsets import Entry
    from relevo.dedup.store import Claim
    from relevo.worker.lanes import Lane
    from relevo.worker.outcomes import Ending
    from relevo_schemas.delivery import Activation


class Item:
    """A job in this worker.

    Attributes:
        key: The job's key.
        created_seq: Number of the event that created the job: another job that had or gets the same key is an
            item of its own. 0: not known.
        attempt: The highest attempt handed to us; commands speak of it.
        at: When the engine handed it over, in milliseconds since the Unix epoch by the engine's clock.
        expiries: Attempts that had fallen silent before that.
        partition: The job's partition.
        entries: The messages that are finished when this is: one, and those that handed over the same job
            again.
        job: What the handler gets.
        token: Owner of the dedup claim; the same for all tries of this item.
        lease_ms: The job's lease.
        outcome: How the attempt ended; None until it has.
        told: Whether its outcome is on its way to the engine: all that is left of it is to send it again.
        tries: Answers in a row that were no help; for backoff.
        running: Whether the handler is at it.
        started_at: When the handler was started, in monotonic seconds.
        renew_at: When its lease is due for renewal.
        claim: What is asked of the dedup store, once it has been.
        claim_due: When that is due for renewal, in monotonic seconds.
        given_back: Whether its claim has been given back for good.
        claim_until: When the claim ends unless renewed, in monotonic seconds.
        reported: The attempt that the engine was told is running; 0: none.
        held_since: When another worker was first found to hold the claim, in monotonic seconds; 0: none is.
        took: How long the handler ran, in seconds, once it has ended.
        behind: Activations of later attempts, or of the next job of this key, that must wait until this one
            has been reported.
        task: The coroutine's task, where it is one.
        timed_out: Whether it ran longer than its type allows.
        called_off: Whether its handler is cancelled because the attempt is lost.
        over: The engine has moved on from attempts up to this one.
        due: When it is brought again, in monotonic seconds, if it is.
        watch: Follows what the log says about the job, while that matters.
        lane: The line of its correlation id, where its type is ordered.
        lock: What was asked of the dedup store for its correlation id, from then until it is given back.
    """

    __slots__ = (
        "at", "attempt", "behind", "called_off", "claim", "claim_due", "claim_until", "created_seq", "due",
        "entries", "expiries", "given_back", "held_since", "job", "key", "lane", "lease_ms", "lock",
        "outcome", "over", "partition", "renew_at", "reported", "running", "started_at", "task", "timed_out",
        "token", "told", "took", "tries", "watch",
    )  # fmt: skip

    def __init__(self, entry: Entry, activation: Activation, token: str) -> None:
        self.key: str = activation.job.key
        self.created_seq: int = activation.created_seq
        self.attempt: int = activation.attempt
        self.at: int = activation.at
        self.expiries: int = activation.expiries
        self.partition: int = activation.partition
        self.entries: list[Entry] = [entry]
        self.job = Job(activation)
        self.token = token
        self.lease_ms: int = activation.job.lease_ms
        self.outcome: Ending | None = None
        self.told = False
        self.tries = 0
        self.running = False
        self.started_at = 0.0
        self.renew_at = 0.0
        self.claim: Claim | None = None
        self.claim_due = 0.0
        self.claim_until = 0.0
        self.given_back = False
        self.held_since = 0.0
        self.took = 0.0
        self.reported = 0
        self.behind: list[tuple[Entry, Activation]] | None = None
        self.task: Any = None
        self.timed_out = False
        self.called_off = False
        self.over = 0
        self.due = 0.0
        self.watch: Any = None
        self.lane: Lane | None = None
        self.lock: Claim | None = None

    def is_other_than(self, activation: Activation) -> bool:
        """Whether ``activation``, of the same key, hands over another job: one of the two is over."""
        mine, other = self.created_seq, activation.created_seq
        return mine != other and mine != 0 != other

    def meet_again(self, activation: Activation) -> None:
        """Its job has been handed over once more: a later attempt knows more of what came before."""
        self.attempt = max(self.attempt, activation.attempt)
        self.expiries = max(self.expiries, activation.expiries)
        if not self.running and activation.attempt > self.job.attempt:
            self.job._hand_over(activation)

    def start(self, now: float, claim_s: float) -> None:
        """Its handler starts now, with a claim of so many seconds."""
        self.running = True
        self.started_at = now
        self.renew_at = now + self.lease_ms / 3_000
        self.claim_due = now + claim_s / 3

    def keep(self, now: float, claim_s: float) -> None:
        """It waits for a slot, with a lease, and a claim of so many seconds, half of which may be over."""
        self.renew_at = now + self.lease_ms / 3_000
        self.claim_due = now + claim_s / 6

    def unwatch(self) -> None:
        """What the log says about the job matters no more."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.cancel()

    def again(self) -> None:
        """As if its handler had not run: another worker has the job, and may leave it to us yet."""
        self.job = Job(self.job._activation)
        self.outcome = None
        self.timed_out = self.called_off = False
        self.tries += 1


def tokens() -> Iterator[str]:
    """Owners of dedup claims: no two alike, in any process."""
    prefix = secrets.token_hex(8)
    return (f"{prefix}-{number}" for number in itertools.count(1))
