"""Dedup stores: who remembers what has been done.

Which promises what, when a worker dies or a job is delivered twice:

- `MemoryDedupStore`: duplicates that reach this process while it lives.
- `RedisDedupStore`: those that reach any worker, but for the last moments before a failover or restart of
  Redis.
- `SqlDedupStore`: those that reach any worker, as durably as the database; and with
  `relevo.Job.transaction` an effect in the same database happens exactly once, whatever dies when.

Outside of that transaction no store can tell whether an effect happened just before a crash: for effects
elsewhere hand on `relevo.Job.idempotency_key`.
"""

from __future__ import annotations

from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.redis import RedisDedupStore
from relevo.dedup.sql import SqlDedupStore
from relevo.dedup.store import Answer, Claim, DedupStore, Done, Finish, Held, Mine, StoreTransaction, Unknown

__all__ = [
    "Answer", "Claim", "DedupStore", "Done", "Finish", "Held", "MemoryDedupStore", "Mine", "RedisDedupStore",
    "SqlDedupStore", "StoreTransaction", "Unknown",
]  # fmt: skip
