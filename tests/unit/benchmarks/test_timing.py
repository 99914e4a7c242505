"""Latencies count from when a job was due, and medians are medians."""

from __future__ import annotations

import pytest

from relevo.testing.bench import timing


def test_a_pause_shows_in_every_job_that_was_due_in_it() -> None:
    """A frozen second measured as one slow job of a hundred: a p99 that promises what nobody gets."""
    rate = 100.0
    # The system answers at once but for one second, in which the generator sends nothing either.
    seen = {n: max(n / rate, 2.0 if 100 <= n < 200 else 0.0) for n in range(1_000)}
    found = timing.latencies_ms(0.0, rate, seen)
    late = [value for value in found if value > 1]
    assert len(late) == 100
    assert max(found) == pytest.approx(1_000)
    assert timing.quantiles(found)["p99"] == pytest.approx(900, abs=15)
    assert timing.quantiles(found)["p50"] == 0


def test_a_generator_that_is_late_is_counted_as_late() -> None:
    """The time between due and sent is the user's wait as well."""
    assert timing.latencies_ms(10.0, 2.0, {0: 10.25, 1: 10.5 + 0.75}) == pytest.approx([250, 750])


def test_the_warm_up_is_left_out() -> None:
    assert timing.latencies_ms(0.0, 1.0, {0: 9.0, 1: 1.5}, skip=1) == pytest.approx([500])


def test_latencies_do_not_depend_on_the_order_in_which_they_were_noted() -> None:
    assert timing.latencies_ms(0.0, 1.0, {1: 1.2, 0: 0.1}) == pytest.approx([100, 200])


def test_a_job_that_is_handed_out_twice_started_at_its_first_start() -> None:
    assert timing.first_seen([(1, 5.0), (2, 6.0), (1, 4.0), (1, 9.0)]) == {1: 4.0, 2: 6.0}


def test_a_rate_is_positive() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        timing.due(0.0, 0.0, 1)


def test_quantiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(1, 1_001)]
    assert timing.quantiles(values) == {
        "p50": 500, "p90": 900, "p99": 990, "p999": 999, "max": 1_000, "count": 1_000,
    }  # fmt: skip
    assert timing.quantiles([7.0]) == {"p50": 7, "p90": 7, "p99": 7, "p999": 7, "max": 7, "count": 1}


def test_there_are_no_quantiles_of_nothing() -> None:
    """A run that measured nothing would else look like one without any latency."""
    with pytest.raises(ValueError, match="0 values"):
        timing.quantiles([])


def test_the_median_of_repeats_is_taken_figure_by_figure() -> None:
    """One noisy repeat would else decide a p99."""
    rounds = [{"p50": 1.0, "p99": 90.0}, {"p50": 3.0, "p99": 9.0}, {"p50": 2.0, "p99": 10.0}]
    assert timing.medians(rounds) == {"p50": 2.0, "p99": 10.0}
    assert timing.medians([{"ratio": 0.04636}], digits=4) == {"ratio": 0.0464}


def test_a_rate_tells_all_its_rounds() -> None:
    assert timing.rate_summary([10.4, 30.0, 20.0]) == {"jobs_per_s": 20, "rounds": [10, 30, 20]}
    with pytest.raises(ValueError, match="no values"):
        timing.rate_summary([])
