"""The figures of a report are those that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relevo.testing.report import Report, Run, Sample, Target, percentile, spread, summary_of


def settled(repeat: int, *activations: float, lost: int = 0) -> Run:
    """A repeat that is over, with a sample for each of these first activations."""
    samples = [
        Sample(partition, detect_ms=5.0 * partition, first_activation_ms=first, gap_ms=first + 10)
        for partition, first in enumerate(activations)
    ]
    run = Run("leader-kill", repeat, 1000.0 * repeat, samples=samples, jobs=100, max_gap_ms=20.0)
    run.lost, run.effects_repeated, run.effects_repeated_in_flight, run.verify_ok = lost, 1, 1, True
    return run


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0], 99, 2.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 101)), 100, 100),
        (list(range(1, 201)), 99, 198),
    ],
)
def test_a_percentile_is_a_value_that_was_measured(
    values: list[float], percent: float, expected: float
) -> None:
    """Between few values any figure could be made up."""
    assert percentile(values, percent) == expected


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_no_percentile_of_nothing(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def test_repeats_that_no_fault_excuses_are_told_apart_per_million() -> None:
    """In one figure, eight kills of a worker hide the one repeat that nothing explains."""
    runs = [settled(1, 100.0), settled(2, 100.0)]
    runs[1].effects_repeated = 2
    found = summary_of(runs, [])
    assert found["effects_repeated_per_million_jobs"] == 15_000
    assert found["effects_repeated_in_flight_per_million_jobs"] == 10_000
    assert found["effects_repeated_otherwise_per_million_jobs"] == 5_000
    runs[1].effects_repeated_in_flight = None
    assert summary_of(runs, [])["effects_repeated_otherwise_per_million_jobs"] is None, "nobody has looked"


def test_what_was_not_measured_is_not_zero() -> None:
    """A node that doesn't tell when it noticed would else look like one that notices at once."""
    assert spread([None, None]) is None
    assert spread([None, 4.0]) == {"count": 1, "p50": 4.0, "p99": 4.0, "max": 4.0}


def test_the_summary_is_over_partitions_and_tells_the_slowest_of_each_repeat() -> None:
    runs = [settled(1, 100.0, 300.0), settled(2, 200.0)]
    found = summary_of(runs, [Target("leader-kill", "first_activation_ms", "p50", 150.0)])
    assert found["first_activation_ms"] == {"count": 3, "p50": 200.0, "p99": 300.0, "max": 300.0}
    assert found["slowest_partition_first_activation_ms"]["p50"] == 200.0
    assert (found["repeats"], found["samples"], found["jobs"]) == (2, 3, 200)
    assert found["effects_repeated_per_million_jobs"] == 10_000.0
    assert found["targets"] == [
        {"measure": "first_activation_ms", "at": "p50", "limit_ms": 150.0, "found_ms": 200.0, "met": False}
    ]
    assert found["held"], "a missed time is no broken promise"


def test_one_lost_job_is_enough_to_fail() -> None:
    report = Report({}, {}, runs=[settled(1, 10.0), settled(2, 10.0, lost=1)])
    assert not report.held
    assert report.summary()["leader-kill"]["lost"] == 1


def test_a_drill_that_was_not_brought_to_its_end_proves_nothing() -> None:
    """A run that nobody has verified must not count as one in which nothing was lost."""
    unverified = Run("leader-kill", 1, 0.0)
    assert not unverified.held
    assert Report({}, {}, runs=[unverified]).summary()["leader-kill"]["lost"] is None
    assert not Report({}, {}).held, "nothing ran"
    assert not Report({}, {}, runs=[settled(1, 10.0)], interrupted=True).held


def test_a_broken_expectation_is_told_with_what_was_found() -> None:
    run = settled(1, 10.0)
    run.expect("no leadership moved", False, "partition 2 to node-1")
    run.expect("no call failed", True)
    found = summary_of([run], [])
    assert not found["held"]
    assert found["broken"] == ["no leadership moved: partition 2 to node-1"]


def test_each_repeat_is_one_entry_with_the_slowest_partition_in_front(tmp_path: Path) -> None:
    report = Report({"cores": 2}, {"rate": 200}, runs=[settled(1, 100.0, 300.0)])
    path = tmp_path / "deep" / "report.json"
    report.write(path)
    report.write(path)
    (entry,) = json.loads(path.read_text())["runs"]
    assert entry["drill"] == "leader-kill"
    assert entry["first_activation_ms"] == 300.0
    assert entry["detect_ms"] == 5.0
    assert [each["first_activation_ms"] for each in entry["samples"]] == [100.0, 300.0]
    assert [each.name for each in path.parent.iterdir()] == ["report.json"], "no unfinished file is left"
