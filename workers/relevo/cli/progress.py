"""How far a command has come, on standard error, and only where a person looks at it."""

from __future__ import annotations

import sys
import time
from typing import Final, TextIO

_EVERY_S: Final = 0.1
_BAR: Final = 30


class Progress:
    """One line that is written over and over.

    Args:
        total: What counts as all, in any unit; 0 where it isn't known.
        stream: Where to write; standard error by default. Nothing is written unless it is a terminal.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._next = 0.0
        self._began = time.monotonic()
        self._drawn = False

    def update(self, done: int, text: str, *, last: bool = False) -> None:
        """Shows that ``done`` of the total is done, and a text; not more often than an eye can follow."""
        now = time.monotonic()
        if not self._shown or (now < self._next and not last):
            return
        self._next = now + _EVERY_S
        bar = ""
        if self._total:
            share = min(1.0, done / self._total)
            filled = int(share * _BAR)
            bar = f"[{'#' * filled}{'-' * (_BAR - filled)}] {share:4.0%}  "
        self._stream.write(f"\r{bar}{text}  {now - self._began:.1f} s\x1b[K")
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Takes the line away, so that something else can be written."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
