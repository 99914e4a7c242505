"""The same jobs with other queues, each with as many worker processes, in turns."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from relevo.testing.bench.child import Child, ChildError
from relevo.testing.bench.crew import Crew, Load, scratch_name
from relevo.testing.bench.roles import payload
from relevo.testing.bench.timing import median, rate_summary
from tests.benchmarks import servers
from tests.benchmarks.knobs import SMALL, Knobs, interleaved
from tests.benchmarks.peer_environment import python_of_peers
from tests.benchmarks.peers.catalog import PEERS, PeerFacts
from tests.benchmarks.warm import Subject, until_warm

_READY_S: Final = 90.0
_RUN_S: Final = 600.0
_WARM_SHARE: Final = 10
"""A peer has no JIT to warm up: a tenth of a run fills its pools and caches."""


class Peer:
    """One peer's client process with the workers that it started.

    Args:
        facts: Which one.
        python: Of its environment.
        url: Of its server.
        knobs: Sizes.
    """

    def __init__(self, facts: PeerFacts, python: Path, url: str, knobs: Knobs) -> None:
        self.facts = facts
        folder = knobs.scratch / scratch_name()
        folder.mkdir(parents=True)
        settings = folder / "settings.json"
        settings.touch(mode=0o600)
        settings.write_text(
            json.dumps(
                {
                    "url": url, "workers": knobs.workers, "concurrency": knobs.concurrency,
                    "folder": str(folder), "payload": payload(1, SMALL),
                }
            ),
            encoding="utf-8",
        )  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(facts.path.parent)}
        command = (str(python), "-P", str(facts.path), str(settings))
        self.child = Child(facts.name, command, folder, environment)

    def rate(self, jobs: int) -> float:
        """Jobs per second, from the first create to the last one done."""
        self.child.order(jobs=jobs)
        told = self.child.answer("ended", _RUN_S)
        return jobs / float(told["ended"] - told["began"])


def run(knobs: Knobs, found: Callable[[Mapping[str, Any]], None]) -> None:
    """All of them, with Relevo's base case in the same rounds."""
    python = python_of_peers(knobs.say)
    rates: dict[str, list[float]] = defaultdict(list)
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        brokers = stack.enter_context(servers.brokers(knobs))
        cluster = stack.enter_context(servers.cluster(brokers, knobs, "peers"))
        load = Load(cluster.kafka, "peers", 1, workers=knobs.workers, concurrency=knobs.concurrency)
        crew = stack.enter_context(Crew(load, knobs.scratch / scratch_name()))
        brokers_pids = [server.pid for server in brokers.kafka_servers]
        until_warm(knobs, brokers_pids, Subject("relevo", lambda: crew.rate(knobs.warm, SMALL).per_s))
        for number, facts in interleaved((None, *PEERS), knobs.rounds):
            name = facts.name if facts is not None else "relevo"
            try:
                if facts is None:
                    rate = crew.rate(knobs.jobs, SMALL).per_s
                else:
                    rate = once(facts, python, brokers.kafka, knobs)
            except (ChildError, LookupError) as error:
                failed[name] = str(error)
                knobs.say(f"{name}: {error}")
                continue
            rates[name].append(rate)
            knobs.say(f"round {number + 1} of {knobs.rounds}: {name} {rate:,.0f} jobs/s")
            found({"throughput": figures_of(rates, failed)})
    if failed:
        raise RuntimeError(f"not measured: {', '.join(failed)}")


def once(facts: PeerFacts, python: Path, kafka: str, knobs: Knobs) -> float:
    """One run on an empty server; nothing of it is left for the next one."""
    with ExitStack() as stack:
        url = kafka
        if facts.server == "redis":
            url = stack.enter_context(servers.redis()).rpartition("/")[0]
        elif facts.server == "postgres":
            url = stack.enter_context(servers.postgres())
        peer = Peer(facts, python, url, knobs)
        stack.callback(peer.child.stop)
        peer.child.answer("ready", _READY_S)
        peer.rate(max(1, knobs.jobs // _WARM_SHARE))
        return peer.rate(knobs.jobs)


def figures_of(rates: Mapping[str, list[float]], failed: Mapping[str, str]) -> dict[str, Any]:
    """The median of each, and Relevo's rate to the fastest that keeps jobs' states, and to what doesn't.

    Args:
        rates: Jobs per second of each round, by name; ``relevo`` among them.
        failed: Why some weren't measured.
    """
    figures: dict[str, Any] = {}
    detail: dict[str, Any] = {}
    for facts in PEERS:
        detail[facts.name] = facts.as_dict() | {"error": failed.get(facts.name)}
        if facts.name in rates:
            figures[facts.name] = round(median(rates[facts.name]))
            detail[facts.name] |= rate_summary(rates[facts.name])
    figures["peers"] = detail
    if "relevo" in rates:
        figures["relevo_beside_peers"] = rate_summary(rates["relevo"])
        ours = median(rates["relevo"])
        for key, queue in (("to_fastest_queue", True), ("to_bare_loop", False)):
            alike = (each.name for each in PEERS if each.queue is queue)
            fastest = max((figures[name] for name in alike if name in figures), default=0)
            if fastest:
                figures[key] = round(ours / fastest, 2)
    return figures
