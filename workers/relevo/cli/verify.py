"""`relevo verify`: prove that a cluster's job log is sound, and that no accepted job was lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from relevo.cli.output import kafka_options, parse_kafka_options, show_time, table
from relevo.cli.progress import Progress

if TYPE_CHECKING:
    from relevo_engine.verify import Expected, Takeover, VerifyReport

VIOLATIONS: Final = 8
"""The exit code that says that the log isn't sound."""
_TAKEOVERS_SHOWN: Final = 20
_SHARES: Final = 1_000


@click.command()
@kafka_options
@click.option(
    "--partition", "-p", "partitions", multiple=True, type=click.IntRange(0), metavar="N",
    help="Only this partition; repeatable.",
)  # fmt: skip
@click.option(
    "--expect-jobs", "expected", type=click.File(encoding="utf-8"), metavar="FILE",
    help="Keys of jobs that were accepted, one in a line; - is standard input. Each must be found.",
)  # fmt: skip
@click.option(
    "--finished-window-s", envvar="RELEVO_FINISHED_WINDOW_S", type=click.IntRange(1), default=24 * 3600,
    show_default=True,
    help="The cluster's setting: for so long an ended job's key can't be created anew."
    "  [env RELEVO_FINISHED_WINDOW_S]",
)  # fmt: skip
@click.option(
    "--finished-count-max", envvar="RELEVO_FINISHED_COUNT_MAX", type=click.IntRange(1), default=200_000,
    show_default=True,
    help="The cluster's setting: so many ended jobs are remembered.  [env RELEVO_FINISHED_COUNT_MAX]",
)  # fmt: skip
@click.option("--json", "json_", is_flag=True, help="One JSON document.")
@click.pass_context
def command(
    ctx: click.Context, kafka: str, cluster: str, kafka_option: tuple[str, ...], partitions: tuple[int, ...],
    expected: TextIO | None, finished_window_s: int, finished_count_max: int, json_: bool,
) -> None:  # fmt: skip
    """Prove that a cluster's job log is sound, and that no accepted job was lost.

    Reads the log from Kafka, from its start to what is committed now, and checks what it promises: numbers
    without a hole, one writer per epoch, one end per job, and more. Needs nothing but Kafka: the nodes and
    ZooKeeper may be down, or at work. Memory stays small; about 40 bytes per job go to a temporary file.

    \b
    Examples:
      relevo verify
      relevo verify --cluster billing --json > report.json
      relevo verify --expect-jobs accepted-keys.txt

    Exit codes: 0 sound, 8 violations, 3 no such topic, 6 Kafka not reached, 1 the log can't be checked.
    """
    from relevo_engine.verify import Remembered, verify_log

    shown = Progress(_SHARES)
    try:
        report = verify_log(
            kafka,
            cluster,
            kafka_options=parse_kafka_options(kafka_option),
            partitions=partitions or None,
            expected_keys=_keys(expected) if expected is not None else None,
            remembered=Remembered(finished_window_s * 1000, finished_count_max),
            progress=lambda done, total: _show(shown, done, total),
        )
    finally:
        shown.clear()
    click.echo(report.to_json() if json_ else "\n".join(_lines(report)))
    ctx.exit(0 if report.ok else VIOLATIONS)


def _keys(file: TextIO) -> Iterator[str]:
    """Keys, one in a line; empty lines are none.

    Raises:
        click.BadParameter: It isn't text.
    """
    try:
        for line in file:
            key = line.rstrip("\r\n")
            if key:
                yield key
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"not UTF-8 text: {error.reason}", param_hint="--expect-jobs") from None


