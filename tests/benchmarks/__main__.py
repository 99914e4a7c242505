"""``python -m tests.benchmarks [PART …]``: measure, and write the report and its picture."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from tests.benchmarks.knobs import JOBS_MIN, Knobs
from tests.benchmarks.parts import PARTS, part
from tests.benchmarks.picture import page
from tests.benchmarks.report import Report
from tests.benchmarks.targets import judged, table

_MINUTES: Final = {"core": 6, "throughput": 8, "peers": 8, "latency": 12, "state": 5, "idle": 1}
"""About how long each takes on two cores."""


def say(line: str) -> None:
    """Progress, with the time of day."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stderr.flush()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="How fast the engine is on this machine."
    )
    words = ", ".join(f"{name} ({what})" for name, what in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all. {words}")
    parser.add_argument("--jobs", type=int, default=JOBS_MIN, help="jobs of one run (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="repeats, medians count (default %(default)s)")
    parser.add_argument("--open-jobs", type=int, default=1_000_000, help="for state (default %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="only see that everything works, in minutes")
    parser.add_argument("--profile", action="store_true", help="record the base case with py-spy")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="default %(default)s")
    given = parser.parse_args(arguments)
    given.parts = [name for each in given.parts for name in each.split(",") if name]
    unknown = sorted(set(given.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if given.jobs < 1 or given.rounds < 1 or given.open_jobs < 1:
        parser.error("--jobs, --rounds and --open-jobs must be at least 1")
    return given


def knobs_of(given: argparse.Namespace, scratch: Path) -> Knobs:
    """How much is measured."""
    knobs = Knobs(scratch, say, jobs=given.jobs, rounds=given.rounds, profile=given.profile)
    if given.tiny:
        return knobs.as_tiny()
    counts = sorted({0, min(100_000, given.open_jobs), given.open_jobs})
    return replace(knobs, open_jobs=tuple(counts))


def measure(name: str, knobs: Knobs, report: Report) -> bool:
    """One part; whether it came to its end. What it found until it failed is kept."""
    say(f"── {name}: {PARTS[name]} (about {_MINUTES[name]} min)")
    began = time.monotonic()
    error: str | None = None

    def found(figures: Mapping[str, Any]) -> None:
        report.add(name, figures, time.monotonic() - began, "not finished")

    try:
        part(name)(knobs, found)
    except KeyboardInterrupt:
        report.add(name, {}, time.monotonic() - began, "interrupted")
        raise
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        say(f"{name} failed: {error}")
        sys.stderr.write(traceback.format_exc())
    report.add(name, {}, time.monotonic() - began, error)
    return error is None


def main(arguments: Sequence[str]) -> int:
    """0 if every part came to its end."""
    given = parse(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    report = Report(given.out, tiny=given.tiny)
    picture = given.out.with_suffix(".html")
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="relevo-bench-") as scratch:
        knobs = knobs_of(given, Path(scratch))
        if not given.tiny and given.jobs < JOBS_MIN:
            say(f"fewer than {JOBS_MIN:,} jobs a run: start and end weigh more than what is between")
        try:
            for name in given.parts or PARTS:
                if not measure(name, knobs, report):
                    failed.append(name)
                picture.write_text(page(report.data), encoding="utf-8")
        except KeyboardInterrupt:
            say("interrupted")
            return 130
        finally:
            picture.write_text(page(report.data), encoding="utf-8")
            rows = judged(report.data)
            print(table(rows) or "  nothing was measured")
            print(f"written to {given.out} and {picture}")
            if given.tiny:
                print("tiny sizes: these figures mean nothing")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
