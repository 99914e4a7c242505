"""What the events of a partition tell, by accounts that know nothing of the appliers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from relevo_schemas import events as ev
from relevo_schemas.records import Event


def check_stories(events: Sequence[Event]) -> None:
    """An account of the log that knows nothing of the appliers.

    Each job begins once, ends at most once, and its attempts count up from 1.
    """
    attempts: dict[str, int] = {}
    completions: Counter[str] = Counter()
    for event in events:
        if isinstance(event, ev.CommandRejected | ev.LeaderElected):
            continue
        if isinstance(event, ev.JobCreated):
            assert event.job.key not in attempts
            attempts[event.job.key] = 0
            completions[event.job.key] = 0
            continue
        key: Any = event.key  # type: ignore[attr-defined]
        assert key in attempts, f"{event} speaks of a job that isn't open"
        if isinstance(event, ev.JobActivated):
            attempts[key] += 1
            assert event.attempt == attempts[key]
        elif isinstance(event, ev.JobCompleted | ev.JobErrored | ev.JobCancelled | ev.JobExpired):
            del attempts[key]
            completions[key] += 1
    assert all(count <= 1 for count in completions.values())


def stored_before(events: Sequence[Event]) -> list[bytes]:
    """Per activation, what earlier attempts of the job had stored last."""
    stored: dict[str, bytes] = {}
    found = []
    for event in events:
        if isinstance(event, ev.JobCheckpointed):
            stored[event.key] = event.detail
        elif isinstance(event, ev.JobCreated):
            stored.pop(event.job.key, None)
        elif isinstance(event, ev.JobActivated):
            found.append(stored.get(event.key, b""))
    return found


def created_before(events: Sequence[Event]) -> list[int]:
    """Per activation, the number of the event that created its job."""
    created: dict[str, int] = {}
    found = []
    for event in events:
        if isinstance(event, ev.JobCreated):
            created[event.job.key] = event.seq
        elif isinstance(event, ev.JobActivated):
            found.append(created[event.key])
    return found


def silent_before(events: Sequence[Event]) -> list[int]:
    """Per activation, how many attempts had fallen silent by then, since the last retry by request."""
    silent: Counter[str] = Counter()
    found = []
    for event in events:
        if isinstance(event, ev.JobTimedOut):
            silent[event.key] += event.cause != "UNCLAIMED"
            assert event.expiries == silent[event.key]
        elif isinstance(event, ev.JobCreated):
            del silent[event.job.key]
        elif isinstance(event, ev.JobRetried):
            del silent[event.key]
        elif isinstance(event, ev.JobActivated):
            found.append(silent[event.key])
    return found
