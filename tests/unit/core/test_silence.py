"""What silence ends, it ends only once everything has been heard that was sent before."""

from __future__ import annotations

import pytest

from relevo_engine.core.job import JobState
from relevo_partitions.statemachine import Heard
from relevo_schemas import events as ev
from tests.unit.core.harness import START, Partition, only, rules

LEASE = 10_000


@pytest.fixture
def p() -> Partition:
    partition = Partition(rules())
    partition.create("k", lease_ms=LEASE)
    partition.start("k")
    return partition


def test_a_lease_ends_by_what_was_heard_not_by_the_clock(p: Partition) -> None:
    p.heard = Heard(START, START + LEASE - 1)
    assert p.step(5 * LEASE) == [], "the worker's word may be on its way"
    assert p.owner.silent_at() == START + LEASE
    assert p.owner.wait_ms(p.now) == 0
    p.heard = Heard(START, START + LEASE)
    assert only(p.step(), ev.JobTimedOut)
    assert p.owner.silent_at() is None


def test_a_word_behind_a_backlog_counts_from_when_it_is_heard(p: Partition) -> None:
    p.now += 3 * LEASE
    p.heard = Heard(START, START + LEASE - 1)
    assert p.extend("k", lease_ms=LEASE) == []
    p.heard = Heard(START, START + 4 * LEASE - 1)
    assert p.step(LEASE) == []
    p.heard = Heard(START, START + 4 * LEASE)
    assert only(p.step(), ev.JobTimedOut)


def test_what_was_done_meanwhile_is_done(p: Partition) -> None:
    p.now += 3 * LEASE
    p.heard = Heard(START, START + LEASE - 1)
    assert only(p.complete("k"), ev.JobCompleted)


def test_after_a_break_every_attempt_has_a_full_fresh_lease(p: Partition) -> None:
    p.create("long", lease_ms=4 * LEASE)
    p.start("long")
    back = START + LEASE - 100
    p.now, p.heard = back, Heard(back, back)
    assert p.step() == []
    assert p.owner.silent_at() == back + LEASE
    p.now, p.heard = back + LEASE, Heard(back, back + LEASE)
    (timed_out,) = only(p.step(), ev.JobTimedOut)
    assert timed_out.key == "k"
    assert p.owner.silent_at() == back + 4 * LEASE


def test_a_break_shortens_no_lease(p: Partition) -> None:
    p.extend("k", lease_ms=6 * LEASE)
    p.now += 1_000
    p.heard = Heard(p.now, p.now)
    p.step()
    assert p.owner.silent_at() == START + 6 * LEASE


def test_the_same_break_counts_once(p: Partition) -> None:
    back = START + LEASE - 100
    p.now, p.heard = back, Heard(back, back)
    p.step()
    p.extend("k", lease_ms=1_000)
    p.heard = Heard(back, back + 1_000)
    assert only(p.step(1_000), ev.JobTimedOut)


def test_a_new_leader_gives_fresh_leases_once(p: Partition) -> None:
    p.now += LEASE - 100
    p.failover()
    elected_at = p.now
    p.heard = Heard(elected_at, elected_at)
    p.step()
    p.extend("k", lease_ms=1_000)
    p.step()
    assert p.owner.silent_at() == elected_at + 1_000


def test_an_activation_counts_as_lost_by_what_was_heard() -> None:
    p = Partition(rules(redispatch_after_ms=LEASE))
    p.create("k")
    p.heard = Heard(START, START + LEASE - 1)
    assert p.step(5 * LEASE) == []
    p.heard = Heard(START, START + LEASE)
    assert only(p.step(), ev.JobTimedOut)


def test_time_itself_waits_for_nobody() -> None:
    """Due dates and expiries are no matter of silence."""
    p = Partition(rules())
    p.create("leased", lease_ms=LEASE)
    p.start("leased")
    p.create("later", run_at=START + 2 * LEASE)
    p.create("expires", expires_at=START + 3 * LEASE)
    p.heard = Heard(START, START)
    events = p.step(4 * LEASE)
    assert [event.key for event in only(events, ev.JobDue)] == ["later"]
    assert [event.key for event in only(events, ev.JobExpired)] == ["expires"]
    assert p.where("leased") is JobState.ACTIVE
