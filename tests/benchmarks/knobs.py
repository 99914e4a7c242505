"""How much is measured: the usual sizes, and tiny ones to see that everything works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

JOBS_MIN: Final = 20_000
"""Fewer jobs in a run, and start and end weigh more than what is between."""
SMALL: Final = 200
LARGE: Final = 8_192
"""Bytes of a job's variables."""
T = TypeVar("T")


@dataclass(frozen=True)
class Knobs:
    """What one benchmark run goes by.

    Attributes:
        jobs: Jobs of one run at full speed.
        warm: Jobs before the first measured run.
        rounds: Repeats, of which the median counts.
        workers: Worker processes, of each system.
        concurrency: Handlers at once in each, where the system lets one choose.
        open_jobs: How many open jobs the rate is measured with.
        latency: Offered rates with the seconds each is offered for, and the repeats.
        idle_s: For how long an idle cluster is watched.
        core_jobs: Jobs that go through the core alone.
        growth: Beside how many others a job's cost is measured.
        growth_types: The same of job types.
        scratch: For logs and orders.
        say: Told what happens.
        profile: Whether py-spy records the processes of the base case.
        tiny: Whether the figures mean nothing.
    """

    scratch: Path
    say: Callable[[str], None]
    jobs: int = JOBS_MIN
    warm: int = 10_000
    rounds: int = 3
    workers: int = 2
    concurrency: int = 100
    open_jobs: Sequence[int] = (0, 100_000, 1_000_000)
    latency: Sequence[tuple[float, float, int]] = ((50, 40, 1), (500, 40, 3), (2_000, 12, 3))
    idle_s: float = 20.0
    core_jobs: int = 20_000
    growth: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000)
    growth_types: Sequence[int] = (1, 10, 100, 1_000)
    profile: bool = False
    tiny: bool = False

    def as_tiny(self) -> Knobs:
        """The same with so little of everything that it takes a minute; its figures mean nothing."""
        return replace(
            self,
            jobs=600,
            warm=200,
            rounds=1,
            open_jobs=(0, 500, 2_000),
            latency=((20, 3, 1), (100, 3, 1)),
            idle_s=2.0,
            core_jobs=1_000,
            growth=(1_000, 2_000),
            growth_types=(1, 2),
            tiny=True,
        )


def interleaved(subjects: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Every subject once in each round, in turn forwards and backwards.

    What drifts meanwhile (a warmer broker, a busier machine) then weighs on all of them alike.
    """
    for number in range(rounds):
        for subject in subjects if number % 2 == 0 else reversed(subjects):
            yield number, subject
