"""The first signal ends in order, any other at once."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Final

_WAKE_S: Final = 0.1


class StopSignal:
    """SIGINT and SIGTERM: the first one ends the watching, in order.

    Any other (a second one, or one while the cluster still starts) ends the command at once; the keepers of
    the processes see to the rest.
    """

    def __init__(self) -> None:
        # No event: a signal within the lock of one that is being waited for would wait for itself.
        self._asked = False
        self._watching = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def wait(self, seconds: float) -> bool:
        """Whether the watching is to end, now or within so many seconds. For the main thread."""
        self._watching = True
        until = time.monotonic() + seconds
        while not self._asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _WAKE_S))
        return self._asked

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._watching or self._asked:
            raise KeyboardInterrupt
        self._asked = True
