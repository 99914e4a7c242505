"""Items that wait for the engine to say whether they may run. They hold a claim meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from relevo.worker.inquiries import Inquiries
from relevo.worker.item import Item
from relevo.worker.schedule import Schedule

ANSWER_WAIT_S: Final = 10.0
AHEAD_MAX: Final = 500


class Doubts:
    """What the engine was asked about and has not answered, or not started since. Used by the gate's thread.

    An answer takes some 50 ms. With as many questions under way as there are slots, eight handlers of 1 ms
    would get through 160 jobs a second, and after a restart there may be 100,000 to ask about. So it asks
    ahead: about at most twice as many as were seen to during the last answer, which is what the slots take
    until the next. Not more, as what is asked about counts as begun: a deployment waits for it.

    Args:
        later: Brings an item again when it has waited long enough.
        claim_s: How long an item's claim holds, in seconds.

    Attributes:
        ahead: How many may be asked about beyond the slots that are free.
        cleared: May run, in this order, and wait for a slot.
    """

    def __init__(self, later: Schedule, claim_s: Callable[[Item], float]) -> None:
        self._later = later
        self._claim_s = claim_s
        self._asked: set[Item] = set()
        self._seen_to = 0
        self._timed: tuple[Item, int] | None = None
        self.ahead = 0
        self.cleared: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._asked) + len(self.cleared)

    def __contains__(self, item: Item) -> bool:
        return item in self._asked

    def ask(self, inquiries: Inquiries, doubtful: list[Item], now: float) -> None:
        """Ask about each."""
        for item in doubtful:
            self._asked.add(item)
            # Without an answer it is run all the same, while the claim still holds.
            self._later.put(item, now + min(ANSWER_WAIT_S, self._claim_s(item) / 2))
        self._timed = self._timed or (doubtful[-1], self._seen_to)
        inquiries.ask(doubtful)

    def settle(self, item: Item) -> bool:
        """Wait for it no more; False: it wasn't waited for."""
        if item not in self._asked:
            return False
        self._asked.discard(item)
        self._later.take(item)
        item.unwatch()
        if self._timed is not None and self._timed[0] is item:
            self.ahead = min(AHEAD_MAX, 2 * (self._seen_to - self._timed[1]))
            self._timed = None
        return True

    def seen_to(self, count: int) -> None:
        """So many handlers have ended, or jobs turned out to need none."""
        self._seen_to += count

    def clear(self, item: Item, now: float) -> None:
        """It may run, and there is no slot."""
        item.keep(now, self._claim_s(item))
        self.cleared.append(item)

    def forget(self) -> list[Item]:
        """Wait for no answer and no slot any more; returns who did."""
        asked = [*self._asked, *self.cleared]
        for item in self._asked.copy():
            self.settle(item)
        self.cleared.clear()
        return asked
