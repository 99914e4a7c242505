"""The public face: a name that vanishes, or a heavy import, breaks every user at once."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import relevo

PUBLIC = [
    "AsyncClient",
    "AsyncJobEvents",
    "BulkResult",
    "ClaimLost",
    "Client",
    "Closed",
    "ClusterNotFound",
    "ConfigurationError",
    "DecisionTimeout",
    "DedupStore",
    "Fail",
    "InvalidRequest",
    "Job",
    "JobDefaults",
    "JobError",
    "JobEvent",
    "JobEvents",
    "JobHandle",
    "JobNotCompleted",
    "JobResult",
    "JobWorker",
    "LogGap",
    "LogPosition",
    "MemoryDedupStore",
    "MissingExtra",
    "NewJob",
    "NotSent",
    "Outcome",
    "OutcomeUnknown",
    "QueueFull",
    "RedisDedupStore",
    "Refused",
    "Rejected",
    "RelevoError",
    "ResultTimeout",
    "Retry",
    "Skipped",
    "SqlDedupStore",
    "StoreUnavailable",
    "StoreUnsafe",
    "Unreachable",
    "UsedAfterFork",
    "VariablesError",
    "WorkerApp",
    "WorkerStats",
]


def test_the_public_names_are_these() -> None:
    assert sorted(relevo.__all__) == PUBLIC
    assert all(hasattr(relevo, name) for name in PUBLIC)


def test_every_public_name_is_documented() -> None:
    assert [name for name in PUBLIC if not (getattr(relevo, name).__doc__ or "").strip()] == []


def test_the_package_is_typed() -> None:
    assert (files("relevo") / "py.typed").is_file()


def test_importing_it_pulls_in_no_extra() -> None:
    """A light install would fail at import, with a traceback in place of a hint."""
    heavy = "kazoo redis psycopg aiohttp pydantic structlog rich relevo_engine relevo_partitions"
    script = f"import sys, relevo; print([name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
