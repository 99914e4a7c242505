"""The whole system under faults, from many seeds: no invariant may break, and each seed is repeatable."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.run import describe, run_seeds
from tests.simulation.world.faults import ENGINE_STEPS, KINDS, SNAPSHOT_STEPS, WORKER_STEPS
from tests.simulation.world.invariants import INVARIANTS
from tests.simulation.world.world import World

SEEDS: Final = int(os.environ.get("SIM_SEEDS", "2000"))
CHUNKS: Final = min(20, SEEDS)
REPOSITORY: Final = Path(__file__).parents[2]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_invariant_breaks(chunk: int) -> None:
    """Whatever is killed, frozen, cut off, delayed or lost: nothing is lost, doubled or answered wrongly."""
    seeds = range(chunk, SEEDS, CHUNKS)
    reports = run_seeds(seeds)
    failed = [report for report in reports if report.violation is not None]
    assert not failed, "\n\n".join(describe(report) for report in failed[:3])


def test_much_happens_and_every_kind_of_fault_strikes() -> None:
    """An invariant that nothing strains, and a fault that never strikes, prove nothing."""
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    reports = run_seeds(range(100))
    for report in reports:
        faults.update(report.faults)
        counts.update(report.counts)
    assert set(faults) == set(KINDS)
    seen, struck = Counter[str](), Counter[str]()
    for report in reports:
        seen.update(report.seen)
        struck.update(report.struck)
    assert set(seen) >= {*ENGINE_STEPS, *WORKER_STEPS}, "a fault waits for what never comes"
    least = len(reports)
    assert sum(struck[step] for step in SNAPSHOT_STEPS) > least / 8, "snapshots hardly suffer"
    assert faults.total() > 2 * least, "hardly anything goes wrong"
    assert counts["jobs"] > 10 * least, "hardly any job is created"
    assert counts["epochs"] > 2 * least, "hardly any partition changes hands"
    assert counts["reads"] > 20 * least, "hardly any read is answered"
    assert counts["hashes"] > 10 * least, "leaders' memory is hardly ever compared with the log"
    assert counts["snapshots"] > least, "hardly any snapshot is taken"
    assert counts["trims"] > least / 2, "the log is hardly ever trimmed"


def test_a_seed_is_the_same_again() -> None:
    """Otherwise a failure could not be looked at."""
    first, second = World(7).run(), World(7).run()
    assert first.digest == second.digest
    assert first.steps == second.steps
    assert World(8).run().digest != first.digest


def test_a_seed_is_the_same_in_another_process() -> None:
    """Hash randomisation, addresses and clocks differ there, and must not matter."""
    code = (
        "from tests.simulation.world.world import World; print([World(seed).run().digest for seed in (3, 4)])"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(digests) == 1


def test_every_invariant_has_a_name_that_reads_well() -> None:
    """The name is what a failing seed says first."""
    assert all(name and meaning and "\n" not in meaning for name, meaning in INVARIANTS.items())
