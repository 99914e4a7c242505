"""Processor time of a cluster of three nodes, two workers and a client that have nothing to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from relevo.testing.bench.crew import Crew, Load, scratch_name
from tests.benchmarks import servers
from tests.benchmarks.knobs import SMALL, Knobs
from tests.benchmarks.restart import usage

NODES = 3
PARTITIONS = 4


def run(knobs: Knobs, found: Callable[[Mapping[str, Any]], None]) -> None:
    """After some jobs, so that everything that is made on demand is there."""
    with (
        servers.brokers(knobs) as at,
        servers.cluster(at, knobs, "idle", nodes=NODES, partitions=PARTITIONS) as cluster,
        Crew(
            Load(cluster.kafka, "idle", PARTITIONS, workers=knobs.workers), knobs.scratch / scratch_name()
        ) as crew,
    ):
        crew.rate(max(100, knobs.warm // 10), SMALL)
        time.sleep(knobs.idle_s / 4)  # what a load leaves to do is done: commits, snapshots, positions
        groups = {
            "nodes": [node.pid for node in cluster.nodes],
            "workers": [pid for name, pid in crew.pids.items() if name.startswith("worker")],
            "client": [crew.pids["client"]],
            "kafka": [server.pid for server in at.kafka_servers],
            "zookeeper": [server.pid for server in at.zookeeper_servers],
        }
        before, began = _cpu(groups), time.monotonic()
        time.sleep(knobs.idle_s)
        seconds = time.monotonic() - began
        after = _cpu(groups)
    figures = {f"{name}_percent": round(100 * (after[name] - before[name]) / seconds, 2) for name in groups}
    knobs.say(", ".join(f"{name} {value:g}" for name, value in figures.items()))
    found({"idle": {**figures, "seconds": round(seconds, 1), "nodes": NODES, "partitions": PARTITIONS}})


def _cpu(groups: Mapping[str, list[int]]) -> dict[str, float]:
    return {name: sum(usage(pid)[0] for pid in pids) for name, pids in groups.items()}
