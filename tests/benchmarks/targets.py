"""What the figures are held against: told as met or missed, and no reason to fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Target:
    """One figure.

    Attributes:
        what: In words.
        path: Where it stands in the report, by keys.
        floor: The least (or the most) it has to be.
        goal: What is aimed at.
        at_most: Whether less is better.
    """

    what: str
    path: tuple[str, ...]
    floor: float
    goal: float
    at_most: bool = False

    def met(self, found: float, wanted: float) -> bool:
        """Whether ``found`` is as good as ``wanted``."""
        return found <= wanted if self.at_most else found >= wanted


def _latency(brokers: str, percentile: str, floor: float, goal: float) -> Target:
    words = "one broker" if brokers == "500" else "three brokers"
    keys = ("500",) if brokers == "500" else ("three_brokers", "500")
    return Target(
        f"create to start at 500 jobs/s, {percentile}, {words}, ms",
        ("latency_ms", *keys, percentile),
        floor,
        goal,
        at_most=True,
    )


TARGETS: Final = (
    Target("rate to the fastest queue", ("throughput", "to_fastest_queue"), 3.0, 6.0),
    Target("rate to the limit, one broker", ("throughput", "ratio"), 0.2, 0.4),
    Target("rate to the limit, three brokers", ("throughput", "three_brokers", "ratio"), 0.6, 0.9),
    Target("rate with Redis dedup to memory dedup", ("throughput", "dedup", "redis_to_memory"), 0.7, 0.9),
    _latency("500", "p50", 15, 7),
    _latency("500", "p99", 60, 30),
    _latency("three", "p50", 90, 60),
    _latency("three", "p99", 250, 120),
    Target("rate with a million open jobs to none", ("state", "rate_ratio_1m_open"), 0.9, 1.0),
    Target("bytes per open job", ("state", "bytes_per_open_job"), 700, 400, at_most=True),
    Target("replay, Kafka included, events/s", ("state", "replay_events_per_s"), 100_000, 200_000),
    Target("replay to fastavro alone", ("state", "replay_ratio"), 0.5, 0.8),
    Target("idle cluster of three nodes, % of a core", ("idle", "nodes_percent"), 5.0, 1.0, at_most=True),
)


def value_at(report: Mapping[str, Any], path: Sequence[str]) -> float | None:
    """The number at ``path``; None where nothing was measured."""
    found: Any = report
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def judged(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each target with what was found, as far as it was measured."""
    rows = []
    for target in TARGETS:
        found = value_at(report, target.path)
        if found is not None:
            rows.append(
                {
                    "what": target.what,
                    "found": found,
                    "floor": target.floor,
                    "goal": target.goal,
                    "at_most": target.at_most,
                    "met": target.met(found, target.floor),
                    "goal_met": target.met(found, target.goal),
                }
            )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """For people."""
    lines = []
    for row in rows:
        word = "goal" if row["goal_met"] else "met" if row["met"] else "MISSED"
        sign = "≤" if row["at_most"] else "≥"
        lines.append(
            f"  {row['what']:52} {row['found']:>10g}   {sign} {row['floor']:g} "
            f"(goal {row['goal']:g})   {word}"
        )
    return "\n".join(lines)
