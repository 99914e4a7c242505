"""Simulations from the command line: ``python -m tests.simulation.run --seeds 2000``, or one ``--seed``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from tests.simulation.world.world import Report, World

CHUNK: Final = 20
TRACE_LINES: Final = 80


def describe(report: Report, lines: int = TRACE_LINES) -> str:
    """What is to be known of a seed that failed, and how to see it again."""
    violation = report.violation
    assert violation is not None
    return "\n".join(
        [
            f"seed {report.seed}: invariant violated: {violation.invariant}",
            f"  {violation.detail}",
            f"  after {report.seconds:.3f} s of its time and {report.steps} steps; the end of its trace:",
            *(f"  {line}" for line in report.trace[-lines:]),
            f"replay: make simulate SEED={report.seed}",
        ]
    )


def run_seeds(seeds: Sequence[int]) -> list[Report]:
    """Run several, in this process; only failed ones keep their trace."""
    reports = []
    for seed in seeds:
        report = World(seed).run()
        if report.violation is None:
            report.trace.clear()
        reports.append(report)
    return reports


def _chunks(first: int, count: int, processes: int) -> Iterator[list[Report]]:
    chunks = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
    if processes == 1:
        yield from map(run_seeds, chunks)
        return
    with ProcessPoolExecutor(processes) as pool:
        waiting = [pool.submit(run_seeds, chunk) for chunk in chunks]
        for done in as_completed(waiting):
            yield done.result()


def _many(first: int, count: int, processes: int) -> int:
    began = time.monotonic()
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    failed: list[Report] = []
    done = 0
    for reports in _chunks(first, count, processes):
        for report in reports:
            done += 1
            faults.update(report.faults)
            counts.update(report.counts)
            if report.violation is not None:
                failed.append(report)
                print(f"\n{describe(report)}\n", flush=True)
        rate = done / (time.monotonic() - began)
        print(
            f"{done}/{count} seeds, {rate:.1f}/s, {len(failed)} failed; "
            f"{counts['jobs']} jobs, {counts['commits']} commits, {counts['epochs']} terms, "
            f"{counts['reads']} proven reads, {counts['hashes']} states compared, {faults.total()} faults",
            flush=True,
        )
    print("faults injected: " + ", ".join(f"{kind} {number}" for kind, number in faults.most_common()))
    print(f"effects {counts['effects']}, of them repeated {counts['repeated']}")
    if failed:
        print(
            "failed seeds: " + ", ".join(str(report.seed) for report in sorted(failed, key=lambda r: r.seed))
        )
    return 1 if failed else 0


def _one(seed: int, lines: int) -> int:
    report = World(seed).run()
    if report.violation is not None:
        print(describe(report, lines))
        return 1
    print("\n".join(report.trace[-lines:]))
    print(f"seed {seed}: all invariants hold; {report.seconds:.1f} s of its time, {report.steps} steps")
    print("  " + ", ".join(f"{name} {number}" for name, number in sorted(report.counts.items())))
    print("  faults: " + ", ".join(f"{name} {number}" for name, number in sorted(report.faults.items())))
    print(f"  trace {report.digest}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one and show its trace")
    parser.add_argument("--seeds", type=int, default=2_000, help="run so many (default 2000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="begin with this seed (default 0)")
    parser.add_argument("--processes", type=int, default=2, help="processes that share the seeds (default 2)")
    parser.add_argument("--lines", type=int, default=TRACE_LINES, help="lines of trace to show (default 80)")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, options.lines)
    if options.seeds < 1 or options.processes < 1:
        parser.error("--seeds and --processes must be at least 1")
    return _many(options.first, options.seeds, options.processes)


if __name__ == "__main__":
    sys.exit(main())
