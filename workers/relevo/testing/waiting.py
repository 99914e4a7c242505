"""Waiting for facts instead of for time."""

# ruff: noqa: N818 - named by what happened, as all errors of this package
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from relevo.testing.faults import DrillError

POLL_S: Final = 0.02
"""Seconds between two looks."""
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
