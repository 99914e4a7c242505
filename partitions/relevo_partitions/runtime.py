"""Time, threads and chance, as the rest of this package uses them.

Whatever waits, tells the time, starts a thread or draws a random token does it through a `Runtime`, so that
the same code runs on threads and, in a simulation, on coroutines with a clock of their own and one seed.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

T = TypeVar("T")


class Signal(Protocol):
    """A flag to wait for, as `threading.Event`."""

    def set(self) -> None:
        """Raise the flag; it stays up."""

    def is_set(self) -> bool:
        """Whether the flag is up."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is up, for at most ``timeout`` seconds; whether it is."""


class Mailbox(Protocol[T]):
    """What other threads leave for one that takes it, in order; unbounded, so that leaving never waits."""

    def put(self, item: T) -> None:
        """Leave ``item``; from any thread, at once."""

    def get(self, timeout: float) -> T:
        """Take the oldest item, waiting for at most ``timeout`` seconds.

        Raises:
            queue.Empty: There was none.
        """


class Task(Protocol):
    """A thread that runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for at most ``timeout`` seconds."""

    def is_alive(self) -> bool:
        """Whether it hasn't ended."""


class Runtime(Protocol):
    """Where code runs. Safe to use from several threads."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def signal(self) -> Signal:
        """A new flag, not raised."""

    def mailbox(self) -> Mailbox[Any]:
        """A new mailbox, empty."""

    def spawn(self, name: str, target: Callable[[], None]) -> Task:
        """Run ``target`` beside this, as a thread that doesn't keep the process alive."""

    def token(self) -> str:
        """A text unlike any other."""


class _ThreadMailbox(Generic[T]):
    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self.put = self._items.put

    def get(self, timeout: float) -> T:
        if timeout <= 0:
            return self._items.get_nowait()
        return self._items.get(timeout=timeout)


class ThreadRuntime:
    """Real threads, real clocks, real randomness."""

    def monotonic(self) -> float:
        """See `Runtime`."""
        return time.monotonic()

    def wall(self) -> float:
        """See `Runtime`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See `Runtime`."""
        time.sleep(seconds)

    def signal(self) -> Signal:
        """See `Runtime`."""
        return threading.Event()

    def mailbox(self) -> Mailbox[Any]:
        """See `Runtime`."""
        return _ThreadMailbox()

    def spawn(self, name: str, target: Callable[[], None]) -> Task:
        """See `Runtime`."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def token(self) -> str:
        """See `Runtime`."""
        return uuid.uuid4().hex


THREADS: Final[Runtime] = ThreadRuntime()
"""The one that processes run on."""
