"""``build/bench.json``: one section for each part, kept when another part is measured or fails."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from relevo.testing.drills.machine import machine

SECTIONS: Final = ("throughput", "latency_ms", "state", "core", "idle")
FORMAT: Final = 2
"""Rises when a key comes to mean something else: what an older revision left is begun anew."""


def empty() -> dict[str, Any]:
    """A report in which nothing was measured yet."""
    return {"format": FORMAT, "machine": {}, "runs": {}, "throughput": {}, "latency_ms": {}, "state": {}}


def read(path: Path) -> dict[str, Any]:
    """What an earlier run left, or an empty report where it can't be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return empty()
    return found if isinstance(found, dict) and found.get("format") == FORMAT else empty()


def merged(into: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """``into`` with what a part found: mappings are joined, anything else is replaced."""
    result = dict(into)
    for name, value in found.items():
        before = result.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = merged(before, value) if both and isinstance(before, Mapping) else value
    return result


class Report:
    """The file. What a part found is written as soon as it is known.

    Args:
        path: Of the file.
        tiny: Whether the sizes are so small that the figures mean nothing.
    """

    def __init__(self, path: Path, *, tiny: bool) -> None:
        self._path = path
        self.data = merged(read(path), {"machine": {**machine(), **load(), "revision": revision()}})
        if tiny != bool(self.data.get("tiny")):
            self.data = merged(empty(), {"machine": self.data["machine"]})  # never a mixture of both
        self.data["tiny"] = tiny

    def add(self, part: str, found: Mapping[str, Any], seconds: float, error: str | None = None) -> None:
        """Write what a part found, and how it went.

        Args:
            part: Its name.
            found: By section; a part that failed has what it found before.
            seconds: How long it took.
            error: Why it failed.
        """
        run = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(seconds, 1),
            "revision": revision(),
            "load_before": load()["load"],
            "error": error,
        }
        self.data = merged(self.data, {**found, "runs": {part: run}})
        self.write()

    def write(self) -> None:
        """Write it so that whoever reads it meanwhile sees the old one or the new one, whole."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(self.data, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(self._path)


def load() -> dict[str, float]:
    """What else the machine does: processes that want to run, over the last minute."""
    return {"load": round(os.getloadavg()[0], 2)}


def revision() -> str:
    """Of the code that is measured; empty where git doesn't tell."""
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return asked.stdout.strip()
