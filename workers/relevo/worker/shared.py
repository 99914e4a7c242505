"""What all job types of one worker process use together: connections, threads, the dedup store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from relevo import names
from relevo.dedup.store import DedupStore
from relevo.follower import Follower
from relevo.sender import Sender
from relevo.worker.execution import LoopThread
from relevo.worker.keeper_thread import KeeperThread
from relevo.worker.solitude import Solitude
from relevo.worker.waiting import SUSPECT_AFTER

_log: Final = logging.getLogger("relevo.worker")

LEASES_EVERY_S: Final = 0.025
CLAIMS_EVERY_S: Final = 0.1


@dataclass(slots=True)
class Shared:
    """What all types of one process use together."""

    bootstrap: str
    cluster: str
    options: Mapping[str, Any]
    store: DedupStore
    drain_s: float
    watch: bool
    suspect_after: int | None = SUSPECT_AFTER
    tracing: bool | None = None
    solitude: Solitude = field(default_factory=Solitude)
    identity: str = field(default_factory=names.worker_identity)
    sender: Sender = field(init=False)
    loop: LoopThread = field(init=False)
    leases: KeeperThread = field(init=False)
    claims: KeeperThread = field(init=False)
    follower: Follower | None = field(init=False)

    def open(self) -> None:
        """Make the threads and connections."""
        self.sender = Sender(
            self.bootstrap, self.options, what="worker", linger_ms=5, delivery_timeout_ms=60_000
        )
        self.loop = LoopThread()
        self.leases = KeeperThread("leases", LEASES_EVERY_S)
        self.claims = KeeperThread("claims", CLAIMS_EVERY_S)
        self.follower = Follower(self.bootstrap, self.cluster, self.options) if self.watch else None

    def close(self, timeout: float) -> None:
        """End them."""
        self.leases.close()
        self.claims.close()
        left = self.sender.close(timeout)
        if left:
            _log.warning("%d outcomes were not acknowledged; their jobs are delivered again", left)
        self.loop.close()
        if self.follower is not None:
            self.follower.close()
        self.store.close()
