"""A key that is used anew: late attempts of the job that had it before mean nothing to the next one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relevo_engine.core.job import JobState
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.records import Command
from tests.unit.core.harness import Partition, check_consistent, only, refusals, rules, snapshot

LEASE = 10_000
Told = Callable[[int], Command]
"""A worker's command about attempt 1 of the job that this event created."""

ABOUT_ONE: dict[str, Told] = {
    "complete": lambda seq: cmd.CompleteJob("k", seq, 1, b'"late"'),
    "fail": lambda seq: cmd.FailJob("k", seq, 1, "late", 0, True),
    "fail for good": lambda seq: cmd.FailJob("k", seq, 1, "late", -1, False),
    "throw": lambda seq: cmd.ThrowError("k", seq, 1, "LATE", ""),
    "checkpoint": lambda seq: cmd.CheckpointJob("k", seq, 1, b'"late"'),
    "start": lambda seq: cmd.StartJobs("late", (cmd.LeaseRef("k", seq, 1, 0),)),
    "extend": lambda seq: cmd.ExtendJobs("late", (cmd.LeaseRef("k", seq, 1, 3 * LEASE),)),
}


def from_the_log(p: Partition) -> None:
    p.failover()


def from_a_snapshot(p: Partition) -> None:
    frozen, pieces = p.owner.freeze(), []
    while (piece := frozen.next(1)) is not None:
        pieces.append(piece)
    p.owner = p.fresh()
    p.owner.restore(pieces)
    p.lead()


TAKEOVERS: dict[str, Callable[[Partition], None]] = {
    "same leader": lambda p: None,
    "from the log": from_the_log,
    "from a snapshot": from_a_snapshot,
}


def reused() -> tuple[Partition, int, int]:
    """The key's second job runs; the events that created the first and the second."""
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    p.start("k", worker="late")
    first = p.created("k")
    p.send(cmd.CancelJob("k", "not wanted any more"))
    p.step(p.rules.finished_window_ms + 1)
    p.create("other")
    p.create("k", lease_ms=LEASE)
    second = p.created("k")
    assert 0 < first < second
    assert [(each.job.key, each.created_seq, each.attempt) for _, _, each in p.activations] == [
        ("k", first, 1), ("other", second - 2, 1), ("k", second, 1),
    ]  # fmt: skip
    return p, first, second


@pytest.mark.parametrize("started", [False, True], ids=["handed out", "started"])
@pytest.mark.parametrize("takeover", TAKEOVERS.values(), ids=TAKEOVERS)
@pytest.mark.parametrize("told", ABOUT_ONE.values(), ids=ABOUT_ONE)
def test_a_late_attempt_of_the_earlier_job_changes_nothing(
    told: Told, takeover: Callable[[Partition], None], started: bool
) -> None:
    """A frozen worker wakes up, and the job that has the key by now counts as done and was never run."""
    p, first, second = reused()
    if started:
        p.start("k", worker="w1")
    takeover(p)
    before, until = snapshot(p.state), p.machine._leases.until("k")
    p.now += 1
    events = p.send(told(first))
    found = f"the one that event {second} created"
    assert refusals(events) == [("NOT_FOUND", found)]
    assert only(events, ev.CommandRejected)[0].expected == f"the job that event {first} created"
    assert len(events) == 1
    assert (snapshot(p.state), p.machine._leases.until("k")) == (before, until)
    check_consistent(p.machine)
    p.complete("k", result=b'"mine"')
    assert only(p.events, ev.JobCompleted)[-1].result == b'"mine"'
    assert p.where("k") is JobState.COMPLETED


@pytest.mark.parametrize("told", ABOUT_ONE.values(), ids=ABOUT_ONE)
def test_its_own_attempts_and_those_that_do_not_say_count_as_ever(told: Told) -> None:
    """0 is what workers send that were handed the job by a node of an earlier version, or are of one."""
    for known in (True, False):
        p, _, second = reused()
        events = p.send(told(second if known else 0))
        assert not refusals(events)
        assert len(events) > 0


@pytest.mark.parametrize("told", ABOUT_ONE.values(), ids=ABOUT_ONE)
def test_a_job_of_an_old_snapshot_takes_what_it_is_told(told: Told) -> None:
    """Nobody knows any more which event created it, so nobody can say that it isn't meant."""
    p, _, second = reused()
    p.job("k").created_seq = 0
    events = p.send(told(second))
    assert not refusals(events)
    assert len(events) > 0


def test_an_earlier_attempt_of_the_same_job_still_completes_it() -> None:
    p, _, second = reused()
    p.start("k")
    p.step(LEASE)
    assert p.job("k").attempt == 2
    (event, *_) = p.send(cmd.CompleteJob("k", second, 1, b"1"))
    assert isinstance(event, ev.JobCompleted)
    assert event.attempt == 1


def test_others_of_the_same_batch_are_not_refused_with_it() -> None:
    p, first, second = reused()
    for batch in (cmd.StartJobs, cmd.ExtendJobs):
        events = p.send(
            batch("w1", (cmd.LeaseRef("k", first, 1, 0), cmd.LeaseRef("other", second - 2, 1, 3 * LEASE)))
        )
        assert [reason for reason, _ in refusals(events)] == ["NOT_FOUND"]
        until = p.machine._leases.until("other")
        assert until == p.now + 3 * LEASE
        p.now += 7


def test_what_a_client_asks_for_is_about_the_job_that_has_the_key() -> None:
    """People know keys; which event created a job is between engine and workers."""
    p, _, _ = reused()
    (event,) = p.send(cmd.CancelJob("k", ""))
    assert isinstance(event, ev.JobCancelled)
