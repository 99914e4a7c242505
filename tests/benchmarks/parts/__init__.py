"""What is measured. Each part starts what it needs, and can be run alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from tests.benchmarks.knobs import Knobs

Part = Callable[[Knobs, Callable[[Mapping[str, Any]], None]], None]
"""Measures, and hands over what it found as soon as it knows it."""

PARTS: Final = {
    "core": "the state machine and the codec without I/O, as ratios",
    "throughput": "no-op jobs/s and the limit: one and three brokers, sizes, dedup, partitions, nodes",
    "peers": "the same jobs with other queues",
    "latency": "create to handler start and to completed, at given rates",
    "state": "rate, memory, replay, snapshots and takeovers with many open jobs",
    "idle": "processor time of a cluster without jobs",
}
"""In the order in which they run: what needs a quiet machine most comes first."""


class PieceError(Exception):
    """Some pieces of a part failed; the others have handed over what they found."""


def each_piece(say: Callable[[str], None], pieces: Mapping[str, Callable[[], object]]) -> None:
    """Measure one piece after the other, also when one fails.

    Args:
        say: Told why one failed, with its traceback.
        pieces: By name.

    Raises:
        PieceError: Afterwards, with the first line of what was wrong with each.
    """
    failed = {}
    for name, piece in pieces.items():
        try:
            piece()
        except Exception as error:
            say(f"{name} failed\n{traceback.format_exc()}")
            failed[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if failed:
        raise PieceError("; ".join(f"{name}: {why}" for name, why in failed.items()))


def part(name: str) -> Part:
    """Import the part of this name."""
    found: Part = import_module(f"tests.benchmarks.parts.{name}").run
    return found
