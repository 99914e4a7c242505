"""A lease expires while its worker still works: all orders of what may happen then."""

from __future__ import annotations

from itertools import permutations

import pytest

from relevo_engine.core.job import JobState
from relevo_schemas import events as ev
from tests.unit.core.harness import Partition, check_consistent, only, refusals, rules
from tests.unit.core.stories import check_stories

LEASE = 10_000
STEPS = ("expire", "start 2", "complete 1", "complete 2", "fail 1", "failover")


def happen(p: Partition, step: str) -> None:
    match step.split():
        case ["expire"]:
            p.step(LEASE)
        case ["start", attempt]:
            p.start("k", int(attempt), worker=f"w{attempt}")
        case ["complete", attempt]:
            p.complete("k", int(attempt), result=attempt.encode())
        case ["fail", attempt]:
            p.fail("k", int(attempt))
        case _:
            p.failover()


@pytest.mark.parametrize("order", list(permutations(STEPS)), ids=" > ".join)
def test_exactly_one_completion_wins_in_every_order(order: tuple[str, ...]) -> None:
    """Two workers answer for one job; results must not race, and the loser must hear that it lost."""
    p = Partition(rules())
    p.create("k", lease_ms=LEASE, retries=3, backoff_ms=60_000)
    p.start("k", worker="w1")
    for step in order:
        happen(p, step)
        check_consistent(p.machine)
        assert p.replayed().state_hash() == p.owner.state_hash()
    check_stories(p.events)
    assert p.where("k") is JobState.COMPLETED
    (completed,) = only(p.events, ev.JobCompleted)
    assert completed.result == str(completed.attempt).encode()
    assert_first_fitting_completion_won(order, completed)
    assert_failure_counted_only_while_it_ran(order, p)


def assert_first_fitting_completion_won(order: tuple[str, ...], completed: ev.JobCompleted) -> None:
    """Attempt 2 exists once the lease has expired, unless the first attempt failed or completed before."""
    ended_early = min(order.index("complete 1"), order.index("fail 1"))
    has_second = order.index("expire") < ended_early
    second_counts = has_second and order.index("expire") < order.index("complete 2") < order.index(
        "complete 1"
    )
    assert completed.attempt == (2 if second_counts else 1)


def assert_failure_counted_only_while_it_ran(order: tuple[str, ...], p: Partition) -> None:
    failed_in_time = order.index("fail 1") < min(order.index("expire"), order.index("complete 1"))
    assert len(only(p.events, ev.JobFailed)) == failed_in_time
    if not failed_in_time:
        answers = [
            reason for reason, _ in refusals([e for e in p.events if getattr(e, "command", "") == "FailJob"])
        ]
        assert answers in (["STALE_ATTEMPT"], ["ALREADY_COMPLETED"])
