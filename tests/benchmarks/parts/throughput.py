"""No-op jobs per second from create to completed, beside the limit in the same rounds.

Not every combination: a star. Its centre, the *base case*, is one broker, one node, one partition, 200-byte
variables, dedup in memory. From there one thing at a time is changed: the size, the dedup store, the
partitions (one node), the nodes (four partitions), the brokers. What is compared is measured in turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

from relevo.testing.bench.crew import Crew, Load, scratch_name
from relevo.testing.bench.timing import median, rate_summary
from relevo_engine.local.brokers import LocalBrokers
from tests.benchmarks import servers
from tests.benchmarks.knobs import LARGE, SMALL, Knobs, interleaved
from tests.benchmarks.limit import Orders, limit_rate
from tests.benchmarks.parts import each_piece
from tests.benchmarks.profiling import profiled
from tests.benchmarks.warm import Subject, until_warm

Found = Callable[[Mapping[str, Any]], None]
PARTITIONS: Final = (2, 4, 8)
NODES: Final = (2, 3)
NODES_PARTITIONS: Final = 4
STORES: Final = ("none", "memory", "redis", "sql")
Shape = tuple[str, int, int, int]
"""The arm, its value, nodes and partitions."""
SHAPES: Final[Sequence[Shape]] = (
    *(("partitions", count, 1, count) for count in PARTITIONS),
    *(("nodes", count, count, NODES_PARTITIONS) for count in NODES),
)
THREE_STORES: Final = ("memory", "redis")
THREE_SHAPES: Final[Sequence[Shape]] = (("partitions", 4, 1, 4), ("nodes", 3, 3, NODES_PARTITIONS))
"""What is measured again with three brokers."""


def run(knobs: Knobs, found: Found) -> None:
    """All arms of the star."""
    each_piece(
        knobs.say, {"one broker": lambda: _one(knobs, found), "three brokers": lambda: _three(knobs, found)}
    )


def _one(knobs: Knobs, found: Found) -> None:
    def tell(figures: Mapping[str, Any]) -> None:
        found({"throughput": figures})

    with servers.brokers(knobs) as at:
        pieces = {
            "base case": lambda: tell(_with_limit(at, knobs, "base", SMALL, knobs.profile)),
            "8 KiB": lambda: tell({"bytes_8192": _with_limit(at, knobs, "large", LARGE)}),
            "dedup": lambda: _dedup(at, knobs, tell),
            "shapes": lambda: _shapes(at, knobs, tell),
        }
        each_piece(knobs.say, pieces)


def _three(knobs: Knobs, found: Found) -> None:
    once = replace(knobs, rounds=1)  # the base case has the rounds; the others show what changes

    def tell(figures: Mapping[str, Any]) -> None:
        found({"throughput": {"three_brokers": figures}})

    with servers.brokers(knobs, 3) as at:
        pieces = {
            "three brokers, base case": lambda: tell(_with_limit(at, knobs, "three", SMALL)),
            "three brokers, 8 KiB": lambda: tell({"bytes_8192": _with_limit(at, once, "three-large", LARGE)}),
            "three brokers, dedup": lambda: _dedup(at, once, tell, THREE_STORES),
            "three brokers, shapes": lambda: _shapes(at, once, tell, THREE_SHAPES),
        }
        each_piece(knobs.say, pieces)


def _with_limit(
    at: LocalBrokers, knobs: Knobs, name: str, size: int, profile: bool = False
) -> dict[str, Any]:
    """One partition, in turns with the limit."""
    folder, runs = knobs.scratch / scratch_name(), iter(range(10_000))
    with ExitStack() as stack:
        cluster = stack.enter_context(servers.cluster(at, knobs, name))
        crew = stack.enter_context(Crew(_load(cluster.kafka, name, 1, knobs), folder))

        def limit(jobs: int = knobs.jobs) -> float:
            return limit_rate(Orders(at.kafka, f"{name}limit{next(runs)}", jobs, size), folder)

        limit(knobs.warm)
        until_warm(
            knobs,
            [server.pid for server in at.kafka_servers],
            Subject("relevo", lambda: crew.rate(knobs.warm, size).per_s),
        )
        if profile:
            stack.enter_context(profiled({"leader": cluster.nodes[0].pid, **crew.pids}, knobs))
        rates = measured(
            knobs, [Subject("relevo", lambda: crew.rate(knobs.jobs, size).per_s), Subject("limit", limit)]
        )
    ratios = [ours / theirs for ours, theirs in zip(rates["relevo"], rates["limit"], strict=True)]
    return {
        "relevo": round(median(rates["relevo"])),
        "limit": round(median(rates["limit"])),
        "ratio": round(median(ratios), 3),
        "rounds": {name: rate_summary(each)["rounds"] for name, each in rates.items()},
        "jobs": knobs.jobs,
        "bytes": size,
    }


def _dedup(at: LocalBrokers, knobs: Knobs, tell: Found, names: Collection[str] = STORES) -> None:
    """Each store with workers of its own, which idle while it isn't their turn."""
    with ExitStack() as stack:
        started = {"redis": servers.redis, "sql": servers.postgres}
        subjects = []
        for name in names:
            store = stack.enter_context(started[name]()) if name in started else name
            # A cluster for each: workers of one group would share each other's jobs.
            cluster = stack.enter_context(servers.cluster(at, knobs, f"dedup-{name}"))
            load = _load(cluster.kafka, cluster.name, 1, knobs, store)
            crew = stack.enter_context(Crew(load, knobs.scratch / scratch_name()))
            crew.rate(knobs.warm, SMALL)
            subjects.append(Subject(name, lambda crew=crew: crew.rate(knobs.jobs, SMALL).per_s))  # type: ignore[misc]
        rates = measured(knobs, subjects)
    middle = {name: median(each) for name, each in rates.items()}
    figures: dict[str, Any] = {name: rate_summary(each) for name, each in rates.items()}
    for name in names:
        if name != "memory":
            figures[f"{name}_to_memory"] = round(middle[name] / middle["memory"], 3)
    tell({"dedup": figures})


