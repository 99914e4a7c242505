"""The story of each job, event by event, by a table of its own. Shares no code with the appliers.

Folding the log with the engine's own `State` would be stricter in what it derives (queues, timers), but it
holds every open job with its variables in memory, and a bug of an applier would be its own witness.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from relevo_engine.core.job import OPEN_STATES, JobState
from relevo_engine.core.refusals import Reason
from relevo_engine.core.rules import SharedRules
from relevo_engine.verify.facts import PENDING, REFUSED, UNKNOWN, FactStore, JobFacts, code_of
from relevo_engine.verify.findings import Fault, Invariant
from relevo_schemas import events as ev
from relevo_schemas.records import Event

_DEFAULTS: Final = SharedRules(partitions=1)


@dataclass(frozen=True, slots=True)
class Remembered:
    """For how long the cluster remembers ended jobs: creating a key anew after that is no fault.

    Attributes:
        finished_window_ms: The nodes' ``finished_window_s``, in milliseconds.
        finished_count_max: The nodes' ``finished_count_max``.
    """

    finished_window_ms: int = _DEFAULTS.finished_window_ms
    finished_count_max: int = _DEFAULTS.finished_count_max


class _Attempt(Enum):
    """Which attempt an event must name."""

    NONE = "none"
    NEXT = "next"
    CURRENT = "current"
    PAST = "past"
    """One that was handed out, the current one among them."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """When an event can happen, and what the job is then; None: what it was."""

    legal: frozenset[JobState]
    to: JobState | None
    attempt: _Attempt = _Attempt.NONE


_SCHEDULED, _READY, _ACTIVE, _INCIDENT = OPEN_STATES
_ANY_OPEN: Final = frozenset(OPEN_STATES)
_RULES: Final[dict[type[Event], _Rule]] = {
    ev.JobDue: _Rule(frozenset({_SCHEDULED}), _READY),
    ev.JobActivated: _Rule(frozenset({_READY}), _ACTIVE, _Attempt.NEXT),
    ev.JobStarted: _Rule(frozenset({_ACTIVE}), _ACTIVE, _Attempt.CURRENT),
    ev.JobCheckpointed: _Rule(frozenset({_ACTIVE}), None, _Attempt.CURRENT),
    ev.JobCompleted: _Rule(_ANY_OPEN, JobState.COMPLETED, _Attempt.PAST),
    ev.JobFailed: _Rule(frozenset({_ACTIVE}), _SCHEDULED, _Attempt.CURRENT),  # or see `_after`
    ev.JobErrored: _Rule(frozenset({_ACTIVE}), JobState.ERRORED, _Attempt.CURRENT),
    ev.JobTimedOut: _Rule(frozenset({_ACTIVE}), _READY, _Attempt.CURRENT),
    ev.JobIncident: _Rule(frozenset({_READY, _INCIDENT}), _INCIDENT, _Attempt.CURRENT),
    ev.JobRetried: _Rule(frozenset({_INCIDENT, _SCHEDULED}), _READY),
    ev.JobUpdated: _Rule(_ANY_OPEN, None),
    ev.JobCancelled: _Rule(_ANY_OPEN, JobState.CANCELLED),
    ev.JobExpired: _Rule(_ANY_OPEN, JobState.EXPIRED),
}


class Stories:
    """What happened to the jobs of one partition, as far as its log tells.

    Args:
        partition: The partition.
        store: Where facts are kept; the keys of the events to come must be loaded.
        remembered: For how long ended jobs are.

    Attributes:
        ended: How many jobs ended.
        open: How many jobs are open, by state; None stands for those whose state the log doesn't tell.
    """

    def __init__(self, partition: int, store: FactStore, remembered: Remembered) -> None:
        self.ended = 0
        self.open: dict[JobState | None, int] = dict.fromkeys((*OPEN_STATES, None), 0)
        self._partition = partition
        self._store = store
        self._remembered = remembered

    def take(self, event: Event, last_at: int, *, incomplete: bool) -> Fault | None:
        """Go on with the story of the event's job; what is wrong with that.

        Args:
            event: The next event.
            last_at: Time of the one before.
            incomplete: Some events can't be read any more: a job that isn't known may come from there.
        """
        if type(event) is ev.JobCreated:
            return self._created(event, last_at)
        rule = _RULES.get(type(event))
        if rule is not None:
            return self._happened(event, rule, incomplete=incomplete)
        if type(event) is ev.CommandRejected:
            self._rejected(event)
        return None

    def _created(self, event: ev.JobCreated, last_at: int) -> Fault | None:
        facts = self._store.get(event.job.key)
        if facts is not None and facts.exists and (not facts.ended or self._is_remembered(facts, last_at)):
            found = f"JobCreated for {event.job.key!r}, which is {_name(facts)}"
            return Fault(Invariant.CREATED_ONCE, "a new key", found)
        state = _SCHEDULED if event.job.run_at > event.at else _READY
        self._store.put(event.job.key, JobFacts(self._partition, code_of(state)))
        self.open[state] += 1
        return None

    def _is_remembered(self, facts: JobFacts, last_at: int) -> bool:
        """Whether the engine can't have forgotten a job that ended."""
        if self.ended - facts.nth >= self._remembered.finished_count_max:
            return False
        return facts.ended_at >= last_at - self._remembered.finished_window_ms

    def _rejected(self, event: ev.CommandRejected) -> None:
        """Remember a job that was refused and doesn't exist."""
        refused = event.command == "CreateJob" and event.reason != Reason.ALREADY_EXISTS
        facts = self._store.get(event.key) if event.key else None
        if refused and event.key and (facts is None or facts.code == PENDING):
            self._store.put(event.key, JobFacts(self._partition, REFUSED))

    def _happened(self, event: Any, rule: _Rule, *, incomplete: bool) -> Fault | None:
        facts = self._store.get(event.key)
        fault = None
        if facts is None or not facts.exists:
            if not incomplete:
                found = f"{type(event).__name__} for {event.key!r}, which was never created"
                fault = Fault(Invariant.OPEN_JOB, "an event about an open job", found)
            facts = JobFacts(self._partition, UNKNOWN, UNKNOWN)
            self._store.put(event.key, facts)
            self.open[None] += 1
        elif facts.ended:
            return _after_the_end(event, rule, facts)
        else:
            fault = _check(event, rule, facts)
        self._move(event, rule, facts)
        return fault

    def _move(self, event: Any, rule: _Rule, facts: JobFacts) -> None:
        if rule.attempt in (_Attempt.NEXT, _Attempt.CURRENT):
            facts.attempt = event.attempt
        to = _after(event, rule)
        if to is None:
            return
        self.open[facts.state] -= 1
        facts.code = code_of(to)
        if to in self.open:
            self.open[to] += 1
        else:
            self.ended += 1
            facts.ended_at, facts.nth = event.at, self.ended


