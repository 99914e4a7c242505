"""Gaps and firsts, from what was seen."""

from __future__ import annotations

from typing import Any

from relevo.testing.arrivals import Activations, Arrival, LogFacts, longest_gap_ms
from relevo.testing.drills.takeovers import moves_of, steps_of


def arrival(seconds: float, epoch: int = 1, sent: float | None = None) -> Arrival:
    return Arrival(seconds, seconds * 1000, epoch, 1, sent, "a")


def test_a_gap_reaches_back_to_the_last_arrival_before_the_fault() -> None:
    """A fault in the middle of a pause would else hide half of it."""
    assert longest_gap_ms([1.0, 2.0, 5.0, 5.5], 3.0, 5.5) == 3000.0


def test_a_gap_that_is_not_over_counts_up_to_now() -> None:
    """A partition that never comes back has no second arrival to measure from."""
    assert longest_gap_ms([1.0], 1.0, 9.0) == 8000.0
    assert longest_gap_ms([], 1.0, 9.0) == 8000.0


def test_arrivals_outside_of_the_window_don_t_count() -> None:
    assert longest_gap_ms([0.0, 5.0, 5.1, 5.2, 9.0], 5.1, 5.2) < 101


def test_the_first_activation_of_the_next_term_is_not_one_of_the_old() -> None:
    """What the old leader had written may be read after it has died."""
    seen = Activations()
    for each in (arrival(1.0, 4), arrival(2.0, 4), arrival(3.0, 6), arrival(4.0, 6)):
        seen.add(2, each)
    first = seen.first_of_term(2, 5)
    assert first is not None
    assert (first.seconds, first.epoch) == (3.0, 6)
    assert seen.first_of_term(2, 7) is None
    assert seen.first_of_term(0, 5) is None


def test_flow_is_counted_by_when_jobs_were_sent() -> None:
    """A backlog that is worked off after a takeover says nothing about jobs sent now."""
    seen = Activations()
    for sent in (500.0, 2500.0, 2600.0, None):
        seen.add(0, arrival(3.0, sent=sent))
    assert seen.count_sent(0, 2000.0) == 2
    assert seen.count_sent(1, 2000.0) == 0


def test_the_first_decision_is_that_of_the_next_term() -> None:
    facts = LogFacts(accepts={(0, 3): 10.0, (0, 5): 30.0, (0, 6): 40.0, (1, 5): 20.0})
    assert facts.first_accept(0, 4) == 30.0
    assert facts.first_accept(0, 7) is None


def test_steps_are_told_only_where_both_ends_are() -> None:
    """A step without an end is not one of no length."""
    told = {"noticed_at": 100.0, "claimed_at": 104.5, "fenced_at": 130.0, "announced_at": 160.0}
    assert steps_of(told | {"first_activation_at": None}) == {"claim": 4.5, "fence": 25.5}


def test_a_move_is_told_with_the_gap_that_it_made() -> None:
    """The longest gap of a rolling restart may be none of its moves': without these it is blamed on them."""
    seen = Activations()
    for each in (arrival(1.0, 4), arrival(1.9, 4), arrival(2.0, 5), arrival(2.7, 5), arrival(3.0, 7)):
        seen.add(2, each)
    told: list[dict[str, Any]] = [
        {"partition": 2, "epoch": 5, "node": "n2", "standby": True, "noticed_at": 10.0, "claimed_at": 12.5},
        {"partition": 2, "epoch": 6, "node": "n3"},
        {"partition": 2, "epoch": 7, "node": "n1", "standby": False},
        {"partition": 2, "epoch": None, "node": "n1"},
        {"partition": 0, "epoch": 3, "node": "n1"},
    ]
    first, second = moves_of(told, seen)
    assert (first.partition, first.next_leader, first.standby, first.steps) == (2, "n2", True, {"claim": 2.5})
    assert first.gap_ms == 100.0
    assert (second.next_leader, second.gap_ms, second.standby) == ("n1", 300.0, False)
