"""The report as one HTML file: bars, without scripts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from relevo.testing.picture import document, nice_top
from tests.benchmarks.targets import judged, value_at

_WIDTH: Final = 960
_LEFT: Final = 250
_ROW: Final = 24
_PEERS: Final = ("celery_redis", "dramatiq_redis", "taskiq_redis", "procrastinate_postgres", "plain_aiokafka")


@dataclass(frozen=True)
class Bar:
    """One figure.

    Attributes:
        label: What it is.
        value: How much.
        style: One of the page's: ``done`` (ours), ``worst`` (a bound), ``slow`` (others).
    """

    label: str
    value: float
    style: str = "done"


def bars(title: str, unit: str, figures: Sequence[Bar]) -> str:
    """A diagram of lying bars from 0; nothing where there are no figures."""
    if not figures:
        return ""
    top = nice_top(max(each.value for each in figures))
    height = _ROW * len(figures) + 8
    parts = []
    for place, each in enumerate(figures):
        y = 4 + place * _ROW
        width = max(1.0, each.value / top * (_WIDTH - _LEFT - 110))
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{html.escape(each.label)}</text>'
            f'<path class="{each.style}" style="stroke-width:14" d="M{_LEFT} {y + 9} h{width:.1f}"/>'
            f'<text class="dim" x="{_LEFT + width + 8:.1f}" y="{y + 14}">'
            f"{each.value:,.10g} {html.escape(unit)}</text>"
        )
    return (
        f"<h2>{html.escape(title)}</h2>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def page(report: Mapping[str, Any]) -> str:
    """The whole file."""
    found = report.get("machine", {})
    subtitle = (
        f"{found.get('cores')} cores, {found.get('memory_gib')} GiB, {found.get('processor')}, "
        f"Python {found.get('python')}, everything on it; revision {found.get('revision')}, "
        f"load before {found.get('load')}"
    )
    if report.get("tiny"):
        subtitle = "Tiny sizes: these figures mean nothing. " + subtitle
    parts = (_throughput, _star, _latency, _state, _growth, _targets)
    body = "".join(part(report) for part in parts)
    return document("Benchmarks", subtitle, body or "<p>Nothing was measured.</p>")


def _present(report: Mapping[str, Any], wanted: Sequence[tuple[str, tuple[str, ...], str]]) -> list[Bar]:
    values = [(label, value_at(report, path), style) for label, path, style in wanted]
    return [Bar(label, value, style) for label, value, style in values if value is not None]


def _throughput(report: Mapping[str, Any]) -> str:
    one = [
        ("limit: bytes copied, nothing decided", ("throughput", "limit"), "worst"),
        ("Relevo", ("throughput", "relevo"), "done"),
        *((name.replace("_", ", "), ("throughput", name), "slow") for name in _PEERS),
    ]
    three = [
        ("limit", ("throughput", "three_brokers", "limit"), "worst"),
        ("Relevo", ("throughput", "three_brokers", "relevo"), "done"),
    ]
    title = "No-op jobs from create to completed, one broker"
    return bars(title, "jobs/s", _present(report, one)) + bars(
        "The same with three brokers", "jobs/s", _present(report, three)
    )


def _star(report: Mapping[str, Any]) -> str:
    one = report.get("throughput", {})
    three = one.get("three_brokers", {})
    return _changed("One thing changed at a time", one) + _changed("The same with three brokers", three)


def _changed(title: str, measured: Mapping[str, Any]) -> str:
    figures = [Bar("base case", value) for value in [value_at(measured, ("relevo",))] if value]
    figures += _present(measured, [("8 KiB variables", ("bytes_8192", "relevo"), "done")])
    for arm, word in (("dedup", "dedup"), ("partitions", "partitions"), ("nodes", "nodes")):
        for name, each in measured.get(arm, {}).items():
            if isinstance(each, Mapping):
                label = f"{word} {name}" if arm == "dedup" else f"{name} {word}"
                figures.append(Bar(label, float(each["jobs_per_s"])))
    return bars(title, "jobs/s", figures)


def _latency(report: Mapping[str, Any]) -> str:
    parts = []
    for title, section in (
        ("one broker", report.get("latency_ms", {})),
        ("three brokers", report.get("latency_ms", {}).get("three_brokers", {})),
    ):
        wanted = [
            (f"{rate}/s, {name}", (rate, name), "done" if name == "p50" else "slow")
            for rate in sorted((each for each in section if each.isdigit()), key=int)
            for name in ("p50", "p90", "p99", "p999")
        ]
        parts.append(bars(f"Create to handler start, {title}", "ms", _present(section, wanted)))
    return "".join(parts)


def _state(report: Mapping[str, Any]) -> str:
    rates = report.get("state", {}).get("rates", {})
    figures = [Bar(f"{int(count):,} open jobs", float(each["jobs_per_s"])) for count, each in rates.items()]
    return bars("Rate beside open jobs", "jobs/s", figures)


def _growth(report: Mapping[str, Any]) -> str:
    core = report.get("core", {})
    words = {
        "ready": "ready jobs", "timers": "scheduled jobs", "leases": "leases", "finished": "finished keys",
        "types": "types that wait",
    }  # fmt: skip

    def curves(name: str) -> list[Bar]:
        return [
            Bar(f"{int(size):,} {words.get(what, what)}", float(value))
            for what, curve in core.get(name, {}).items()
            for size, value in curve.items()
        ]

    sizes = core.get("growth_bytes_each", {})
    each = [Bar(words.get(what, what), float(size)) for what, size in sizes.items() if size is not None]
    return (
        bars("The core's time for one job, beside others", "µs", curves("growth_us"))
        + bars("Its longest pause, the collector's included", "ms", curves("growth_longest_ms"))
        + bars("Memory of one of the others", "bytes", each)
    )


def _targets(report: Mapping[str, Any]) -> str:
    rows = [
        f"<li>{html.escape(row['what'])}: {row['found']:g} ({'at most' if row['at_most'] else 'at least'} "
        f"{row['floor']:g}, goal {row['goal']:g}): {'met' if row['met'] else 'missed'}</li>"
        for row in judged(report)
    ]
    return f"<h2>Targets</h2><ol>{''.join(rows)}</ol>" if rows else ""
