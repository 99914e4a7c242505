"""The state machine and the codec without I/O: ratios, and instructions where the machine counts them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from relevo.testing.bench.timing import medians
from tests.benchmarks import core_loop, growth
from tests.benchmarks.knobs import Knobs

_LIMIT_S: Final = 600.0
_COUNTED: Final = ("step", "replay", "codec")


def run(knobs: Knobs, found: Callable[[Mapping[str, Any]], None]) -> None:
    """Each round in a process of its own, with a heap of its own."""
    rounds = [measure(knobs.core_jobs) for _ in range(knobs.rounds)]
    figures = medians(rounds, digits=4)
    for name in ("step_to_calibration", "codec_to_calibration", "replay_ratio", "codec_read_ratio"):
        knobs.say(f"{name} {figures[name]:g}")
    found({"core": figures, "state": {"replay_ratio": figures["replay_ratio"]}})
    for what in growth.WAYS:
        curve = grown(what, knobs.growth_types if what == "types" else knobs.growth)
        for name, word in (("us", "µs per job"), ("longest_ms", "longest pause, ms,")):
            values = ", ".join(f"{int(n):,}: {value:g}" for n, value in curve[name].items())
            knobs.say(f"{word} beside {what}: {values}")
        told = {"growth_us": {what: curve["us"]}, "growth_longest_ms": {what: curve["longest_ms"]}}
        if what != "types":  # each brings some hundred jobs along
            knobs.say(f"bytes of each of {what}: {curve['bytes_each']}")
            told["growth_bytes_each"] = {what: curve["bytes_each"]}
        found({"core": told})
    found({"core": instructions(knobs.core_jobs)})


def measure(jobs: int, environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """One run of `core_loop`, of this revision or of the one that the environment's PYTHONPATH names."""
    return _told(core_loop.__file__, str(jobs), environment=environment)


def grown(what: str, sizes: Sequence[int]) -> dict[str, Any]:
    """A job's cost, the longest pause, the memory, by the number of others; see `tests.benchmarks.growth`."""
    return _told(growth.__file__, what, *map(str, sizes))


def _told(*command: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a Python program prints, in a process of its own."""
    done = subprocess.run(
        (sys.executable, "-P", *command),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env=None if environment is None else dict(environment),
    )
    if done.returncode:
        raise RuntimeError(f"the core can't be measured: {done.stderr.strip()[-800:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def instructions(jobs: int, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Instructions per job of each piece, the set-up taken off; or why they can't be counted."""
    counts = {what: count(jobs, what, environment) for what in ("nothing", *_COUNTED)}
    base = counts["nothing"]
    if base is None:
        return {"instructions": "not counted: perf isn't here, or this machine gives it no counter"}
    return {
        "instructions": {
            f"{what}_per_job": round((number - base) / jobs)
            for what, number in counts.items()
            if what != "nothing" and number is not None
        }
    }


def count(jobs: int, what: str, environment: Mapping[str, str] | None = None) -> int | None:
    """Instructions in user space of one process; None where they can't be counted."""
    perf = shutil.which("perf")
    if perf is None:
        return None
    done = subprocess.run(
        (perf, "stat", "-x", ",", "-e", "instructions:u", sys.executable, "-P", core_loop.__file__,
         str(jobs), what),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env={**(environment if environment is not None else os.environ), "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    return parse_count(done.stderr) if done.returncode == 0 else None


def parse_count(text: str) -> int | None:
    """The number in ``perf stat -x ,``'s answer; None where there is none, as in many virtual machines."""
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2].startswith("instructions") and fields[0].isdigit():
            return int(fields[0])
    return None
