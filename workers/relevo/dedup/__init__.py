"""Dedup stores: who remembers what has been done."""

from __future__ import annotations

from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.redis import RedisDedupStore
from relevo.dedup.store import Answer, Claim, DedupStore, Done, Finish, Held, Mine, Unknown

__all__ = [
    "Answer", "Claim", "DedupStore", "Done", "Finish", "Held", "MemoryDedupStore", "Mine", "RedisDedupStore",
    "Unknown",
]  # fmt: skip
