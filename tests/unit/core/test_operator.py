"""What an operator may do to a job: cancel, retry, update; and what its expiry does."""

from __future__ import annotations

import pytest

from relevo_engine.core.job import JobState
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from tests.unit.core.harness import START, Channels, Partition, only, refusals, rules


def in_state(state: JobState, **fields: int) -> Partition:
    """A partition whose job ``k`` is in an open state."""
    p = Partition(rules(), Channels({"email": 1}, makeable=["fresh"]))
    match state:
        case JobState.SCHEDULED:
            p.create("k", run_at=START + 60_000, **fields)
        case JobState.READY:
            p.create("k", type="fresh", **fields)
        case JobState.ACTIVE:
            p.create("k", **fields)
            p.start("k")
        case _:
            p.create("k", retries=0, **fields)
            p.fail("k")
    assert p.where("k") is state
    return p


OPEN = pytest.mark.parametrize(
    "state",
    [JobState.SCHEDULED, JobState.READY, JobState.ACTIVE, JobState.INCIDENT],
    ids=lambda state: state.value,
)


@OPEN
def test_a_job_is_cancelled_in_any_open_state(state: JobState) -> None:
    p = in_state(state)
    (event,) = p.send(cmd.CancelJob("k", "x" * 5_000))
    assert isinstance(event, ev.JobCancelled)
    assert len(event.reason) == 4_096
    assert p.where("k") is JobState.CANCELLED
    assert refusals(p.send(cmd.CancelJob("k", ""))) == [("ALREADY_FINISHED", "CANCELLED")]
    assert refusals(p.complete("k")) == [("ALREADY_FINISHED", "CANCELLED")]
    assert p.owner.wait_ms(p.now) is None
    assert p.step(10_000_000) == []


@OPEN
def test_a_job_expires_in_any_open_state(state: JobState) -> None:
    """An incident too: a person who looks a year later finds nothing to do."""
    p = in_state(state, expires_at=START + 5_000)
    p.failover()
    assert p.step(4_999) == []
    (event,) = p.step(1)
    assert isinstance(event, ev.JobExpired)
    assert p.where("k") is JobState.EXPIRED
    assert p.owner.wait_ms(p.now) is None


def test_a_completed_job_does_not_expire() -> None:
    p = in_state(JobState.ACTIVE, expires_at=START + 5_000)
    p.complete("k")
    assert p.step(10_000) == []


@OPEN
def test_priority_and_retries_are_changed_in_any_open_state(state: JobState) -> None:
    p = in_state(state)
    (event,) = p.send(cmd.UpdateJob("k", 7, None))
    assert isinstance(event, ev.JobUpdated)
    assert (event.priority, event.retries) == (7, p.job("k").retries)
    p.send(cmd.UpdateJob("k", None, 9))
    assert (p.job("k").priority, p.job("k").retries, p.where("k")) == (7, 9, state)
    assert p.replayed().state_hash() == p.owner.state_hash()


@pytest.mark.parametrize(
    ("priority", "retries", "found"),
    [(None, None, "neither"), (101, None, "101"), (None, -1, "-1"), (0, 1_001, "1001")],
)
def test_updates_out_of_range_are_refused(priority: int | None, retries: int | None, found: str) -> None:
    p = in_state(JobState.ACTIVE)
    assert refusals(p.send(cmd.UpdateJob("k", priority, retries))) == [("INVALID", found)]
    assert refusals(p.send(cmd.UpdateJob("nobody", 1, 1))) == [("NOT_FOUND", "none")]


def test_an_incident_is_retried_with_fresh_counts() -> None:
    p = Partition(rules(lease_expiries_max=2))
    p.create("k", lease_ms=1_000, retries=1, backoff_ms=1_000)
    for attempt in (1, 2):
        p.start("k", attempt)
        p.step(1_000)
    assert p.where("k") is JobState.INCIDENT
    retried, activated = p.send(cmd.RetryJob("k", 2))
    assert isinstance(retried, ev.JobRetried)
    assert isinstance(activated, ev.JobActivated)
    assert activated.attempt == 3
    job = p.job("k")
    assert (job.retries, job.failures, job.lease_expiries, job.cause) == (2, 0, 0, "")
    p.start("k", 3)
    p.step(1_000)
    assert p.where("k") is JobState.ACTIVE, "one expiry is not two"


def test_a_job_that_waits_after_a_failure_is_retried_at_once() -> None:
    p = Partition(rules())
    p.create("k", backoff_ms=60_000)
    p.fail("k")
    assert [type(event) for event in p.send(cmd.RetryJob("k", 3))] == [ev.JobRetried, ev.JobActivated]
    assert p.step(100_000) == [], "the old timer is gone"


def test_a_retry_by_request_begins_with_the_shortest_pause_again() -> None:
    p = Partition(rules())
    p.create("k", retries=3, backoff_ms=1_000)
    for attempt in (1, 2, 3):
        p.fail("k", attempt)
        p.send(cmd.RetryJob("k", 3))
    (*_, event) = only(p.fail("k", 4), ev.JobFailed)
    assert event.retry_at - event.at <= 1_100


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (JobState.READY, "READY"),
        (JobState.ACTIVE, "ACTIVE"),
        (JobState.SCHEDULED, "SCHEDULED for its first attempt"),
    ],
)
def test_only_what_stands_still_is_retried(state: JobState, found: str) -> None:
    p = in_state(state)
    assert refusals(p.send(cmd.RetryJob("k", 1))) == [("NOT_RETRYABLE", found)]


def test_a_retry_has_bounds_and_needs_a_job() -> None:
    p = in_state(JobState.INCIDENT)
    assert refusals(p.send(cmd.RetryJob("k", -1))) == [("INVALID", "-1")]
    assert refusals(p.send(cmd.RetryJob("nobody", 1))) == [("NOT_FOUND", "none")]
    assert len(only(p.events, ev.JobRetried)) == 0
