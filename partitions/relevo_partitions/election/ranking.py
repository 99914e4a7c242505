"""In which order candidates try to claim a partition."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def ranking(partition: int, candidates: Iterable[str]) -> list[str]:
    """Candidates in the order in which they may claim ``partition``, by rendezvous hashing.

    Each node comes first for about as many partitions as any other, and one that goes moves only its own.
    """

    def weight(node: str) -> bytes:
        return hashlib.blake2b(f"{partition}\0{node}".encode(), digest_size=8).digest()

    return sorted(candidates, key=lambda node: (weight(node), node))


def rank(partition: int, node: str, candidates: Iterable[str]) -> int:
    """Place of ``node`` in the `ranking`; behind all candidates where it isn't one."""
    order = ranking(partition, candidates)
    return order.index(node) if node in order else len(order)
