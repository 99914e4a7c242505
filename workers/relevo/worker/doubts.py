"""Items that wait for the engine to say whether they may run. They hold a claim and a slot meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relevo.worker.inquiries import Inquiries
from relevo.worker.item import Item
from relevo.worker.schedule import Schedule

ANSWER_WAIT_S: Final = 10.0


class Doubts:
    """What the engine was asked about and has not answered. Used by the gate's thread.

    Args:
        later: Brings an item again when it has waited long enough.
        claim_s: How long an item's claim holds, in seconds.
    """

    def __init__(self, later: Schedule, claim_s: Callable[[Item], float]) -> None:
        self._later = later
        self._claim_s = claim_s
        self._asked: set[Item] = set()

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, item: Item) -> bool:
        return item in self._asked

    def ask(self, inquiries: Inquiries, doubtful: list[Item], now: float) -> None:
        """Ask about each."""
        for item in doubtful:
            self._asked.add(item)
            # Without an answer it is run all the same, while the claim still holds.
            self._later.put(item, now + min(ANSWER_WAIT_S, self._claim_s(item) / 2))
        inquiries.ask(doubtful)

    def settle(self, item: Item) -> bool:
        """Wait for it no more; False: it wasn't waited for."""
        if item not in self._asked:
            return False
        self._asked.discard(item)
        self._later.take(item)
        item.unwatch()
        return True
