"""`relevo bench`: how fast a cluster is, and how long a job takes on it."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from relevo.cli.output import kafka_options, parse_kafka_options, table

JOBS_MAX = 1_000_000


@click.command()
@kafka_options
@click.option(
    "--jobs", type=click.IntRange(100, JOBS_MAX), default=20_000, show_default=True, help="Jobs of one run."
)
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True, help="Repeats.")
@click.option(
    "--bytes", "size", type=click.IntRange(100, 500_000), default=200, show_default=True,
    help="Size of each job's variables.",
)  # fmt: skip
@click.option(
    "--rate", "rates", type=click.FloatRange(1, 20_000), multiple=True, default=(50.0, 500.0),
    show_default=True, help="Jobs per second offered, for latencies; repeatable.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(2, 600), default=20, show_default=True, help="For each rate."
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Handlers in each."
)
@click.option(
    "--dedup", envvar="RELEVO_BENCH_DEDUP", default="memory", metavar="STORE",
    help="none, memory (default), or a store's address; one with a password belongs in RELEVO_BENCH_DEDUP.",
)  # fmt: skip
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the figures there.",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
def command(
    kafka: str, cluster: str, kafka_option: tuple[str, ...], size: int, rates: tuple[float, ...], yes: bool,
    json_path: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Measure a cluster that runs: jobs per second, and how long a job takes.

    It creates jobs of its own type that do nothing, works on them with its own workers, and says beforehand
    what it writes. Throughput counts from the first job's creation to the last one's completion, by the
    leaders' clocks. Latency counts from the moment at which a job's creation was due, whatever held it up,
    to its handler's start, and to its completion as a reader of the log sees it. Other load on the cluster
    and on this machine is part of what is measured.

    \b
    Examples:
      relevo bench
      relevo bench --jobs 100000 --rate 2000 --workers 4 --yes
      RELEVO_BENCH_DEDUP=redis://:secret@host:6379 relevo bench

    How to read the figures: docs/benchmarks.md.
    """
    from relevo.testing.bench.child import ChildError
    from relevo.testing.bench.visit import Plan, measure

    options = parse_kafka_options(kafka_option)
    plan = Plan(kafka, cluster, size=size, rates=rates, options=options, **given)
    click.echo("This writes to the cluster:", err=True)
    for line in plan.writes():
        click.echo(f"  - {line}", err=True)
    if not yes:
        click.confirm("Go on?", abort=True, err=True)
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory(prefix="relevo-bench-") as folder:
        try:
            report = measure(plan, Path(folder), _say)
        except ChildError as error:
            raise click.ClickException(str(error)) from error
    click.echo("\n".join(lines_of(report)))
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def lines_of(report: dict[str, Any]) -> list[str]:
    """The figures for people."""
    throughput = report["throughput"]
    rows = []
    for rate, each in report["latency_ms"].items():
        for name, found in (("started", each), ("completed", each["completed"])):
            rows.append([rate, name, *(f"{found[q]:.1f}" for q in ("p50", "p90", "p99", "p999", "max"))])
    rounds = ", ".join(f"{rate:,}" for rate in throughput["rounds"])
    return [
        f"{throughput['jobs_per_s']:,} jobs/s, the median of {rounds}"
        f" ({report['jobs']:,} jobs of {report['bytes']} bytes each, {report['partitions']} partitions)",
        "",
        table(["jobs/s", "create to", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms"], rows),
    ]


def _say(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')}  {line}", err=True)
    sys.stderr.flush()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
