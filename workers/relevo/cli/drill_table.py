"""What a report of drills says, as lines for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relevo.cli.output import table

if TYPE_CHECKING:
    from relevo.testing.report import Report

_HEADINGS = (
    "DRILL", "REPEATS", "DETECT", "FIRST ACCEPT", "FIRST ACTIVATION", "LONGEST GAP", "JOBS", "LOST",
    "REPEATED", "IN FLIGHT", "VERIFIED", "HELD",
)  # fmt: skip


def lines_of(report: Report) -> list[str]:
    """A table of all drills, then what did not hold, and which times were met."""
    summary = report.summary()
    lines = ["", "p50 / p99 / max in ms, over all partitions whose leader was hurt; gaps over repeats", ""]
    lines.append(table(_HEADINGS, [_row(drill, found) for drill, found in summary.items()]))
    for drill, found in summary.items():
        control = found["control"]
        steps = ", ".join(f"{name} {each['p50']:g}" for name, each in found["steps_ms"].items() if each)
        lines += [f"{drill}: steps of a takeover, p50 in ms: {steps}"] if steps else []
        told = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in found["counts"].items())
        lines += [f"{drill}: {found['jobs']:,} jobs: {told}"] if told else []
        known = {name: found.get(f"slowest_{name}_ms") for name in ("create", "read")}
        if slowest := ", ".join(f"{name} {each['max']:g} ms" for name, each in known.items() if each):
            lines.append(f"{drill}: slowest calls, until they had their answer: {slowest}")
        if empty := found["counts"].get("repeats_that_met_no_lease"):
            lines.append(
                f"{drill}: {empty} of {found['repeats']} repeats met no job whose lease had begun, and proved"
                " nothing about such jobs"
            )
        lines += [f"{drill}: NOT SO: {each}" for each in found["broken"]]
        lines += [
            f"{drill}: {each['measure']} {each['at']} {each['found_ms']:g} ms, "
            f"{'met' if each['met'] else 'MISSED'}: at most {each['limit_ms']:g} ms"
            for each in found["targets"]
        ]
        if control:
            lines.append(
                f"{drill}: with nothing hurt, the longest gap is {control['max_gap_ms']:g} ms"
                f" (jobs are sent every {control['sent_every_ms']:g} ms;"
                f" load average {control['load_average']:g})"
            )
        if drill == "soak" and found["effects_repeated_per_million_jobs"] is not None:
            lines.append(
                f"soak: {found['effects_repeated_per_million_jobs']:g} effects repeated per million jobs:"
                f" {found['effects_repeated_in_flight_per_million_jobs']:g} that a fault caught in the act,"
                f" {found['effects_repeated_otherwise_per_million_jobs']:g} otherwise"
            )
    lines += [f"{drill}: skipped: {reason}" for drill, reason in report.skipped.items()]
    if report.interrupted:
        lines.append("interrupted: this is what was measured until then")
    lines.append("everything held" if report.held else "NOT everything held")
    return lines


def _row(drill: str, found: dict[str, Any]) -> list[object]:
    times = [found[name] for name in ("detect_ms", "first_accept_ms", "first_activation_ms", "max_gap_ms")]
    counts = [found[name] for name in ("jobs", "lost", "effects_repeated", "effects_repeated_in_flight")]
    return [
        drill,
        found["repeats"],
        *(f"{each['p50']:.0f} / {each['p99']:.0f} / {each['max']:.0f}" if each else "-" for each in times),
        *("?" if each is None else each for each in counts),
        "yes" if found["verify_ok"] else "NO",
        "yes" if found["held"] else "NO",
    ]
