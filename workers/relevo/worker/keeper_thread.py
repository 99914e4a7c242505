"""A thread that comes round again and again to keep something of running handlers alive."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final, Protocol

_log: Final = logging.getLogger("relevo.worker")


class Keeper(Protocol):
    """What one job type has to keep alive."""

    def tick(self) -> None:
        """Do what is due."""


class KeeperThread:
    """One thread for all types of a process.

    Args:
        what: What it renews, for its name and its log lines.
        every_s: How often it comes round.
    """

    def __init__(self, what: str, every_s: float) -> None:
        self._what = what
        self._every_s = every_s
        self._keepers: list[Keeper] = []
        self._stop = threading.Event()
        #: When it last came round, in monotonic seconds; 0: not yet.
        self.turned_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"relevo-{what}", daemon=True)

    def add(self, keeper: Keeper) -> None:
        """Serve ``keeper`` too."""
        self._keepers = [*self._keepers, keeper]

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.turned_at = time.monotonic()
            for keeper in self._keepers:
                # Each by itself: where all wait for a silent store, that adds up.
                self.turned_at = time.monotonic()
                try:
                    keeper.tick()
                except Exception:
                    # The others' must not run out because of this one.
                    _log.exception("renewing %s failed", self._what)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
