"""What drills measured, as data: runs, a summary of them, and the targets they are held against.

Times are milliseconds. A percentile is the smallest measured value that at least so many percent of the
values don't exceed: of few values the 99th is the largest, never one that was not measured.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

MEASURES: Final = ("detect_ms", "first_accept_ms", "first_activation_ms", "gap_ms")
"""What is measured for each partition whose leader was hurt."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all don't exceed.

    Raises:
        ValueError: There are no values, or the percentage is none.
    """
    if not values or not 0 < percent <= 100:
        raise ValueError(f"no {percent:g}th percentile of {len(values)} values")
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def spread(values: Iterable[float | None]) -> dict[str, float | int] | None:
    """Count, p50, p99 and largest of the values that were measured; None where none was."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {
        "count": len(known),
        "p50": round(percentile(known, 50), 1),
        "p99": round(percentile(known, 99), 1),
        "max": round(max(known), 1),
    }


@dataclass
class Sample:
    """What one partition went through whose leader was hurt.

    Attributes:
        partition: Its number.
        detect_ms: From the fault until the next leader learned that the partition is free; None: nobody told.
        first_accept_ms: Until the first decision about a command by the next leader was seen in the log.
        first_activation_ms: Until a job handed out by the next leader was seen.
        gap_ms: The longest time without an activation, the fault in it.
        steps: How long each step of the takeover took, as the next leader tells.
        standby: Whether that was a hot standby; None: not told.
        next_leader: Who it is.
    """

    partition: int
    detect_ms: float | None = None
    first_accept_ms: float | None = None
    first_activation_ms: float | None = None
    gap_ms: float | None = None
    steps: dict[str, float] = field(default_factory=dict)
    standby: bool | None = None
    next_leader: str = ""


@dataclass
class Expectation:
    """A fact that a drill rests on. Not a time: those are targets."""

    what: str
    held: bool
    found: str = ""


