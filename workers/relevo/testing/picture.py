"""Throughput and activation latency over time with the faults marked, as one HTML file without scripts."""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from relevo.testing.arrivals import Arrival
from relevo.testing.report import percentile

BUCKETS_MAX: Final = 480
_BUCKET_MIN_MS: Final = 250.0
_WIDTH: Final = 960
_HEIGHT: Final = 190
_LEFT: Final = 64
_RIGHT: Final = 16
_TOP: Final = 34
_BOTTOM: Final = 34
_LABELS_MAX: Final = 24
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #d4d9df; --dim: #59636e;
  --done: #0b6bcb; --slow: #b3470a; --worst: #d9a441; --fault: #b4232f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --faint: #30363d;
  --dim: #9aa4ae; --done: #58a6ff; --slow: #ff9b57; --worst: #e3c26f; --fault: #ff7b72; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2em auto;
  max-width: 1000px; padding: 0 1em; }
h2 { margin-bottom: 0; } p { color: var(--dim); margin: .2em 0 1em; }
svg { width: 100%; height: auto; display: block; }
text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.axis { stroke: var(--dim); } .grid { stroke: var(--faint); } .dim { fill: var(--dim); }
.fault { stroke: var(--fault); stroke-dasharray: 3 3; } .fault-label { fill: var(--fault); }
.done, .slow, .worst { fill: none; stroke-width: 1.6; }
.done { stroke: var(--done); } .slow { stroke: var(--slow); } .worst { stroke: var(--worst); }
ol { color: var(--dim); columns: 2; font-size: 13px; }
"""


class Marked(Protocol):
    """Something that happened: when, in milliseconds since the Unix epoch, and what."""

    @property
    def wall(self) -> float:
        """When."""

    @property
    def what(self) -> str:
        """What."""


@dataclass(frozen=True)
class Panel:
    """What is shown of one drill. Seconds count from its beginning.

    Attributes:
        name: Of the drill.
        bucket_s: Width of a bucket, in seconds.
        handed_out: Activations per second, by bucket.
        completed: Completions per second, by bucket.
        latency_p50: From sending a job to its activation, in milliseconds, by bucket; None: there was none.
        latency_max: The slowest, likewise.
        marks: What happened, and when.
    """

    name: str
    bucket_s: float
    handed_out: Sequence[float]
    completed: Sequence[float]
    latency_p50: Sequence[float | None]
    latency_max: Sequence[float | None]
    marks: Sequence[tuple[float, str]]


def panel_of(
    name: str,
    arrivals: Iterable[tuple[int, Arrival]],
    completed: Mapping[str, float],
    marks: Iterable[Marked],
) -> Panel:
    """Sum up what was seen in at most `BUCKETS_MAX` buckets.

    Args:
        name: Of the drill.
        arrivals: Activations with their partitions.
        completed: When each job was completed, in milliseconds since the Unix epoch.
        marks: What happened.
    """
    seen = [arrival for _, arrival in arrivals]
    ends = sorted(completed.values())
    begin = min((arrival.wall for arrival in seen), default=0.0)
    end = max([begin + 1.0, *(arrival.wall for arrival in seen), *ends[-1:]])
    width = max(_BUCKET_MIN_MS, (end - begin) / BUCKETS_MAX)
    count = math.floor((end - begin) / width) + 1

    def place(wall: float) -> int:
        return min(count - 1, max(0, math.floor((wall - begin) / width)))

    handed_out, done = [0.0] * count, [0.0] * count
    latencies: dict[int, list[float]] = defaultdict(list)
    for arrival in seen:
        handed_out[place(arrival.wall)] += 1000 / width
        if arrival.sent is not None:
            latencies[place(arrival.wall)].append(arrival.wall - arrival.sent)
    for wall in ends:
        done[place(wall)] += 1000 / width
    return Panel(
        name,
        width / 1000,
        handed_out,
        done,
        [percentile(latencies[n], 50) if n in latencies else None for n in range(count)],
        [max(latencies[n]) if n in latencies else None for n in range(count)],
        [((mark.wall - begin) / 1000, mark.what) for mark in marks],
    )


def page(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """The whole file.

    Args:
        title: Its heading.
        subtitle: A line below that.
        panels: What is shown, in order.
    """
    parts = [_section(panel) for panel in panels] or ["<p>Nothing was measured.</p>"]
    return document(title, subtitle, "".join(parts))


def document(title: str, subtitle: str, body: str) -> str:
    """A page without scripts, in light or dark as its reader likes.

    Args:
        title: Its heading; any text.
        subtitle: A line below that; any text.
        body: HTML.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p>{html.escape(subtitle)}</p>{body}</body></html>\n"
    )


