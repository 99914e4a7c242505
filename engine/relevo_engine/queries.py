"""Questions to a partition's machine, answered in values that orjson can write. They change nothing."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

import orjson

from relevo_engine.core.job import JobState
from relevo_engine.machine import PartitionMachine

LIMIT_MAX: Final = 1_000
"""Most jobs that one answer lists."""
_SHOWN_BYTES_MAX: Final = 200_000


def find_job(machine: PartitionMachine, key: str) -> dict[str, Any] | None:
    """The job with this key with all that is known of it, or None where there is none or it is forgotten."""
    view = machine.view(key)
    if view is None:
        return None
    found = _compact(view)
    for name in ("checkpoint", "variables"):
        data = found.pop(name, None)
        if data is not None:
            found |= _as_json(name, data)
    return found


def list_jobs(
    machine: PartitionMachine, *, where: JobState | None, job_type: str | None, limit: int
) -> list[dict[str, Any]]:
    """Open jobs in the order of their creation, without variables; None: of any state or type."""
    return [_compact(each) for each in machine.list_jobs(where, job_type, limit)]


def describe(machine: PartitionMachine) -> dict[str, Any]:
    """The partition in numbers: epoch, position, and how many jobs are in each state."""
    summary = machine.summary()
    types = {name: _without_zeros(counts) for name, counts in sorted(summary["counts"].items())}
    totals: dict[str, int] = {}
    for counts in types.values():
        for state, count in counts.items():
            totals[state] = totals.get(state, 0) + count
    return {
        "epoch": summary["epoch"],
        "position": summary["position"],
        "last_seq": summary["last_seq"],
        "last_at": summary["last_at"],
        "jobs": totals,
        "types": types,
    }


def merge_lists(parts: list[list[dict[str, Any]]], limit: int) -> list[dict[str, Any]]:
    """Several partitions' lists as one, in the order of creation."""
    return sorted(chain.from_iterable(parts), key=lambda job: int(job["created_at"]))[:limit]


def _compact(view: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in view.items() if value is not None}


def _without_zeros(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _as_json(name: str, data: bytes) -> dict[str, Any]:
    """As JSON where they are, which the engine never made sure of; as text otherwise."""
    if len(data) > _SHOWN_BYTES_MAX:
        return {f"{name}_bytes": len(data)}
    if not _is_json(data):
        return {f"{name}_text": data.decode(errors="replace")}
    # Not what is read of it: that may be nested too deep to be written, and its large numbers are only close.
    return {name: orjson.Fragment(data)}


def _is_json(data: bytes) -> bool:
    """Whether it is JSON that can be read where it stands, one level deep in an answer."""
    try:
        return len(orjson.loads(b"[%b]" % data)) == 1
    except orjson.JSONDecodeError:
        return False
