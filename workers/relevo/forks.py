"""Objects with threads and sockets don't survive a fork: say so instead of hanging."""

from __future__ import annotations

import os
from typing import Final

from relevo.errors import UsedAfterFork

_CAME_BACK: Final = (
    b"relevo: a process that a handler forked came back out of the handler, and was ended: leave it with "
    b"os._exit(), or use subprocess\n"
)


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

    def end_child(self) -> None:
        """End a child that comes back to where its parent's work goes on.

        A handler that forks, and whose child returns from it too, would leave a second worker behind: without
        threads, but with a copy of every coroutine, which would run on and repeat their effects.
        """
        if self.foreign:
            os.write(2, _CAME_BACK)
            os._exit(70)

    def check(self) -> None:
        """Do nothing in the process the object was made in.

        Raises:
            UsedAfterFork: This is another process.
        """
        if os.getpid() != self._pid:
            raise UsedAfterFork(self._what)