def nice_top(value: float) -> float:
    """The next of 1, 2 or 5 times a power of ten, for the end of an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value * (1 - 1e-9))


def _section(panel: Panel) -> str:
    faults = "".join(f"<li>{at:.1f} s: {html.escape(what)}</li>" for at, what in panel.marks)
    return (
        f"<h2>{html.escape(panel.name)}</h2>"
        f"<p>each point: {panel.bucket_s:.2g} s</p>"
        + _chart(
            panel,
            "jobs per second",
            [("done", "handed out", panel.handed_out), ("worst", "completed", panel.completed)],
            log=False,
        )
        + _chart(
            panel,
            "sent to handed out, ms (logarithmic)",
            [("worst", "slowest", panel.latency_max), ("slow", "median", panel.latency_p50)],
            log=True,
        )
        + (f"<ol>{faults}</ol>" if faults else "")
    )


Lines = Sequence[tuple[str, str, Sequence[float | None]]]


def _chart(panel: Panel, label: str, lines: Lines, *, log: bool) -> str:
    """One diagram with its axes, its lines, and the faults."""
    top = nice_top(max((v for _, _, values in lines for v in values if v is not None), default=1.0))
    frame = _Frame(panel.bucket_s * len(panel.handed_out), max(10.0, top) if log else top, log)
    parts = [frame.grid(), frame.faults(panel.marks), f'<text x="{_LEFT}" y="14">{html.escape(label)}</text>']
    for place, (style, name, values) in enumerate(lines):
        parts.append(frame.line(style, panel.bucket_s, values))
        at = _LEFT + 260 + place * 130
        parts.append(
            f'<line class="{style}" x1="{at}" x2="{at + 22}" y1="10" y2="10"/>'
            f'<text x="{at + 28}" y="14">{html.escape(name)}</text>'
        )
    title = f"{panel.name}: {label} over time"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


@dataclass(frozen=True)
class _Frame:
    """Where a moment and a value lie in a diagram."""

    whole_s: float
    top: float
    log: bool

    def x(self, seconds: float) -> float:
        return _LEFT + min(1.0, max(0.0, seconds / self.whole_s)) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        part = math.log10(max(1.0, value)) / math.log10(self.top) if self.log else value / self.top
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> str:
        """Both axes with their numbers."""
        powers = [10.0**n for n in range(math.floor(math.log10(self.top)) + 1)] if self.log else []
        values = powers or [0.0, self.top / 2, self.top]
        bottom = _HEIGHT - _BOTTOM
        parts = [
            f'<path class="grid" d="M{_LEFT} {self.y(v):.1f} H{_WIDTH - _RIGHT}"/>'
            f'<text class="dim" x="{_LEFT - 6}" y="{self.y(v) + 4:.1f}" text-anchor="end">{v:g}</text>'
            for v in values
        ]
        parts += [
            f'<text class="dim" x="{self.x(at):.1f}" y="{bottom + 15}" text-anchor="middle">{at:.0f}</text>'
            for at in (self.whole_s * n / 4 for n in range(5))
        ]
        parts.append(
            f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{bottom}"/>'
            f'<text class="dim" x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">'
            "seconds since the drill began</text>"
        )
        return "".join(parts)

    def faults(self, marks: Sequence[tuple[float, str]]) -> str:
        """A line for each, with its number in the list below where there is room for that."""
        parts = []
        for number, (at, what) in enumerate(marks, 1):
            x = f"{self.x(at):.1f}"
            parts.append(
                f'<line class="fault" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}">'
                f"<title>{html.escape(f'{at:.1f} s: {what}')}</title></line>"
            )
            if len(marks) <= _LABELS_MAX:
                parts.append(
                    f'<text class="fault-label" x="{x}" y="{_TOP - 3}" text-anchor="middle">{number}</text>'
                )
        return "".join(parts)

    def line(self, style: str, bucket_s: float, values: Sequence[float | None]) -> str:
        """The values joined, with a break wherever there is none."""
        stretches: list[list[str]] = [[]]
        for number, value in enumerate(values):
            if value is None:
                stretches.append([])
            else:
                stretches[-1].append(f"{self.x((number + 0.5) * bucket_s):.1f} {self.y(value):.1f}")
        # A stretch of one point is drawn as a short one, or it would not be seen.
        return "".join(
            f'<path class="{style}" d="M{" L".join(each)}{" h2" if len(each) == 1 else ""}"/>'
            for each in stretches
            if each
        )