def _after(event: Any, rule: _Rule) -> JobState | None:
    if type(event) is not ev.JobFailed:
        return rule.to
    if event.retry_at < 0:
        return _INCIDENT
    return _READY if event.retry_at <= event.at else _SCHEDULED


def _check(event: Any, rule: _Rule, facts: JobFacts) -> Fault | None:
    """What is wrong with an event about an open job."""
    state, current = facts.state, facts.attempt
    if state is not None and state not in rule.legal:
        legal = " or ".join(each.value for each in OPEN_STATES if each in rule.legal)
        found = f"{type(event).__name__} for {event.key!r}, which is {state.value}"
        return Fault(Invariant.TRANSITION, f"a job that is {legal}", found)
    kind = rule.attempt
    if kind is _Attempt.NONE or current == UNKNOWN:
        return None
    if kind is _Attempt.PAST:
        if 1 <= event.attempt <= current:
            return None
        expected = f"an attempt from 1 to {current}" if current else "an attempt that was handed out"
    else:
        due = current + (kind is _Attempt.NEXT)
        if event.attempt == due:
            return None
        expected = f"attempt {due}"
    found = f"{type(event).__name__} for {event.key!r} with attempt {event.attempt}"
    return Fault(Invariant.ATTEMPT, expected, found)


def _after_the_end(event: Any, rule: _Rule, facts: JobFacts) -> Fault:
    found = f"{type(event).__name__} for {event.key!r}, which is {_name(facts)}"
    if type(event) is ev.JobCompleted and facts.state is JobState.COMPLETED:
        return Fault(Invariant.COMPLETED_ONCE, "one completion", found)
    if rule.to is not None and rule.to not in _ANY_OPEN:
        return Fault(Invariant.ENDED_ONCE, "one end", found)
    return Fault(Invariant.OPEN_JOB, "an event about an open job", found)


def _name(facts: JobFacts) -> str:
    return facts.state.value if facts.state is not None else "open"
