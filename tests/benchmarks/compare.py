"""Two revisions in one session, in turns, on the same brokers: ``make bench-compare BASE=<git revision>``.

The base is checked out beside this one (``build/compare``) and run by this checkout's interpreter and this
checkout's benchmark: only the four packages are the base's, by PYTHONPATH. So it must be a revision that the
installed libraries fit, and whose public face is this one's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from relevo.testing.bench.child import Child
from relevo.testing.bench.crew import Crew, Load, scratch_name
from relevo.testing.bench.timing import median
from tests.benchmarks import cluster_host, servers
from tests.benchmarks.__main__ import interrupt, say
from tests.benchmarks.knobs import JOBS_MIN, SMALL, Knobs, interleaved
from tests.benchmarks.parts import core

REPOSITORY: Final = Path(__file__).parents[2]
FOLDER: Final = REPOSITORY / "build" / "compare"
FOLDERS: Final = ("schemas", "partitions", "engine", "workers")
LESS_IS_BETTER: Final = ("_us", "_us_per_event", "_us_per_job", "_to_calibration")
_READY_S: Final = 120.0
_NEVER: Final = ("calibration_us", "fastavro_us_per_event", "step_commands_per_s")
"""Not ours to change, or told already."""


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        name: ``base`` or ``head``.
        root: Of its checkout.
    """

    name: str
    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """Its packages come before those that are installed."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(str(self.root / each) for each in FOLDERS)}


@contextmanager
def checkout(revision: str, folder: Path = FOLDER) -> Iterator[Path]:
    """A work tree of ``revision``; taken away again.

    Raises:
        LookupError: There is no such revision.
    """
    asked = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if asked.returncode:
        raise LookupError(f"no such revision: {revision!r}")
    commit = asked.stdout.strip()
    place = folder / commit[:12]
    _git("worktree", "remove", "--force", str(place))  # what a run that was killed left
    _git("worktree", "prune")
    place.parent.mkdir(parents=True, exist_ok=True)
    made = _git("worktree", "add", "--detach", str(place), commit)
    if made.returncode:
        raise LookupError(f"{revision} can't be checked out: {made.stderr.strip()}")
    try:
        yield place
    finally:
        _git("worktree", "remove", "--force", str(place))


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("git", "-C", str(REPOSITORY), *arguments), capture_output=True, text=True, check=False
    )


@contextmanager
def crew_of(side: Side, kafka: str, zookeeper: str, knobs: Knobs) -> Iterator[Crew]:
    """A node, a client and workers of one revision."""
    folder = knobs.scratch / scratch_name()
    folder.mkdir(parents=True)
    host = (sys.executable, "-P", cluster_host.__file__, kafka, zookeeper, side.name)
    with Child(f"node-{side.name}", host, folder, side.environment) as node:
        node.answer("ready", _READY_S)
        load = Load(
            kafka, side.name, 1, workers=knobs.workers, concurrency=knobs.concurrency,
            environment=side.environment,
        )  # fmt: skip
        with Crew(load, folder / "crew") as crew:
            yield crew


def compare(sides: Sequence[Side], knobs: Knobs) -> dict[str, dict[str, list[float]]]:
    """By figure and side, what each round found."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, side in interleaved(sides, knobs.rounds):
        say(f"core alone, round {number + 1} of {knobs.rounds}: {side.name}")
        for name, value in core.measure(knobs.core_jobs, side.environment).items():
            if name not in _NEVER:
                found[name][side.name].append(value)
    with ExitStack() as stack:
        at = stack.enter_context(servers.brokers(knobs))
        crews = {
            side.name: stack.enter_context(crew_of(side, at.kafka, at.zookeeper, knobs)) for side in sides
        }
        for crew in crews.values():
            crew.rate(knobs.warm, SMALL)
        for number, side in interleaved(sides, knobs.rounds):
            rate = crews[side.name].rate(knobs.jobs, SMALL).per_s
            found["throughput_jobs_per_s"][side.name].append(rate)
            say(f"throughput, round {number + 1} of {knobs.rounds}: {side.name} {rate:,.0f} jobs/s")
    return found


def ratios(found: Mapping[str, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """By figure: the medians, and how much better head is than base (above 1) or worse (below 1).

    The ratio is the median of the rounds' own ratios: each compares two runs that were close in time.
    """
    rows = []
    for name, sides in found.items():
        pairs = list(zip(sides["base"], sides["head"], strict=True))
        less = name.endswith(LESS_IS_BETTER)
        each = [base / head if less else head / base for base, head in pairs if base and head]
        if each:
            rows.append(
                {
                    "figure": name,
                    "base": median([base for base, _ in pairs]),
                    "head": median([head for _, head in pairs]),
                    "better": round(median(each), 3),
                    "from": round(min(each), 3),
                    "to": round(max(each), 3),
                }
            )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """For people."""
    lines = [f"{'':28}{'base':>12}{'head':>12}{'factor (>1 better)':>20}   rounds"]
    lines += [
        f"{row['figure']:28}{row['base']:>12.4g}{row['head']:>12.4g}{format(row['better'], '.3f'):>20}"
        f"   {row['from']:.3f} to {row['to']:.3f}"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Compare, print, and write ``build/bench-compare.json``."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.compare")
    parser.add_argument("base", help="a git revision")
    parser.add_argument("--jobs", type=int, default=JOBS_MIN)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="relevo-bench-") as scratch,
            checkout(given.base) as root,
        ):
            knobs = Knobs(Path(scratch), say, jobs=given.jobs, rounds=given.rounds)
            sides = (Side("base", root), Side("head", REPOSITORY))
            rows = ratios(compare(sides, knobs.as_tiny() if given.tiny else knobs))
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    out = REPOSITORY / "build" / "bench-compare.json"
    out.write_text(json.dumps({"base": given.base, "figures": rows}, indent=2) + "\n", encoding="utf-8")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
