"""Client calls written once, as steps that wait for futures, and run by a blocking driver or an async one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for ``future``; `TimeoutError` after ``deadline`` (monotonic seconds; None: never)."""

    future: Future[Any]
    deadline: float | None


WAIT_MAX_S: Final = 1e9
"""Python refuses to wait much longer than that, some 30 years."""
Steps: TypeAlias = Generator[Wait, Any, T]


def run(steps: Steps[T]) -> T:
    """Run ``steps`` in this thread."""
    try:
        wait = next(steps)
        while True:
            try:
                value = wait.future.result(_left(wait.deadline))
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def run_async(steps: Steps[T]) -> T:
    """Run ``steps`` in this coroutine; when it is cancelled, so are they."""
    try:
        wait = next(steps)
        while True:
            try:
                value = await asyncio.wait_for(asyncio.wrap_future(wait.future), _left(wait.deadline))
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


def left(deadline: float) -> float:
    """Seconds until then, as a lock can wait; a user's may be infinite."""
    return min(max(0.0, deadline - time.monotonic()), WAIT_MAX_S)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else left(deadline)
