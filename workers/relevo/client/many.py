"""Many client calls under way at once, answered in their order: see `steps`."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final, TypeAlias

from relevo.client.results import BulkResult, JobHandle
from relevo.client.steps import Steps, Wait, left, run_async
from relevo.errors import InvalidRequest, RelevoError

IN_FLIGHT_MAX: Final = 500

Call: TypeAlias = tuple[str | None, Callable[[], Steps[JobHandle]]]
"""A job's key, where it is one, and what starts the call. It may raise, as may the steps."""


def check_in_flight(in_flight: int) -> int:
    """The number itself, where it can be one of calls under way.

    Raises:
        InvalidRequest: It can't.
    """
    if in_flight < 1:
        raise InvalidRequest(f"in_flight must be at least 1, not {in_flight!r}")
    return in_flight


def run_many(calls: Iterable[Call], in_flight: int) -> Iterator[BulkResult]:
    """Run the calls in this thread, so many at once. ``calls`` is read as answers come in."""
    source = enumerate(calls)
    woken: queue.SimpleQueue[tuple[_Slot, Wait]] = queue.SimpleQueue()
    slots: deque[_Slot] = deque()
    more = True
    try:
        while more or slots:
            while more and len(slots) < in_flight:
                found = next(source, None)
                if found is None:
                    more = False
                    break
                slots.append(_Slot(found[0], *found[1], woken))
            while slots and slots[0].result is not None:
                yield slots.popleft().result  # type: ignore[misc]
            if slots and slots[0].result is None and (not more or len(slots) >= in_flight):
                _await(woken, slots)
    finally:
        for slot in slots:
            slot.close()


def _await(woken: queue.SimpleQueue[tuple[_Slot, Wait]], slots: deque[_Slot]) -> None:
    """Wait until one of the calls can go on, or has waited long enough, and let it."""
    now = time.monotonic()
    first = min((slot.deadline for slot in slots if slot.result is None), default=now)
    try:
        slot, wait = woken.get(timeout=left(first))
    except queue.Empty:
        now = time.monotonic()
        for late in [each for each in slots if each.result is None and each.deadline <= now]:
            late.time_out()
    else:
        slot.go_on(wait)


class _Slot:
    """One call."""

    __slots__ = ("_index", "_key", "_steps", "_wait", "_woken", "result")

    def __init__(
        self,
        index: int,
        key: str | None,
        call: Callable[[], Steps[JobHandle]],
        woken: queue.SimpleQueue[tuple[_Slot, Wait]],
    ) -> None:
        self._index = index
        self._key = key
        self._woken = woken
        self._wait: Wait | None = None
        self._steps: Steps[JobHandle] | None = None
        self.result: BulkResult | None = None
        try:
            self._steps = call()
        except RelevoError as error:
            self._end(error=error)
        else:
            self._step(self._steps.__next__)

    @property
    def deadline(self) -> float:
        """When it has waited long enough, in monotonic seconds."""
        wait = self._wait
        return wait.deadline if wait is not None and wait.deadline is not None else float("inf")

    def go_on(self, wait: Wait) -> None:
        """What it waits for has come, unless it has stopped waiting for that."""
        if self.result is not None or wait is not self._wait or self._steps is None:
            return
        steps = self._steps
        error = wait.future.exception()
        if error is not None:
            self._step(lambda: steps.throw(error))
        else:
            self._step(lambda: steps.send(wait.future.result()))

    def time_out(self) -> None:
        """It has waited long enough."""
        steps = self._steps
        if steps is not None:
            self._step(lambda: steps.throw(TimeoutError()))

    def close(self) -> None:
        """Nobody waits for it any more."""
        if self.result is None and self._steps is not None:
            self._steps.close()

    def _step(self, move: Callable[[], Wait]) -> None:
        try:
            wait = move()
        except StopIteration as stop:
            self._end(handle=stop.value)
        except RelevoError as error:
            self._end(error=error)
        else:
            self._wait = wait
            wait.future.add_done_callback(lambda _done: self._woken.put((self, wait)))

    def _end(self, *, handle: JobHandle | None = None, error: RelevoError | None = None) -> None:
        self._wait = None
        self.result = BulkResult(self._index, self._key, handle, error)


async def run_many_async(calls: Iterable[Call], in_flight: int) -> AsyncIterator[BulkResult]:
    """Run the calls as tasks of this event loop, so many at once."""
    source = enumerate(calls)
    tasks: deque[asyncio.Task[BulkResult]] = deque()
    try:
        while True:
            while len(tasks) < in_flight and (found := next(source, None)) is not None:
                tasks.append(asyncio.create_task(_one(found[0], *found[1])))
            if not tasks:
                return
            # Stays in the queue until it is done: who stops waiting must not leave it running.
            await asyncio.wait([tasks[0]])
            yield tasks.popleft().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one(index: int, key: str | None, call: Callable[[], Steps[JobHandle]]) -> BulkResult:
    try:
        return BulkResult(index, key, handle=await run_async(call()))
    except RelevoError as error:
        return BulkResult(index, key, error=error)
