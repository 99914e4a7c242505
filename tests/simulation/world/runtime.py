"""`relevo_partitions.runtime.Runtime` on fibers and virtual time."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tests.simulation.world.scheduler import Fiber, Process

EPOCH_S: Final = 1_700_000_000.0
"""What the clocks on the wall show at the beginning, in Unix seconds."""


class SimSignal:
    """See `relevo_partitions.runtime.Signal`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._up = False
        self._waiting: list[tuple[Fiber, int]] = []

    def set(self) -> None:
        self._up = True
        waiting, self._waiting = self._waiting, []
        for fiber, turn in waiting:
            self._process.scheduler.wake(fiber, turn)

    def is_set(self) -> bool:
        return self._up

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._process.scheduler
        if self._up:
            scheduler.give_way()
        elif timeout is None or timeout > 0:
            self._waiting.append(scheduler.ticket())
            if not scheduler.block(timeout):
                self._waiting = [each for each in self._waiting if each[0] is not scheduler.current]
        return self._up


class SimMailbox:
    """See `relevo_partitions.runtime.Mailbox`; with the calls of `queue.SimpleQueue` besides."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._reader: Fiber | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._process.scheduler.wake(self._reader)

    def get(self, timeout: float) -> Any:
        scheduler = self._process.scheduler
        if timeout > 0:
            self._reader = scheduler.current
            if self._items:
                scheduler.give_way()
            else:
                scheduler.block(timeout)
            self._reader = None
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(0.0)


class SimTask:
    """See `relevo_partitions.runtime.Task`."""

    def __init__(self, process: Process, fiber: Fiber) -> None:
        self._process = process
        self._fiber = fiber

    def join(self, timeout: float | None = None) -> None:
        scheduler = self._process.scheduler
        if not self._fiber.done and (timeout is None or timeout > 0):
            self._fiber.ended.append(scheduler.ticket())
            scheduler.block(timeout)

    def is_alive(self) -> bool:
        return not self._fiber.done


class SimRuntime:
    """The clocks, threads and chance of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scheduler = process.scheduler

    def monotonic(self) -> float:
        return self._scheduler.now + 1000.0

    def wall(self) -> float:
        return EPOCH_S + self._scheduler.now + self._process.wall_offset

    def sleep(self, seconds: float) -> None:
        self._scheduler.block(max(0.0, seconds))

    def signal(self) -> SimSignal:
        return SimSignal(self._process)

    def mailbox(self) -> SimMailbox:
        return SimMailbox(self._process)

    def spawn(self, name: str, target: Callable[[], None]) -> SimTask:
        return SimTask(self._process, self._process.spawn(name, target))

    def token(self) -> str:
        return self._scheduler.token()