def _shapes(at: LocalBrokers, knobs: Knobs, tell: Found, shapes: Sequence[Shape] = SHAPES) -> None:
    """More partitions on one node; more nodes with four partitions."""
    for arm, count, nodes, partitions in shapes:
        with _shape(at, knobs, nodes, partitions) as crew:
            rates = measured(
                knobs,
                [Subject(f"{count} {arm}", lambda crew=crew: crew.rate(knobs.jobs, SMALL).per_s)],  # type: ignore[misc]
            )
        figure = rate_summary(next(iter(rates.values())))
        tell({arm: {str(count): figure}})


@contextmanager
def _shape(at: LocalBrokers, knobs: Knobs, nodes: int, partitions: int) -> Iterator[Crew]:
    name = f"shape-{nodes}-{partitions}"
    with (
        servers.cluster(at, knobs, name, nodes=nodes, partitions=partitions) as cluster,
        Crew(_load(cluster.kafka, name, partitions, knobs), knobs.scratch / scratch_name()) as crew,
    ):
        crew.rate(knobs.warm, SMALL)
        yield crew


def _load(kafka: str, name: str, partitions: int, knobs: Knobs, dedup: str = "memory") -> Load:
    return Load(kafka, name, partitions, workers=knobs.workers, concurrency=knobs.concurrency, dedup=dedup)


def measured(knobs: Knobs, subjects: list[Subject]) -> dict[str, list[float]]:
    """Every subject `Knobs.rounds` times, in turns."""
    rates: dict[str, list[float]] = defaultdict(list)
    for number, subject in interleaved(subjects, knobs.rounds):
        rates[subject.name].append(subject.rate())
        knobs.say(
            f"round {number + 1} of {knobs.rounds}: {subject.name} {rates[subject.name][-1]:,.0f} jobs/s"
        )
    return rates
