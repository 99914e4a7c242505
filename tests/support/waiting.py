"""Waiting for facts instead of for time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(fact: Callable[[], object], what: str, *, timeout_s: float = 30.0) -> None:
    """Returns as soon as the fact holds.

    Args:
        fact: Asked again and again; anything true ends the wait.
        what: The fact in words, for the failure.
        timeout_s: Seconds after which the test fails; generous, since it is only ever used up by a failure.
    """
    deadline = time.monotonic() + timeout_s
    while not fact():
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {timeout_s:g} s: {what}")
        time.sleep(0.02)
