"""What many open jobs cost: rate, memory, the start from a log or a snapshot, and a takeover."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from relevo.testing.bench.child import wait_for
from relevo.testing.bench.crew import Crew, Load, scratch_name
from relevo.testing.bench.timing import median, rate_summary
from relevo_engine.local.brokers import LocalBrokers
from relevo_engine.local.cluster import LocalCluster
from relevo_engine.local.node import LocalNode
from relevo_engine.topic_admin import TopicAdmin
from tests.benchmarks import servers
from tests.benchmarks.knobs import SMALL, Knobs
from tests.benchmarks.parts import each_piece
from tests.benchmarks.parts.throughput import measured
from tests.benchmarks.restart import (
    created,
    fill,
    mixed,
    overdue_leases,
    replay_rate,
    restart,
    usage,
    variables,
)
from tests.benchmarks.warm import Subject, until_warm

Found = Callable[[Mapping[str, Any]], None]
PARKED: Final = "parked"
"""Type of the open jobs: nobody works on them."""
LEASES_MIN: Final = 20_000
"""Fewer leases that run out at once are worked off before a metric shows them."""
_START_S: Final = 900.0
_NO_SNAPSHOTS: Final = {"snapshot_events": 1_000_000_000}


@dataclass(frozen=True)
class Filled:
    """A cluster of one node with open jobs.

    Attributes:
        open_jobs: How many.
        rss: Memory of its node once it leads, in bytes.
        crew: Loads it.
    """

    open_jobs: int
    rss: int
    crew: Crew


def run(knobs: Knobs, found: Found) -> None:
    """Three pieces, each on brokers of its own."""

    def rates() -> None:
        with servers.brokers(knobs) as at:
            found({"state": _rates(at, knobs)})

    def takeovers() -> None:
        with servers.brokers(knobs) as at:
            found({"state": {"takeover": _takeovers(at, knobs)}})

    pieces = {"rates": rates, "takeovers": takeovers, "restarts": lambda: _starts(knobs, found)}
    each_piece(knobs.say, pieces)


def _starts(knobs: Knobs, found: Found) -> None:
    jobs = max(knobs.open_jobs)
    with servers.brokers(knobs) as at:
        knobs.say(f"a start with {jobs:,} open jobs, from the log and from a snapshot")
        found({"state": _restarts(at, jobs)})
        log = mixed(max(1, jobs // 3), int(time.time() * 1000) - 60_000)
        found({"state": {"replay_events_per_s": replay_rate(at, "replay", log)["events_per_s"]}})
        if jobs // 10 >= LEASES_MIN:
            found({"state": {"overdue_leases": overdue_leases(at, "overdue", jobs // 10)}})


def _rates(at: LocalBrokers, knobs: Knobs) -> dict[str, Any]:
    """All clusters run at once and idle while it isn't their turn: what drifts weighs on all alike."""
    with ExitStack() as stack:
        filled = [stack.enter_context(_filled(at, knobs, count)) for count in knobs.open_jobs]
        for each in filled:
            each.crew.rate(knobs.warm, SMALL)
        # The first of a round would be measured beside a colder broker than the last one.
        until_warm(
            knobs,
            [server.pid for server in at.kafka_servers],
            Subject("relevo", lambda: filled[0].crew.rate(knobs.warm, SMALL).per_s),
        )
        subjects = [
            Subject(str(each.open_jobs), lambda crew=each.crew: crew.rate(knobs.jobs, SMALL).per_s)  # type: ignore[misc]
            for each in filled
        ]
        rates = measured(knobs, subjects)
    most, none = filled[-1], filled[0]
    figures: dict[str, Any] = {
        "rates": {name: rate_summary(each) for name, each in rates.items()},
        "rss_mib": {str(each.open_jobs): each.rss // 2**20 for each in filled},
        "open_jobs": most.open_jobs,
        "bytes_per_open_job": bytes_per_job(none.rss, most.rss, most.open_jobs, len(variables(0))),
    }
    ratios = [a / b for a, b in zip(rates[str(most.open_jobs)], rates[str(none.open_jobs)], strict=True)]
    figures["rate_ratio_1m_open"] = round(median(ratios), 3)
    return figures


def bytes_per_job(empty: int, full: int, jobs: int, payload: int) -> int:
    """Memory that a job takes besides its variables.

    Args:
        empty: Memory of a node without jobs, in bytes.
        full: Of one with jobs.
        jobs: How many.
        payload: Bytes of each one's variables.
    """
    return round((full - empty) / jobs - payload)


@contextmanager
def _filled(at: LocalBrokers, knobs: Knobs, count: int) -> Iterator[Filled]:
    name = f"open-{count}"
    with (
        started(at, knobs, name, count, nodes=1) as cluster,
        Crew(
            Load(cluster.kafka, name, 1, workers=knobs.workers, concurrency=knobs.concurrency),
            knobs.scratch / scratch_name(),
        ) as crew,
    ):
        yield Filled(count, usage(cluster.nodes[0].pid)[1] * 2**20, crew)


@contextmanager
def started(at: LocalBrokers, knobs: Knobs, name: str, count: int, *, nodes: int) -> Iterator[LocalCluster]:
    """Nodes that lead, with so many open jobs in the log."""
    TopicAdmin(at.kafka, name).init(1, ["noop", PARKED], allow_unsafe=True)
    knobs.say(f"{count:,} open jobs, {nodes} node(s)")
    if count:
        fill(at.kafka, name, created(count, int(time.time() * 1000) - 60_000, PARKED))
    cluster = LocalCluster(
        nodes, 1, kafka=at.kafka, zookeeper=at.zookeeper, name=name, types=["noop", PARKED],
        settings=_NO_SNAPSHOTS, for_tests=False,
    )  # fmt: skip
    try:
        cluster.start(timeout_s=_START_S)
        yield cluster
    finally:
        cluster.stop()


def _takeovers(at: LocalBrokers, knobs: Knobs) -> dict[str, Any]:
    """By open jobs: from ``kill -9`` of the leader to the next one's announcement, a hot standby in place."""
    found: dict[str, Any] = {}
    for count in knobs.open_jobs:
        with started(at, knobs, f"takeover-{count}", count, nodes=2) as cluster:
            wait_for(lambda c=cluster: _standby_is_hot(c), "the standby is hot", (), _START_S, 0.2)  # type: ignore[misc]
            leader = cluster.leader_of(0)
            (other,) = [node for node in cluster.nodes if node is not leader]
            at_ms = time.time() * 1000
            leader.kill()
            found[str(count)] = round(_announced_at(other, at_ms) - at_ms, 1)
        knobs.say(f"takeover with {count:,} open jobs: {found[str(count)]:g} ms")
    return {"ms": found}


def _announced_at(node: LocalNode, after_ms: float) -> float:
    """When a node announced its first term after a moment, both in milliseconds since the Unix epoch."""
    found: list[float] = []

    def announced() -> bool:
        rows = node.api.get("/v1/takeovers")["takeovers"]
        found[:] = [at for row in rows if (at := row["announced_at"]) is not None and at > after_ms]
        return bool(found)

    wait_for(announced, "the standby leads", (), _START_S)
    return found[0]


def _standby_is_hot(cluster: LocalCluster) -> bool:
    rows: Sequence[Mapping[str, Any]] = cluster.status()
    return any(standby.get("hot") for row in rows for standby in row.get("standbys", ()))


def _restarts(at: LocalBrokers, jobs: int) -> dict[str, Any]:
    """Of one node: reading the log, writing, verifying and loading a snapshot."""
    report = restart(at, "restart", jobs)
    snapshot = report["snapshot"]
    return {
        "replay_creations_per_s": report["from_log"]["events_per_s"],
        "start_from_log_s": report["from_log"]["leading_s"],
        "start_from_snapshot_s": report["from_snapshot"]["leading_s"],
        "snapshot_write_s": snapshot["seconds"],
        "snapshot_verify_s": snapshot["verify_seconds"],
        "snapshot_load_s": report["from_snapshot"]["following_s"],
        "snapshot_bytes": snapshot["bytes"],
        "restart": report,
    }
