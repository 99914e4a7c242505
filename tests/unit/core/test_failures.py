"""Failing attempts: counted, answered with pauses, in the end with an incident."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo_engine.core.commands import backoff_ms as backoff_ms_of
from relevo_engine.core.job import Job, JobState
from relevo_schemas import events as ev
from relevo_schemas.codec import job_spec
from relevo_schemas.records import Event
from tests.unit.core.harness import Partition, only, refusals, rules


def failed(events: list[Event]) -> ev.JobFailed:
    return only(events, ev.JobFailed)[0]


def test_retries_are_the_failures_answered_with_another_attempt() -> None:
    p = Partition(rules())
    p.create("k", retries=2)
    left = []
    for attempt in (1, 2, 3):
        left.append(failed(p.fail("k", attempt, retry_in_ms=0)).retries)
    assert left == [1, 0, 0]
    assert p.where("k") is JobState.INCIDENT
    (incident,) = only(p.events, ev.JobIncident)
    assert (incident.cause, incident.message, incident.attempt) == ("RETRIES_EXHAUSTED", "boom", 3)
    assert only(p.events, ev.JobFailed)[-1].retry_at == -1
    assert [each.retries for _, _, each in p.activations] == [2, 1, 0]


def test_no_retries_means_one_attempt() -> None:
    p = Partition(rules())
    p.create("k", retries=0)
    assert [type(event) for event in p.fail("k")] == [ev.JobFailed, ev.JobIncident]
    assert p.owner.wait_ms(p.now) is None


def test_pauses_double_up_to_their_bound_give_or_take_a_tenth() -> None:
    p = Partition(rules())
    p.create("k", retries=9, backoff_ms=1_000, backoff_max_ms=6_000)
    pauses = []
    for attempt in range(1, 7):
        event = failed(p.fail("k", attempt))
        pauses.append(event.retry_at - event.at)
        p.step(event.retry_at - p.now - 1)
        assert p.where("k") is JobState.SCHEDULED
        p.step(1)
        assert p.where("k") is JobState.ACTIVE
    for pause, middle in zip(pauses, [1_000, 2_000, 4_000, 6_000, 6_000, 6_000], strict=True):
        assert 0.9 * middle <= pause <= 1.1 * middle
    assert len(set(pauses[3:])) > 1


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    """A service that was down is knocked over again when everything returns in the same millisecond."""
    p = Partition(rules())
    for n in range(50):
        p.create(f"k{n}", backoff_ms=100_000)
    retry_at = {failed(p.fail(f"k{n}")).retry_at for n in range(50)}
    assert len(retry_at) > 35


def pause_of(key: str, attempt: int, backoff_ms: int, failures: int = 0) -> int:
    spec = job_spec(key="", type="t", backoff_ms=backoff_ms, backoff_max_ms=backoff_ms << 10)
    job = SimpleNamespace(key=key, attempt=attempt, failures=failures, spec=lambda: spec)
    return backoff_ms_of(cast(Job, job))


@given(
    prefix=st.text("abc-0", max_size=6),
    attempt=st.integers(1, 50),
    backoff_ms=st.integers(100, 10_000_000),
    failures=st.integers(0, 10),
)
@settings(max_examples=25)
def test_a_herd_is_spread_evenly_whatever_its_keys(
    prefix: str, attempt: int, backoff_ms: int, failures: int
) -> None:
    """A service that comes back gets all that it failed in one blow, and goes down again.

    Of jobs that failed in the same moment each tenth of the time between the first and the last gets about a
    tenth.
    """
    middle = backoff_ms << failures
    first, last = middle - middle // 10, middle - middle // 10 + middle // 5
    tenths = [0] * 10
    for n in range(1_000):
        pause = pause_of(f"{prefix}{n}", attempt, backoff_ms, failures)
        assert first <= pause <= last
        tenths[(pause - first) * 10 // (last - first + 1)] += 1
    assert min(tenths) > 30
    assert max(tenths) < 200


@given(attempt=st.integers(2, 40))
@settings(max_examples=10)
def test_who_came_back_together_parts_at_the_next_failure(attempt: int) -> None:
    """Jobs that once had the same pause must not have it each time: they would stay one herd."""
    pairs = {(pause_of(f"k{n}", attempt - 1, 1_000), pause_of(f"k{n}", attempt, 1_000)) for n in range(500)}
    assert len(pairs) > 450


def test_a_pause_follows_from_the_job_alone() -> None:
    first, second = Partition(rules()), Partition(rules())
    for p in (first, second):
        p.create("k", backoff_ms=100_000)
    assert failed(first.fail("k")).retry_at == failed(second.fail("k")).retry_at


def test_a_thousand_failures_do_not_overflow() -> None:
    p = Partition(rules())
    p.create("k", retries=1_000, backoff_ms=2_592_000_000, backoff_max_ms=2_592_000_000)
    for attempt in range(1, 100):
        event = failed(p.fail("k", attempt))
        p.step(event.retry_at - p.now)
    assert p.job("k").attempt == 100


def test_the_worker_may_name_the_pause() -> None:
    p = Partition(rules())
    p.create("k", retries=9)
    event = failed(p.fail("k", 1, retry_in_ms=77_000))
    assert event.retry_at == event.at + 77_000
    p.step(77_000)
    events = p.fail("k", 2, retry_in_ms=0)
    assert [type(event) for event in events] == [ev.JobFailed, ev.JobActivated]


@pytest.mark.parametrize("pause", [-2, 2_592_000_001])
def test_a_pause_out_of_range_is_refused(pause: int) -> None:
    p = Partition(rules())
    p.create("k")
    assert refusals(p.fail("k", retry_in_ms=pause)) == [("INVALID", str(pause))]


def test_a_failure_that_cannot_be_helped_goes_to_a_person_at_once() -> None:
    p = Partition(rules())
    p.create("k", retries=5)
    events = p.fail("k", retriable=False)
    assert (failed(events).retries, failed(events).retry_at) == (5, -1)
    assert only(events, ev.JobIncident)[0].cause == "NOT_RETRIABLE"


def test_long_errors_are_cut_at_a_character() -> None:
    p = Partition(rules())
    p.create("k")
    error = failed(p.fail("k", error="ü" * 3_000)).error
    assert error == "ü" * 2_048
    error = failed(p.fail("k", error="x" + "€" * 3_000)).error if p.where("k") is JobState.ACTIVE else error
    assert len(error.encode()) <= 4_096


def test_failing_needs_the_attempt_that_runs() -> None:
    p = Partition(rules())
    p.create("k", lease_ms=1_000)
    p.start("k")
    p.step(1_000)
    assert refusals(p.fail("k", 1)) == [("STALE_ATTEMPT", "attempt 1")]
    p.fail("k", 2)
    assert refusals(p.fail("k", 2)) == [("NOT_ACTIVE", "SCHEDULED")]
    assert refusals(p.fail("k", 3)) == [("INVALID", "3")]
    assert p.job("k").failures == 1
