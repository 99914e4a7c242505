"""Completing: from any attempt that was handed out, once."""

from __future__ import annotations

import pytest

from relevo_engine.core.job import JobState
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from tests.unit.core.harness import START, Partition, only, refusals, rules


@pytest.fixture
def p() -> Partition:
    return Partition(rules(lease_expiries_max=2))


def test_a_job_is_completed_with_its_result(p: Partition) -> None:
    p.create("k")
    (event,) = p.complete("k", result=b'{"sent":true}')
    assert isinstance(event, ev.JobCompleted)
    assert (event.attempt, event.result) == (1, b'{"sent":true}')
    assert p.where("k") is JobState.COMPLETED
    assert p.owner.view("k") == {
        "key": "k", "type": "email", "state": "COMPLETED", "attempt": 1, "finished_at": START,
    }  # fmt: skip


def test_the_second_completion_is_told_that_it_came_second(p: Partition) -> None:
    p.create("k")
    p.complete("k")
    assert refusals(p.complete("k")) == [("ALREADY_COMPLETED", "COMPLETED")]


def test_work_of_an_earlier_attempt_counts(p: Partition) -> None:
    """The first worker was slow, not dead: its effect is there, and running the job again helps nobody."""
    p.create("k", lease_ms=1_000)
    p.start("k")
    p.step(1_000)
    assert p.job("k").attempt == 2
    (event,) = p.complete("k", attempt=1)
    assert isinstance(event, ev.JobCompleted)
    assert refusals(p.complete("k", attempt=2)) == [("ALREADY_COMPLETED", "COMPLETED")]


def test_an_incident_is_completed_by_a_late_worker(p: Partition) -> None:
    p.create("k", retries=0)
    p.fail("k")
    assert p.where("k") is JobState.INCIDENT
    assert isinstance(p.complete("k")[0], ev.JobCompleted)


def test_a_job_that_waits_for_its_next_attempt_is_completed_by_a_late_worker(p: Partition) -> None:
    p.create("k")
    p.fail("k")
    assert p.where("k") is JobState.SCHEDULED
    assert isinstance(p.complete("k")[0], ev.JobCompleted)
    assert p.owner.wait_ms(p.now) is None


@pytest.mark.parametrize("attempt", [0, -1, 2, 1 << 30])
def test_an_attempt_that_was_never_handed_out_completes_nothing(p: Partition, attempt: int) -> None:
    p.create("k")
    assert refusals(p.complete("k", attempt=attempt)) == [("INVALID", str(attempt))]
    assert p.where("k") is JobState.ACTIVE


def test_a_job_that_was_never_handed_out_cannot_be_completed(p: Partition) -> None:
    p.create("k", run_at=START + 1_000)
    assert refusals(p.complete("k")) == [("INVALID", "1")]


def test_a_result_that_is_too_long_leaves_the_job_open(p: Partition) -> None:
    p.create("k")
    assert refusals(p.complete("k", result=b"x" * 900_001)) == [("TOO_LARGE", "900001 bytes")]
    assert p.where("k") is JobState.ACTIVE


def test_unknown_keys_are_answered(p: Partition) -> None:
    assert refusals(p.complete("nobody")) == [("NOT_FOUND", "none")]
    assert refusals(p.complete("x" * 600)) == [("INVALID", "600 bytes")]
    assert max(len(event.key) for event in only(p.events, ev.CommandRejected)) == 512


def test_a_business_error_ends_the_job(p: Partition) -> None:
    p.create("k")
    (event,) = p.send(cmd.ThrowError("k", 0, 1, "NO_SUCH_USER", "x" * 5_000))
    assert isinstance(event, ev.JobErrored)
    assert (event.code, len(event.message)) == ("NO_SUCH_USER", 4_096)
    assert p.where("k") is JobState.ERRORED
    assert refusals(p.complete("k")) == [("ALREADY_FINISHED", "ERRORED")]


def test_a_business_error_needs_the_attempt_that_runs(p: Partition) -> None:
    p.create("k", lease_ms=1_000)
    p.start("k")
    p.step(1_000)
    assert refusals(p.send(cmd.ThrowError("k", 0, 1, "C", ""))) == [("STALE_ATTEMPT", "attempt 1")]
    assert refusals(p.send(cmd.ThrowError("k", 0, 2, "c" * 257, ""))) == [("INVALID", "257 bytes")]
