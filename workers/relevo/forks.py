"""Objects with threads and sockets don't survive a fork: say so instead of hanging."""

from __future__ import annotations

import os

from relevo.errors import UsedAfterFork


class ForkGuard:
    """Remembers the process that something was made in.

    librdkafka's threads exist only there: in a forked child a producer accepts records and never sends one.
    """

    __slots__ = ("_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def foreign(self) -> bool:
        """Whether this is another process."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Do nothing in the process the object was made in.

        Raises:
            UsedAfterFork: This is another process.
        """
        if os.getpid() != self._pid:
            raise UsedAfterFork(self._what)