@dataclass
class Run:
    """One repeat of a drill.

    Attributes:
        drill: Its name.
        repeat: Counts from 1.
        begun: When, in milliseconds since the Unix epoch.
        target: Who was hurt.
        fault: What was done in a soak; else empty.
        samples: One for each partition whose leader was hurt.
        jobs: Jobs accepted from its beginning to the next one's.
        lost: Those of them that came to no end; None: not looked yet.
        effects_repeated: Effects begun again in that time; None: not looked yet.
        effects_repeated_in_flight: Those of them that a fault caught in the act.
        max_gap_ms: The longest time in which some partition had no activation.
        verify_ok: The verifier's word on the log and the accepted keys; None: not asked yet.
        extra: Further times, by name.
        counts: What else was counted, by name.
        expectations: What had to hold.
        notes: What a reader should know.
    """

    drill: str
    repeat: int
    begun: float
    target: str = ""
    fault: str = ""
    samples: list[Sample] = field(default_factory=list)
    jobs: int = 0
    lost: int | None = None
    effects_repeated: int | None = None
    effects_repeated_in_flight: int | None = None
    max_gap_ms: float | None = None
    verify_ok: bool | None = None
    extra: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    expectations: list[Expectation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def expect(self, what: str, held: bool, found: str = "") -> None:
        """Note whether something holds that has to."""
        self.expectations.append(Expectation(what, held, found))

    @property
    def broken(self) -> list[Expectation]:
        """What doesn't hold."""
        return [each for each in self.expectations if not each.held]

    @property
    def held(self) -> bool:
        """Nothing was lost, the verifier is content, and everything that had to hold did."""
        return self.lost == 0 and self.verify_ok is True and not self.broken

    def slowest(self, measure: str) -> float | None:
        """The largest of its samples; None where nothing was measured."""
        known = [value for each in self.samples if (value := getattr(each, measure)) is not None]
        return max(known, default=None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the times are those of the slowest partition; each partition's stand in ``samples``."""
        slowest = max(self.samples, key=lambda each: each.first_activation_ms or 0.0, default=None)
        whole = asdict(self)
        head = {
            "drill": self.drill,
            **({"fault": self.fault} if self.fault else {}),
            "repeat": self.repeat,
            "detect_ms": _rounded(self.slowest("detect_ms")),
            "first_accept_ms": _rounded(self.slowest("first_accept_ms")),
            "first_activation_ms": _rounded(self.slowest("first_activation_ms")),
            "jobs": self.jobs,
            "lost": self.lost,
            "effects_repeated": self.effects_repeated,
            "effects_repeated_in_flight": self.effects_repeated_in_flight,
            "max_gap_ms": _rounded(self.max_gap_ms),
            "verify_ok": self.verify_ok,
            "steps": slowest.steps if slowest else {},
        }
        return head | {name: value for name, value in whole.items() if name not in head and name != "fault"}


def spans(runs: Sequence[Run]) -> list[tuple[Run, float, float]]:
    """Each repeat of a drill with its part of the time: from its beginning to the next one's.

    Args:
        runs: In order.

    Returns:
        Run, from, to (exclusive), in milliseconds since the Unix epoch.
    """
    # What came before the first belongs to it.
    begins = [0.0, *(run.begun for run in runs[1:]), float("inf")]
    return [(run, begins[place], begins[place + 1]) for place, run in enumerate(runs)]


@dataclass(frozen=True)
class Target:
    """A time that a drill is held against: told as met or missed, and no reason to fail.

    Attributes:
        drill: Whose.
        measure: A measure of samples, ``max_gap_ms``, or a name in `Run.extra`.
        at: ``p50``, ``p99`` or ``max``.
        limit_ms: The most it may be.
    """

    drill: str
    measure: str
    at: str
    limit_ms: float


def values_of(runs: Sequence[Run], measure: str) -> list[float | None]:
    """Every value of a measure, over partitions where it is one of theirs, else over repeats."""
    if measure in MEASURES:
        return [getattr(sample, measure) for run in runs for sample in run.samples]
    if measure == "max_gap_ms":
        return [run.max_gap_ms for run in runs]
    return [run.extra.get(measure) for run in runs]


def summary_of(runs: Sequence[Run], targets: Sequence[Target]) -> dict[str, Any]:
    """What the repeats of one drill come to.

    Args:
        runs: All of the same drill.
        targets: Of that drill.
    """
    extras = sorted({name for run in runs for name in run.extra})
    steps = dict.fromkeys(name for run in runs for sample in run.samples for name in sample.steps)
    jobs = sum(run.jobs for run in runs)
    repeated = _sum(run.effects_repeated for run in runs)
    in_flight = _sum(run.effects_repeated_in_flight for run in runs)
    return {
        "repeats": len(runs),
        "samples": sum(len(run.samples) for run in runs),
        **{name: spread(values_of(runs, name)) for name in (*MEASURES, "max_gap_ms", *extras)},
        "slowest_partition_first_activation_ms": spread(run.slowest("first_activation_ms") for run in runs),
        "steps_ms": {
            step: spread(sample.steps.get(step) for run in runs for sample in run.samples) for step in steps
        },
        "jobs": jobs,
        "lost": _sum(run.lost for run in runs),
        "effects_repeated": repeated,
        "effects_repeated_in_flight": in_flight,
        "effects_repeated_per_million_jobs": _per_million(repeated, jobs),
        "effects_repeated_in_flight_per_million_jobs": _per_million(in_flight, jobs),
        # What no fault caught in the act, so that nothing excuses it.
        "effects_repeated_otherwise_per_million_jobs": (
            None if repeated is None or in_flight is None else _per_million(repeated - in_flight, jobs)
        ),
        "counts": {name: sum(run.counts.get(name, 0) for run in runs) for name in _names(runs)},
        "verify_ok": all(run.verify_ok is True for run in runs),
        "held": all(run.held for run in runs),
        "broken": sorted({f"{each.what}: {each.found}" for run in runs for each in run.broken}),
        "targets": [judged for target in targets if (judged := judge(runs, target)) is not None],
    }


def judge(runs: Sequence[Run], target: Target) -> dict[str, Any] | None:
    """A target with what was found, or None where nothing was measured."""
    found = spread(values_of(runs, target.measure))
    if found is None:
        return None
    return {
        "measure": target.measure,
        "at": target.at,
        "limit_ms": target.limit_ms,
        "found_ms": found[target.at],
        "met": found[target.at] <= target.limit_ms,
    }


@dataclass
class Report:
    """The whole file.

    Attributes:
        machine: Where it was measured.
        settings: With what.
        targets: What the drills are held against.
        runs: Every repeat, in order.
        skipped: Why, by drill.
        controls: The longest gaps while nothing was hurt, by drill: what the machine and the watcher add.
        interrupted: Whether it ended before its time.
    """

    machine: dict[str, Any]
    settings: dict[str, Any]
    targets: list[Target] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    controls: dict[str, dict[str, float]] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def drills(self) -> list[str]:
        """Names of the drills that ran, in order."""
        return list(dict.fromkeys(run.drill for run in self.runs))

    def runs_of(self, drill: str) -> list[Run]:
        """The repeats of one."""
        return [run for run in self.runs if run.drill == drill]

    def summary(self) -> dict[str, Any]:
        """By drill, see `summary_of`."""
        return {
            drill: summary_of(self.runs_of(drill), [each for each in self.targets if each.drill == drill])
            | {"control": self.controls.get(drill)}
            for drill in self.drills
        }

    @property
    def held(self) -> bool:
        """Everything that ran held, and something did run."""
        return bool(self.runs) and not self.interrupted and all(run.held for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "machine": self.machine,
            "settings": self.settings,
            "held": self.held,
            "interrupted": self.interrupted,
            "skipped": self.skipped,
            "runs": [run.as_dict() for run in self.runs],
            "summary": self.summary(),
        }

    def write(self, path: Path) -> None:
        """Write it so that whoever reads it meanwhile sees the old one or the new one, whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_bytes(orjson.dumps(self.as_dict(), option=orjson.OPT_INDENT_2) + b"\n")
        unfinished.replace(path)


def _names(runs: Sequence[Run]) -> list[str]:
    """What is counted in some of them, in the order in which it was."""
    return list(dict.fromkeys(name for run in runs for name in run.counts))


def _per_million(count: int | None, jobs: int) -> float | None:
    return round(count * 1e6 / jobs, 2) if count is not None and jobs else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; None where one isn't known."""
    known = list(values)
    return None if any(value is None for value in known) else sum(value or 0 for value in known)
