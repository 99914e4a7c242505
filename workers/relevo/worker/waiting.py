"""The items that wait to be started, in order, and which of them may begin."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from relevo.stats import WorkerStats
from relevo.worker.claims import Claims
from relevo.worker.item import Item
from relevo.worker.lanes import Lanes
from relevo.worker.solitude import Desk

_log: Final = logging.getLogger("relevo.worker")
SUSPECT_AFTER: Final = 2
"""So many silent attempts make a suspect: one may be anybody's bad luck."""


class Waiting:
    """What has arrived and was not started yet. Used by the gate's thread.

    A suspect has its turn as everybody; when it has come, nobody else begins before it.

    Args:
        desk: Says who may begin.
        still_ours: Whether an item may be started at all; it is seen to where it may not.
        suspect_after: So many silent attempts make a job a suspect; None: none is one.
        lanes: Says who is the first of a correlation id by now.
    """

    def __init__(
        self, desk: Desk, still_ours: Callable[[Item], bool], suspect_after: int | None, lanes: Lanes
    ) -> None:
        self._lanes = lanes
        self._desk = desk
        self._still_ours = still_ours
        self._suspect_after = suspect_after
        self._items: deque[Item] = deque()
        self._probed: Item | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """One more, behind all others."""
        self._items.append(item)

    def put_first(self, item: Item) -> None:
        """One that is to be the next."""
        self._items.appendleft(item)

    def is_suspect(self, item: Item) -> bool:
        """Whether it may be what ended the workers it ran at."""
        return self._suspect_after is not None and item.expiries >= self._suspect_after

    @property
    def doubtful(self) -> bool:
        """Whether the engine is asked about the next one before it begins."""
        return bool(self._items) and self._items[0].entries[0].doubtful

    def keep_committed(self) -> None:
        """Forget those that another worker is given if they don't begin here."""
        self._items = deque(item for item in self._items if item.entries[0].committed)

    def next(self, limit: int, claims: Claims, now: float, slots: int) -> list[Item]:
        """Who is to begin now: at most ``limit``, or the suspect whose turn it is. They are at the desk.

        Beyond ``slots`` only such as the engine is asked about first.
        """
        batch: list[Item] = []
        items = self._items
        while items and len(batch) < limit:
            item = items[0] = self._lanes.whose_turn(items[0])
            if not self._still_ours(item):
                items.popleft()
            elif len(batch) >= slots and not item.entries[0].doubtful:
                break
            elif not self.is_suspect(item):
                batch.append(items.popleft())
            elif batch:
                break
            else:
                return self._next_alone(item, claims, now)
        if not batch:
            self._desk.withdraw()
        elif not self._desk.enter(batch):
            items.extendleft(reversed(batch))
            return []
        return batch

    def _next_alone(self, item: Item, claims: Claims, now: float) -> list[Item]:
        if self._desk.enter_alone(item):
            self._probed = None
            return [self._items.popleft()]
        if self._probed is not item:
            # All wait for it from now on, and for nothing while another worker has its claim.
            self._items.popleft()
            mine = claims.take([item], now)
            claims.give_back(mine)
            self._items.extendleft(mine)
            self._probed = item if mine else None
            if not mine:
                self._desk.withdraw()
        return []


def note_suspect(item: Item, stats: WorkerStats) -> None:
    """A suspect begins: people shall hear of it while it can still be asked what it does."""
    stats.add("suspects")
    _log.warning(
        "%s job %r runs alone: %d attempts of it fell silent, it may be what ended their workers",
        item.job.type,
        item.key,
        item.expiries,
    )
