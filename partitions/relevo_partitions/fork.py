"""Threads and sockets don't survive a fork: objects that own some say so at first use in the child."""

from __future__ import annotations

import os

from relevo_partitions.errors import UsedAfterFork


class ForkGuard:
    """Remembers the process that made an object.

    Args:
        what: Name of the object, for the error's text.
    """

    __slots__ = ("_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise where this isn't the process that made the object.

        Raises:
            UsedAfterFork: The process was forked since.
        """
        if os.getpid() != self._pid:
            raise UsedAfterFork(self._what)