def _show(shown: Progress, done: int, total: int) -> None:
    shown.update(_SHARES * done // max(total, 1), f"{done} of {total} offsets")


def _lines(report: VerifyReport) -> Iterator[str]:
    yield from _partitions(report)
    yield ""
    yield from _counts(report)
    if report.takeovers:
        yield ""
        yield from _takeovers(report.takeovers)
    if report.expected is not None:
        yield ""
        yield _expected(report.expected)
    yield ""
    yield from _verdict(report)


def _partitions(report: VerifyReport) -> Iterator[str]:
    rows = [
        (
            each.partition, f"{each.start}-{each.end}", f"{each.first_seq}-{each.last_seq}", each.epoch,
            show_time(each.last_at), each.held_back, each.violations,
        )
        for each in report.partitions
    ]  # fmt: skip
    headings = ("PARTITION", "OFFSETS", "EVENTS", "EPOCH", "LAST EVENT", "HELD BACK", "VIOLATIONS")
    yield table(headings, rows)
    for each in report.partitions:
        if each.trimmed:
            yield (
                f"partition {each.partition} begins at offset {each.start}, event {each.first_seq}: "
                "what lies before was trimmed, and jobs from there are checked as far as they are known"
            )
    alone = [each.partition for each in report.partitions if not each.witnesses]
    if alone:
        yield (
            f"no snapshot and no published position tells how far partition(s) {', '.join(map(str, alone))} "
            "reached: a tail that is cut off can't be noticed there"
        )
    for why in report.unheard:
        yield f"not asked how far the log reached: {why}"


def _counts(report: VerifyReport) -> Iterator[str]:
    counts = report.counts
    still_open = _listed(counts.open) if counts.open_total else "none"
    yield f"created    {counts.created}"
    yield f"completed  {counts.completed}"
    ended = {"errored": counts.errored, "cancelled": counts.cancelled, "expired": counts.expired}
    yield f"otherwise  {_listed(ended) or 'none'}"
    yield f"open       {still_open}"
    causes = {
        "failures": counts.failures,
        "lease expiries": counts.lease_expiries,
        "unclaimed": counts.unclaimed,
    }
    why = _listed(causes) or "none"
    yield f"attempts   {counts.attempts}, {counts.extra_attempts} beyond the first ({why})"
    yield (
        f"duplicates {counts.repeated_creates} repeated creates, {counts.late_completions} late completions; "
        "they changed nothing"
    )
    yield f"refusals   {_listed(counts.refusals) or 'none'}"
    yield f"records    {counts.records}: {counts.events} events, {counts.barriers} barriers"


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(numbers.items()) if number)


def _takeovers(takeovers: list[Takeover]) -> Iterator[str]:
    later = [each for each in takeovers if each.gap_ms is not None]
    yield f"terms {len(takeovers)}, of them {len(later)} after another one"
    rows: list[tuple[Any, ...]] = [
        (
            each.partition, each.epoch, each.previous_node or "-", each.node, show_time(each.at),
            each.gap_ms if each.gap_ms is not None else "-",
            each.first_activation_ms if each.first_activation_ms is not None else "-",
        )
        for each in later[-_TAKEOVERS_SHOWN:]
    ]  # fmt: skip
    if rows:
        yield table(("PARTITION", "EPOCH", "FROM", "TO", "AT", "GAP MS", "TO FIRST ACTIVATION MS"), rows)
    if len(later) > _TAKEOVERS_SHOWN:
        yield f"({len(later) - _TAKEOVERS_SHOWN} earlier ones: --json)"


def _expected(expected: Expected) -> str:
    fields = {
        "completed": expected.completed, "ended otherwise": expected.ended_otherwise, "open": expected.open,
        "refused": expected.refused, "not yet decided": expected.pending, "missing": expected.missing,
        "before the log's start": expected.before_start, "in partitions not read": expected.elsewhere,
    }  # fmt: skip
    return f"expected   {expected.given}: {_listed(fields) or 'none'}"


def _verdict(report: VerifyReport) -> Iterator[str]:
    if report.ok:
        yield f"sound: {report.topic} keeps all it promises ({report.duration_s:.1f} s)"
        return
    yield f"NOT SOUND: {report.violation_count} violation(s): {_listed(report.by_invariant)}"
    for each in report.partitions:
        if each.first_violation is not None:
            yield f"first: {each.first_violation}"
    others = [each for each in report.violations if all(each != p.first_violation for p in report.partitions)]
    for violation in others[:10]:
        yield f"       {violation}"
    if len(others) > 10:
        yield "       …"
