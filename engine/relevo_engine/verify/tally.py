"""Counts events, and measures takeovers by their times."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from relevo_engine.core.refusals import Reason
from relevo_engine.core.timeouts import UNCLAIMED
from relevo_engine.verify.report import Counts, Takeover
from relevo_schemas import events as ev
from relevo_schemas.records import Event

TAKEOVERS_MAX: Final = 10_000
_REASONS_MAX: Final = 100
"""Different reasons that are counted apart: a damaged log must not fill the memory with them."""


class Term:
    """The term under way in one partition."""

    __slots__ = ("node", "waiting")

    def __init__(self) -> None:
        self.node: str | None = None
        self.waiting: Takeover | None = None


class Tally:
    """Counts and takeovers of all partitions.

    Attributes:
        counts: The counts, without the open jobs and the refusals.
        takeovers: The terms in the order in which they were met.
        refusals: Refused commands by reason.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self.takeovers: deque[Takeover] = deque(maxlen=TAKEOVERS_MAX)
        self.refusals: Counter[str] = Counter()

    def take(self, event: Event, term: Term) -> None:
        """Count an event."""
        count = _COUNTING.get(type(event))
        if count is not None:
            count(self, event, term)

    def begin(
        self, partition: int, offset: int, event: ev.LeaderElected, last_at: int | None, term: Term
    ) -> None:
        """Note a new term; ``last_at`` is the time of the event before, None where there is none."""
        self.counts.elections += 1
        gap_ms = event.at - last_at if last_at is not None else None
        takeover = Takeover(partition, event.epoch, event.node, term.node, offset, event.at, gap_ms)
        self.takeovers.append(takeover)
        term.node, term.waiting = event.node, takeover

    def _activated(self, event: ev.JobActivated, term: Term) -> None:
        self.counts.attempts += 1
        if event.attempt > 1:
            self.counts.extra_attempts += 1
        if term.waiting is not None:
            term.waiting.first_activation_ms = event.at - term.waiting.at
            term.waiting = None

    def _timed_out(self, event: ev.JobTimedOut, _term: Term) -> None:
        if event.cause == UNCLAIMED:
            self.counts.unclaimed += 1
        else:
            self.counts.lease_expiries += 1

    def _rejected(self, event: ev.CommandRejected, _term: Term) -> None:
        known = event.reason in self.refusals or len(self.refusals) < _REASONS_MAX
        self.refusals[event.reason if known else "…"] += 1
        if event.command == "CreateJob" and event.reason == Reason.ALREADY_EXISTS:
            self.counts.repeated_creates += 1
        elif event.command == "CompleteJob" and event.reason == Reason.ALREADY_COMPLETED:
            self.counts.late_completions += 1


def _plus_one(name: str) -> Callable[[Tally, Any, Term], None]:
    def count(tally: Tally, _event: Any, _term: Term) -> None:
        setattr(tally.counts, name, getattr(tally.counts, name) + 1)

    return count


_COUNTING: Final[dict[type[Event], Callable[[Tally, Any, Term], None]]] = {
    ev.JobCreated: _plus_one("created"),
    ev.JobCompleted: _plus_one("completed"),
    ev.JobErrored: _plus_one("errored"),
    ev.JobCancelled: _plus_one("cancelled"),
    ev.JobExpired: _plus_one("expired"),
    ev.JobStarted: _plus_one("started"),
    ev.JobFailed: _plus_one("failures"),
    ev.JobIncident: _plus_one("incidents"),
    ev.JobRetried: _plus_one("retried"),
    ev.JobActivated: Tally._activated,
    ev.JobTimedOut: Tally._timed_out,
    ev.CommandRejected: Tally._rejected,
}
