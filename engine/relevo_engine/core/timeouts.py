"""What time alone leads to: jobs fall due or expire, attempts fall silent or are never taken up."""

from __future__ import annotations

from typing import Final

from relevo_engine.core.timers import EXPIRY
from relevo_engine.core.turn import Turn
from relevo_schemas import events as ev
from relevo_schemas.records import Event

LEASE: Final = "LEASE"
TAKEN_OVER: Final = "TAKEN_OVER"
UNCLAIMED: Final = "UNCLAIMED"
LEASES_EXHAUSTED: Final = "LEASES_EXHAUSTED"
NEVER: Final = 1 << 62


def next_at(turn: Turn) -> int:
    """When the next of all timers falls due; `NEVER` where there is none."""
    return min(_timer_at(turn), _lease_at(turn), _unclaimed_at(turn))


def overdue(turn: Turn) -> list[Event]:
    """The events of whatever fell due first and is due at ``turn.at``; none where nothing is.

    Oldest first over all kinds, so that a backlog of one kind doesn't hold up another. What ends by silence
    is due once everything has been heard that was sent before.
    """
    silent_at = turn.at if turn.heard_until is None else min(turn.at, turn.heard_until)
    timer_at, lease_at, unclaimed_at = _timer_at(turn), _lease_at(turn), _unclaimed_at(turn)
    if min(lease_at, unclaimed_at) > silent_at:
        lease_at = unclaimed_at = NEVER
    if min(timer_at, lease_at, unclaimed_at) > turn.at:
        return []
    lease, timer = turn.leases.head(), turn.state.timers.head()
    if lease is not None and lease_at <= min(timer_at, unclaimed_at):
        return fell_silent(turn, lease[1], LEASE)
    if timer is not None and timer_at <= unclaimed_at:
        _, kind, key = timer
        return [ev.JobExpired(*turn.head(), key) if kind == EXPIRY else ev.JobDue(*turn.head(), key)]
    return [_unclaimed(turn, next(iter(turn.state.unclaimed)))]


def _timer_at(turn: Turn) -> int:
    timer = turn.state.timers.head()
    return timer[0] if timer is not None else NEVER


def _lease_at(turn: Turn) -> int:
    lease = turn.leases.head()
    return lease[0] if lease is not None else NEVER


def _unclaimed_at(turn: Turn) -> int:
    for activated_at in turn.state.unclaimed.values():
        return activated_at + turn.rules.redispatch_after_ms
    return NEVER


def fell_silent(turn: Turn, key: str, cause: str, nth: int = 0) -> list[Event]:
    """The attempt under way of ``key`` has ended without a word: the events, from the turn's ``nth`` on.

    Too many of them make the job an incident: it may be what kills its workers.
    """
    job = turn.state.jobs[key]
    if cause == LEASE:
        turn.readers.fell_silent(job.worker)
    expiries = job.lease_expiries + 1
    events: list[Event] = [ev.JobTimedOut(*turn.head(nth), key, job.attempt, cause, expiries)]
    if expiries >= turn.rules.lease_expiries_max:
        message = f"{expiries} attempts fell silent, the last one at worker {job.worker}"
        events.append(ev.JobIncident(*turn.head(nth + 1), key, job.attempt, LEASES_EXHAUSTED, message))
    return events


def _unclaimed(turn: Turn, key: str) -> Event:
    job = turn.state.jobs[key]
    return ev.JobTimedOut(*turn.head(), key, job.attempt, UNCLAIMED, job.lease_expiries)
