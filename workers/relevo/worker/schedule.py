"""Items that are to be brought again at a time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from relevo.worker.item import Item


class Schedule:
    """A heap of items by `Item.due`; an item counts once, for the time it was put last."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._order = itertools.count()

    def put(self, item: Item, due: float) -> None:
        """Bring ``item`` again at ``due`` (monotonic seconds)."""
        item.due = due
        heapq.heappush(self._heap, (due, next(self._order), item))

    def take(self, item: Item) -> None:
        """Don't bring it: it is seen to in another way."""
        item.due = 0.0

    def next_at(self, otherwise: float) -> float:
        """When the next item is due, or ``otherwise`` where that is sooner."""
        return min(otherwise, self._heap[0][0]) if self._heap else otherwise

    def due(self, now: float) -> Iterator[Item]:
        """What is due at ``now``, the earliest first."""
        while self._heap and self._heap[0][0] <= now:
            due, _, item = heapq.heappop(self._heap)
            if item.due == due:
                item.due = 0.0
                yield item
