"""All planted mistakes, and what has to find each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from tests.simulation.mutants import jobs, terms
from tests.simulation.world.world import Report, World

SEEDS_MAX: Final = 300
"""Each must be found within so many seeds."""


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        plant: Puts it into the code; its docstring says what it is.
        found_by: Invariants that may find it.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    found_by: tuple[str, ...]

    @property
    def name(self) -> str:
        """For tables."""
        return self.plant.__name__.replace("_", " ")


_LOG: Final = (
    "seq contiguous", "epochs rise", "one writer per epoch", "state equals fold", "log replays", "no bug",
)  # fmt: skip
"""What a log that two have written to, or a memory that isn't its fold, is found by: whoever looks first."""

MUTANTS: Final = (
    Mutant(terms.no_fence, (*_LOG, "no stale read")),
    Mutant(terms.no_barrier, _LOG),
    Mutant(terms.reply_before_commit, ("no stale read",)),
    Mutant(terms.reads_run_ahead, ("no stale read",)),
    Mutant(terms.failure_beside_ignored, (*_LOG, "no stale read")),
    Mutant(terms.reads_from_memory, ("no stale read",)),
    Mutant(terms.epoch_again, ("epochs rise", "one writer per epoch")),
    Mutant(terms.unclear_is_failed, _LOG),
    Mutant(terms.same_producer_again, (*_LOG, "way forward")),
    Mutant(terms.abort_shrugged_off, (*_LOG, "no stale read")),
    Mutant(terms.leases_forgotten, ("way forward", "liveness")),
    Mutant(terms.silence_by_the_clock, ("no live attempt given up",)),
    Mutant(terms.stuck_reader_believed, ("no accepted job lost", "liveness", "way forward")),
    Mutant(jobs.complete_twice, ("no job completed twice",)),
    Mutant(jobs.key_forgotten, ("no job completed twice", "no bug")),
    Mutant(jobs.stale_start, ("log replays",)),
    Mutant(jobs.dispatch_elsewhere, ("way forward",)),
    Mutant(jobs.trim_above_snapshot, ("log kept",)),
    Mutant(jobs.snapshot_ahead, ("snapshot fits",)),
    Mutant(jobs.events_skipped, (*_LOG, "liveness", "no accepted job lost")),
    Mutant(jobs.snapshot_of_the_present, ("snapshot fits", "no bug")),
    Mutant(jobs.highest_seen, ("no commit above unfinished work",)),
    Mutant(jobs.complete_before_done, ("effect before completion",)),
    Mutant(jobs.done_forgotten, ("no effect repeated",)),
    Mutant(jobs.claims_of_old, ("one claimant",)),
    Mutant(jobs.unknown_is_mine, ("one claimant",)),
)


def hunt(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> tuple[int, Report | None]:
    """Run seeds with the mistake planted until one finds it: how many it took, and the report."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        for seed in range(seeds_max):
            report = World(seed).run()
            if report.violation is not None:
                return seed + 1, report
    return seeds_max, None
