"""Waiting for facts instead of for time."""

# ruff: noqa: N818 - named by what happened, as all errors of this package
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from relevo.testing.faults import DrillError

POLL_S: Final = 0.02
"""Seconds between two looks."""
_ASK_S: Final = 0.01
T = TypeVar("T")


class NotInTime(DrillError, TimeoutError):
    """What was waited for didn't come true in the time given."""


def wait_for(fact: Callable[[], T], what: str, *, timeout_s: float = 30.0) -> T:
    """Returns as soon as the fact holds.

    Args:
        fact: Asked again and again until it gives anything true.
        what: The fact in words, for the error.
        timeout_s: The longest wait, in seconds. Generous: only a failure ever uses it up.

    Returns:
        What the fact gave.

    Raises:
        NotInTime: It didn't hold in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = fact()
        if found:
            return found
        if time.monotonic() > deadline:
            raise NotInTime(f"not so after {timeout_s:g} s: {what}")
        time.sleep(POLL_S)


class FirstAnswer:
    """Asks several all the time, each in a thread of its own, and notes when the first one answered.

    Args:
        questions: Each gives whether it is answered now, within seconds, and never raises.
    """

    def __init__(self, questions: Sequence[Callable[[], bool]]) -> None:
        self._answered = threading.Event()
        self._over = threading.Event()
        self._moments: list[float] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(question,), name="first-answer", daemon=True)
            for question in questions
        ]

    def __enter__(self) -> Self:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ask no more."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def at_wall(self, timeout_s: float = 30.0) -> float:
        """When the first question was asked that was answered, in Unix milliseconds.

        Raises:
            NotInTime: None was, after ``timeout_s`` seconds.
        """
        if not self._answered.wait(timeout_s):
            raise NotInTime(f"nobody answered after {timeout_s:g} s")
        return min(self._moments)

    def _ask(self, question: Callable[[], bool]) -> None:
        while not self._over.is_set() and not self._answered.is_set():
            # Before it is asked: whoever relied on the answer can't have been quicker than that.
            asked = time.time() * 1000
            if question():
                self._moments.append(asked)
                self._answered.set()
                return
            self._over.wait(_ASK_S)
