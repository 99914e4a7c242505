"""Tests of your own workers, without a broker; and breaking a cluster on purpose.

`Engine` and `assert_idempotent` need the `engine` extra and run in this process. Whatever is called drill
needs a JDK too, where it starts servers; for pytest there is the fixture `relevo_cluster`, in
`relevo.testing.pytest_plugin`.
"""

from __future__ import annotations

from relevo.testing.cluster import DrillCluster
from relevo.testing.engine import BlockingEngine, Engine
from relevo.testing.faults import DrillError, FaultMark, FaultRefused, Kind
from relevo.testing.idempotency import assert_idempotent, assert_idempotent_async
from relevo.testing.inmemory.faults import WorkerDied
from relevo.testing.inmemory.stores import KeptDedupStore
from relevo.testing.inmemory.views import JobView
from relevo.testing.inmemory.world import StillRunning
from relevo.testing.servers import DrillServers
from relevo.testing.waiting import NotInTime, wait_for

__all__ = [
    "BlockingEngine",
    "DrillCluster",
    "DrillError",
    "DrillServers",
    "Engine",
    "FaultMark",
    "FaultRefused",
    "JobView",
    "KeptDedupStore",
    "Kind",
    "NotInTime",
    "StillRunning",
    "WorkerDied",
    "assert_idempotent",
    "assert_idempotent_async",
    "wait_for",
]
