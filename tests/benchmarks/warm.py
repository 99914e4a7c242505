"""Brokers as they are after days: with their code compiled.

A new broker's JIT compiler takes more of the processor than the broker's own work does, for some 300,000 jobs
with one broker and longer with three. Whoever measures meanwhile measures the compiler.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.knobs import Knobs

WARM_ROUNDS: Final = 80
"""At most; some twenty are enough with one broker, three brokers have needed more than forty."""
ROUNDS_UNSEEN: Final = 20
"""Where the system doesn't tell what threads do."""
COMPILING_MAX: Final = 0.15
"""Of the brokers' processor time, in a round: they are warm below it."""
_COMPILERS: Final = ("C1 CompilerThre", "C2 CompilerThre")
"""HotSpot's threads, as Linux shows their names."""


@dataclass(frozen=True)
class Subject:
    """What is measured in turns with others.

    Attributes:
        name: Of the figure.
        rate: Measures one run: jobs per second.
    """

    name: str
    rate: Callable[[], float]


@dataclass(frozen=True)
class Spent:
    """Processor time of some processes so far, in clock ticks.

    Attributes:
        compiling: By their JIT compilers.
        altogether: By all their threads that are there.
    """

    compiling: int
    altogether: int

    def share_since(self, before: Spent) -> float:
        """How much of the time since ``before`` the compilers took."""
        return (self.compiling - before.compiling) / max(1, self.altogether - before.altogether)


def spent(pids: Iterable[int], proc: Path = Path("/proc")) -> Spent | None:
    """What Java processes have spent; None where the system doesn't tell (Linux does)."""
    compiling = altogether = 0
    for pid in pids:
        tasks = proc / str(pid) / "task"
        if not tasks.is_dir():
            return None
        for task in os.scandir(tasks):
            try:
                name, _, rest = Path(task, "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # ended since
            fields = rest.split()
            ticks = int(fields[11]) + int(fields[12])
            altogether += ticks
            compiling += ticks if name in _COMPILERS else 0
    return Spent(compiling, altogether)


def until_warm(
    knobs: Knobs,
    brokers: Sequence[int],
    *subjects: Subject,
    look: Callable[[Iterable[int]], Spent | None] = spent,
) -> None:
    """Run each until the brokers' compilers have little left to do.

    Args:
        knobs: Who is told, and whether it is only to be seen that it works.
        brokers: Process ids.
        *subjects: What will be measured: all get the same number of rounds, as they share the brokers.
        look: Reads what the brokers have spent.
    """
    share, rounds = None, 0
    rates: dict[str, float] = {}
    while rounds < (1 if knobs.tiny else WARM_ROUNDS):
        before = look(brokers)
        rates = {subject.name: subject.rate() for subject in subjects}
        rounds += 1
        after = look(brokers)
        if before is None or after is None:
            if rounds >= ROUNDS_UNSEEN:
                break
            continue
        share = after.share_since(before)
        if share < COMPILING_MAX:
            break
    compiling = "" if share is None else f", {share:.0%} of the brokers' time still for compiling"
    rates_said = ", ".join(f"{name} {rate:,.0f} jobs/s" for name, rate in rates.items())
    knobs.say(f"warmed up in {rounds} round(s){compiling}: {rates_said}")
