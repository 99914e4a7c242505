"""How a node's process is asked to stop: by SIGTERM or SIGINT, or from within."""

from __future__ import annotations

import os
import select
import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class StopSignals:
    """The first signal asks to stop, a second one ends the process at once.

    The main thread waits for a pipe that the signal itself writes to, not for a `threading.Event`: a signal
    that arrives just before such a wait begins, or on another thread, would set Python's flag and leave the
    main thread asleep, deaf to SIGTERM; and one that arrives within the event's lock would wait for itself.

    To be entered, and waited for, by the main thread.

    Attributes:
        asked: Set once the process was asked to stop; for other threads to wait for.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read)
        os.close(self._write)

    def ask(self) -> None:
        """As a first signal; from any thread, while the main one is inside."""
        self.asked.set()
        os.write(self._write, b"\0")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it was asked to stop, for at most ``timeout`` seconds; whether it was."""
        return bool(select.select([self._read], [], [], timeout)[0])

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.asked.is_set():
            os._exit(128 + number)
        self.asked.set()
