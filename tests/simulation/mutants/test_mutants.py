"""The simulation bites: mistakes of the kind that such systems die of are planted one by one, and found."""

from __future__ import annotations

import pytest

from tests.simulation.mutants.catalogue import MUTANTS, SEEDS_MAX, Mutant, hunt


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_mistake_is_found(mutant: Mutant, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise thousands of green seeds would prove nothing."""
    seeds, report = hunt(mutant)
    assert report is not None, f"{mutant.name}: {SEEDS_MAX} seeds found nothing"
    violation = report.violation
    assert violation is not None
    with capsys.disabled():
        print(f"\n{mutant.name:24} found by {violation.invariant!r:34} after {seeds:3} seeds", end=" ")
    assert violation.invariant in mutant.found_by, f"{mutant.name}: found as {violation}"


def test_no_mistake_stays_planted() -> None:
    """Each is taken out again: the seeds that found them are clean without."""
    from tests.simulation.run import run_seeds

    assert all(report.violation is None for report in run_seeds(range(3)))
