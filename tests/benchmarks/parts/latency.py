"""How long a job takes at a given rate, from when its creation was due to its handler's start and its end.

The load is open and latencies count from the due time, see `relevo.testing.bench.timing`. A watcher reads the
log meanwhile to see the completions, which costs some processor time of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relevo.testing.bench.crew import Crew, Load, scratch_name
from relevo.testing.bench.timing import medians
from tests.benchmarks import servers
from tests.benchmarks.knobs import SMALL, Knobs
from tests.benchmarks.parts import each_piece
from tests.benchmarks.warm import Subject, until_warm


def run(knobs: Knobs, found: Callable[[Mapping[str, Any]], None]) -> None:
    """One broker, then three; one node and one partition."""
    each_piece(
        knobs.say,
        {"one broker": lambda: _rates(knobs, 1, found), "three brokers": lambda: _rates(knobs, 3, found)},
    )


def _rates(knobs: Knobs, brokers: int, found: Callable[[Mapping[str, Any]], None]) -> None:
    with (
        servers.brokers(knobs, brokers) as at,
        servers.cluster(at, knobs, "latency") as cluster,
        Crew(
            Load(cluster.kafka, "latency", 1, workers=knobs.workers, concurrency=knobs.concurrency),
            knobs.scratch / scratch_name(),
            notes=True,
        ) as crew,
    ):
        until_warm(
            knobs,
            [server.pid for server in at.kafka_servers],
            Subject("relevo", lambda: crew.rate(knobs.warm, SMALL).per_s),
        )
        for rate, seconds, rounds in knobs.latency:
            figures = at_rate(crew, knobs, rate, seconds, rounds)
            section = {f"{rate:g}": figures}
            found({"latency_ms": section if brokers == 1 else {"three_brokers": section}})


def at_rate(crew: Crew, knobs: Knobs, rate: float, seconds: float, rounds: int) -> dict[str, Any]:
    """The medians of repeats: the start's quantiles, and below ``completed`` those of the end."""
    starts, ends = [], []
    for number in range(rounds):
        measured = crew.latency(rate, seconds, SMALL)
        starts.append(measured["start"])
        ends.append(measured["completed"])
        knobs.say(
            f"{rate:g} jobs/s, round {number + 1} of {rounds}: start p50 {starts[-1]['p50']:g} "
            f"p99 {starts[-1]['p99']:g} ms, completed p50 {ends[-1]['p50']:g} p99 {ends[-1]['p99']:g} ms"
        )
    return {**medians(starts), "completed": medians(ends), "rounds": rounds, "start_rounds": starts}
