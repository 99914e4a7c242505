"""What a seed chooses before anything runs: the size of the world, its jobs, its faults."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.world.node import NodeKnobs

CALM_AT_S = 24.0
"""From here on nothing breaks any more, and all that was broken is mended."""


@dataclass(frozen=True)
class JobPlan:
    """One job: what its creator says, and what its handler will do."""

    key: str
    type: str
    at_s: float
    run_in_s: float
    lease_ms: int
    retries: int
    priority: int
    before_s: float
    after_s: float
    failures: int
    retry_in_ms: int
    error: bool
    cancel_after_s: float
    twice: bool


@dataclass(frozen=True)
class Shape:
    """The size of a world."""

    nodes: tuple[str, ...]
    workers: tuple[str, ...]
    types: tuple[str, ...]
    knobs: NodeKnobs
    jobs: tuple[JobPlan, ...]


def shape_of(rng: random.Random) -> Shape:
    """Choose the size of a world and its jobs."""
    partitions = rng.choice((1, 1, 2))
    types = ("work",) if rng.random() < 0.7 else ("work", "other")
    knobs = NodeKnobs(
        partitions=partitions,
        slots=partitions * rng.choice((1, 2)),
        window=rng.choice((3, 8, 50)),
        session_timeout_s=rng.choice((1.5, 2.0, 4.0)),
        settle_s=rng.choice((0.0, 0.0, 0.3)),
        batch_max=rng.choice((1, 3, 20)),
        redispatch_after_ms=rng.choice((6_000, 12_000)),
        replicas=rng.choice((1, 1, 2, 0)),
        rebuild_max=rng.choice((0, 1_000)),
        pulse=rng.random() < 0.8,
        give_back_after_s=rng.choice((1.0, 3.0)),
        snapshot_events=rng.choice((0, 12, 12, 30)),
        log_keep_s=rng.choice((0.0, 1.0, 4.0)),
        fetch_lag_s=rng.choice((0.0, 0.0, 0.05, 0.4)),
    )
    count = rng.randint(15, 36)
    return Shape(
        nodes=tuple(f"n{number}" for number in range(1, rng.choice((2, 3, 3)) + 1)),
        workers=tuple(f"w{number}" for number in range(1, rng.choice((2, 2, 3)) + 1)),
        types=types,
        knobs=knobs,
        jobs=tuple(_job(rng, number, types) for number in range(count)),
    )


def _job(rng: random.Random, number: int, types: tuple[str, ...]) -> JobPlan:
    slow = rng.random() < 0.15
    return JobPlan(
        key=f"job-{number}",
        type=rng.choice(types),
        at_s=1.0 + rng.random() * (CALM_AT_S - 6),
        run_in_s=rng.random() * 6 if rng.random() < 0.15 else 0.0,
        lease_ms=rng.choice((1_000, 2_000, 3_000)),
        retries=rng.choice((0, 1, 3)),
        priority=rng.choice((0, 0, 5)),
        before_s=(0.5 + rng.random() * 4) if slow else rng.random() * 0.1,
        after_s=rng.random() if rng.random() < 0.2 else rng.random() * 0.02,
        failures=rng.choice((1, 2)) if rng.random() < 0.15 else 0,
        retry_in_ms=rng.choice((-1, 0, 200)),
        error=rng.random() < 0.06,
        cancel_after_s=rng.random() * 2 if rng.random() < 0.1 else -1.0,
        twice=rng.random() < 0.1,
    )
