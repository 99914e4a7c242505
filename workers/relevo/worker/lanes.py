"""Jobs of one correlation id in line: the first may be claimed, the others wait behind it."""

from __future__ import annotations

import heapq
import itertools
from typing import Final

from relevo.worker.item import Item

TURN_S: Final = 5.0
"""A process that has had a correlation id for so long gives the others a chance."""
REST_S: Final = 0.7
"""For so long: more than the pause after which the others ask again, see `locks.LOCK_WAIT_MAX_S`."""
ASIDE_MAX: Final = 8_000
"""So many of those in line don't count as a full buffer, so that one busy id doesn't stop the reading."""

_Place = tuple[bool, int, int, int, int, Item]


class Lane:
    """The line of one correlation id.

    Attributes:
        key: What the dedup store knows it by.
        first: Whose turn it is: it waits to be started, or runs, or waits for its acknowledgement.
        behind: A heap of the others.
        since: When this process began to have the id without a rest, in monotonic seconds; 0: it has not.
    """

    __slots__ = ("behind", "first", "key", "since")

    def __init__(self, key: str, first: Item) -> None:
        self.key = key
        self.first = first
        self.behind: list[_Place] = []
        self.since = 0.0


class Lanes:
    """The lines of one job type. Used by the gate's thread.

    In line stand, in this order: attempts that are not their job's first, as their job has been the first in
    line before; then by the time of the engine's hand-over, and by offset.

    Args:
        prefix: Put before a correlation id to make the key of its lock; None: the type is not ordered.
    """

    def __init__(self, prefix: str | None) -> None:
        self._prefix = prefix
        self._by_id: dict[str, Lane] = {}
        self._numbers = itertools.count()
        self._in_line = 0

    @property
    def aside(self) -> int:
        """How many in line don't count as unfinished for the buffer."""
        return min(self._in_line, ASIDE_MAX)

    def enter(self, item: Item) -> bool:
        """Whether it may wait to be started; if not, `leave` of one before it brings it."""
        correlation_id = item.job.correlation_id
        if self._prefix is None or not correlation_id:
            return True
        lane = self._by_id.get(correlation_id)
        if lane is None:
            item.lane = self._by_id[correlation_id] = Lane(self._prefix + correlation_id, item)
            return True
        item.lane = lane
        heapq.heappush(lane.behind, self._place(item))
        self._in_line += 1
        return False

    def whose_turn(self, item: Item) -> Item:
        """The first in line now, where ``item`` was it when it began to wait; they change places.

        One that may have its lock already, as the store's answer was lost, stays.
        """
        lane = item.lane
        if lane is None or not lane.behind or item.lock is not None:
            return item
        lane.first = heapq.heappushpop(lane.behind, self._place(item))[-1]
        return lane.first

    def leave(self, item: Item, now: float) -> tuple[Item, float] | None:
        """The first is gone for good; returns the next, and when to bring it: 0: now."""
        lane, item.lane = item.lane, None
        if lane is None:
            return None
        if not lane.behind:
            del self._by_id[item.job.correlation_id or ""]
            return None
        lane.first = heapq.heappop(lane.behind)[-1]
        self._in_line -= 1
        if not lane.since or now - lane.since < TURN_S:
            return lane.first, 0.0
        lane.since = 0.0
        return lane.first, now + REST_S

    def _place(self, item: Item) -> _Place:
        entry = item.entries[0]
        log = (item.job._activation.at, entry.ownership.partition, entry.offset)
        return (item.attempt == 1, *log, next(self._numbers), item)
