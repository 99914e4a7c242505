"""The leader's clock: never goes back, and follows the wall clock without jumping with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SLEW_MAX: Final = 0.1
"""Largest part of elapsed time by which the clock is hurried or held back towards the wall clock."""


class LeaderClock:
    """Milliseconds since the Unix epoch, advanced by the monotonic clock.

    A wall clock that is set forward by an hour must not end every lease at once, and one that is set back
    must not make events older than the ones before: the difference is caught up at `SLEW_MAX` of the elapsed
    time.

    Args:
        wall: Seconds since the Unix epoch.
        monotonic: Seconds of a clock that never goes back.
        last_at: Time of the log's last event in milliseconds; the clock starts no earlier.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float], last_at: int) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._read_at = monotonic()
        self._now = max(wall() * 1000.0, float(last_at))

    def now(self) -> int:
        """The present, no earlier than any answer before."""
        read_at = self._monotonic()
        elapsed = max(0.0, read_at - self._read_at) * 1000.0
        self._read_at = read_at
        advanced = self._now + elapsed
        slew = SLEW_MAX * elapsed
        self._now = advanced + max(-slew, min(slew, self._wall() * 1000.0 - advanced))
        return int(self._now)
