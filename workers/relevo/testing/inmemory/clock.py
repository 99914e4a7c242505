"""Virtual time: a number that only the test moves, and the worker's modules made to read it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

_driven: Final = threading.local()


class VirtualClock:
    """Time as the test moves it.

    Attributes:
        now_ms: Milliseconds since the Unix epoch.
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        # Small numbers: sums of them are exact enough to be compared.
        self._began_ms = now_ms - 1_000

    def monotonic(self) -> float:
        """Seconds since a moment before the start."""
        return (self.now_ms - self._began_ms) / 1_000

    def ms_at(self, monotonic: float) -> int:
        """The first millisecond that isn't before ``monotonic``, and at least the next one."""
        return max(self.now_ms + 1, self._began_ms + math.ceil(monotonic * 1_000))

    @contextmanager
    def driving(self) -> Iterator[None]:
        """While this lasts, the worker's parts that are called in this thread read this clock."""
        before = getattr(_driven, "clock", None)
        _driven.clock = self
        try:
            yield
        finally:
            _driven.clock = before


class _WorkerTime:
    """Stands for the module `time`: virtual in a thread that drives an engine, the real one in any other.

    Handlers and real workers in the same process run in other threads or outside of `driving`, and notice
    nothing.
    """

    def monotonic(self) -> float:
        clock: VirtualClock | None = getattr(_driven, "clock", None)
        return time.monotonic() if clock is None else clock.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


_lock: Final = threading.Lock()
_users = 0


def _told_by() -> tuple[ModuleType, ...]:
    from relevo.dedup import link
    from relevo.worker import claim_keeper, gate, leases

    return claim_keeper, gate, leases, link


@contextmanager
def virtual_time() -> Iterator[None]:
    """While this lasts, the worker's modules that tell time can be driven by a `VirtualClock`."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for module in _told_by():
                vars(module)["time"] = _WorkerTime()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                for module in _told_by():
                    vars(module)["time"] = time
