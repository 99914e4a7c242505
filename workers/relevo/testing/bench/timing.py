"""Latency from the moment at which a job should have been sent, and medians of repeats.

A load generator that waits for a slow system sends nothing while it waits, and so measures few of the slow
answers: *coordinated omission*. Two things prevent it here. The load is open: job ``n`` is due at
``began + n / rate`` whatever became of the ones before. And a latency counts from that moment, not from the
one at which a late generator got around to it: a pause of one second shows in every job that was due in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from relevo.testing.report import percentile

QUANTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}


def due(began: float, rate: float, number: int) -> float:
    """When job ``number``, counted from 0, should be sent.

    Args:
        began: When the first is due, in seconds.
        rate: Jobs per second.
        number: Of the job.

    Raises:
        ValueError: The rate isn't positive.
    """
    if rate <= 0:
        raise ValueError(f"a rate is more than 0 jobs/s, not {rate:g}")
    return began + number / rate


def latencies_ms(began: float, rate: float, seen: Mapping[int, float], skip: int = 0) -> list[float]:
    """How long after its due time each job was seen, in milliseconds, in order of their numbers.

    Args:
        began: When the first was due, in seconds.
        rate: Jobs per second.
        seen: By the job's number, when it was first seen, in seconds of the same clock.
        skip: The first so many are a warm-up and left out.
    """
    return [(at - due(began, rate, n)) * 1000 for n, at in sorted(seen.items()) if n >= skip]


def first_seen(notes: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The earliest time by number: a job that is handed out again was late only once."""
    found: dict[int, float] = {}
    for number, at in notes:
        if number not in found or at < found[number]:
            found[number] = at
    return found


def quantiles(values: Sequence[float]) -> dict[str, float | int]:
    """p50, p90, p99, p99.9 and the largest, with how many there were.

    Raises:
        ValueError: There are none.
    """
    found: dict[str, float | int] = {
        name: round(percentile(values, percent), 2) for name, percent in QUANTILES.items()
    }
    return found | {"max": round(max(values), 2), "count": len(values)}


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle.

    Raises:
        ValueError: There are none.
    """
    if not values:
        raise ValueError("no median of no values")
    return float(statistics.median(values))


def medians(rounds: Sequence[Mapping[str, float | int]], digits: int = 2) -> dict[str, float]:
    """By name, the median over the repeats that have it: of p99s the middle p99.

    Args:
        rounds: What each repeat found.
        digits: After the point.
    """
    names = dict.fromkeys(name for each in rounds for name in each)
    return {name: round(median([each[name] for each in rounds if name in each]), digits) for name in names}


def rate_summary(rates: Sequence[float]) -> dict[str, Any]:
    """The median of repeated rates, and all of them."""
    return {"jobs_per_s": round(median(rates)), "rounds": [round(rate) for rate in rates]}
