"""Lets a job run alone in its process: whatever it does to the process, it does to itself only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from relevo.worker.item import Item

Wake = Callable[[], None]


class Solitude:
    """Who is at work in one process: many, or a single suspect. Shared by all job types; for any thread.

    A suspect that asks for the process gets it when those at work have ended, and from then on nobody else
    begins: suspects one after the other, in the order of their asking.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._at_work = 0
        self._alone = False
        self._asking: dict[Desk, Wake] = {}
        self._shut_out: dict[Desk, Wake] = {}

    def enter(self, desk: Desk, count: int, wake: Wake) -> bool:
        """``count`` more begin; False: not now, ``wake`` is called when it is worth another try."""
        with self._lock:
            if self._alone or self._asking:
                self._shut_out[desk] = wake
                return False
            self._at_work += count
            return True

    def enter_alone(self, desk: Desk, wake: Wake) -> bool:
        """One begins that must be alone; False: not now, and nobody else begins either, until `withdraw`."""
        with self._lock:
            self._asking.setdefault(desk, wake)
            if self._at_work or next(iter(self._asking)) is not desk:
                return False
            del self._asking[desk]
            self._at_work = 1
            self._alone = True
            return True

    def withdraw(self, desk: Desk) -> None:
        """A suspect of ``desk`` that asked for the process wants it no more."""
        with self._lock:
            if self._asking.pop(desk, None) is None:
                return
            wakes = self._next()
        _call(wakes)

    def leave(self, count: int) -> None:
        """So many have ended."""
        with self._lock:
            self._at_work -= count
            if not self._at_work:
                self._alone = False
            wakes = self._next()
        _call(wakes)

    def _next(self) -> list[Wake]:
        """Who may try again now."""
        if self._alone:
            return []
        if self._asking:
            return [] if self._at_work else [next(iter(self._asking.values()))]
        wakes, self._shut_out = list(self._shut_out.values()), {}
        return wakes


def _call(wakes: list[Wake]) -> None:
    for wake in wakes:
        wake()


class Desk:
    """One job type's part in a `Solitude`. For the gate's thread.

    Args:
        solitude: Shared with the other types of the process.
        wake: Called, from any thread, when it is worth another try.

    Attributes:
        shut_out: Whether the last try was in vain; `wake` follows.
    """

    def __init__(self, solitude: Solitude, wake: Wake) -> None:
        self._solitude = solitude
        self._wake = wake
        self._asking = False
        self._inside: set[Item] = set()
        self.shut_out = False

    def enter(self, items: Sequence[Item]) -> bool:
        """Whether all of these may begin now."""
        self.withdraw()
        self.shut_out = not self._solitude.enter(self, len(items), self._wake)
        if not self.shut_out:
            self._inside.update(items)
        return not self.shut_out

    def enter_alone(self, item: Item) -> bool:
        """Whether this one may begin now, alone; if not, nobody else begins before it."""
        self._asking = self.shut_out = not self._solitude.enter_alone(self, self._wake)
        if not self.shut_out:
            self._inside.add(item)
        return not self.shut_out

    def withdraw(self) -> None:
        """A suspect that waits for the process wants it no more."""
        if self._asking:
            self._asking = self.shut_out = False
            self._solitude.withdraw(self)

    def leave(self, items: Iterable[Item]) -> None:
        """These have ended, or didn't begin after all. Twice does no harm."""
        mine = self._inside.intersection(items)
        if mine:
            self._inside -= mine
            self._solitude.leave(len(mine))

    def close(self) -> None:
        """Whatever is still at work here is nobody's concern any more."""
        self.withdraw()
        self.leave(list(self._inside))
