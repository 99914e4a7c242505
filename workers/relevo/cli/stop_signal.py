"""The first signal ends in order, any other at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopSignal:
    """SIGINT and SIGTERM: the first one ends the watching, in order.

    Any other (a second one, or one while the cluster still starts) ends the command at once; the keepers of
    the processes see to the rest.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._watching = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def wait(self, seconds: float) -> bool:
        """Whether the watching is to end, now or within so many seconds."""
        self._watching = True
        return self._asked.wait(seconds)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._watching or self._asked.is_set():
            raise KeyboardInterrupt
        self._asked.set()
