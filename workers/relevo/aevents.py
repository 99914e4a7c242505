"""Reading the job log in coroutines."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Any

from relevo.errors import Closed
from relevo.events import JobEvent, JobEvents


class AsyncJobEvents:
    """`JobEvents` for ``async for``, with the same arguments. Open it with ``async with``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._args = (args, kwargs)
        self._events: JobEvents | None = None
        self._ready: deque[JobEvent] = deque()
        self._positions: dict[int, int] = {}

    async def __aenter__(self) -> AsyncJobEvents:
        args, kwargs = self._args
        self._events = await asyncio.to_thread(JobEvents, *args, **kwargs)
        self._positions = self._events.positions
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._events is not None:
            await asyncio.to_thread(self._events.close)

    @property
    def positions(self) -> dict[int, int]:
        """As `JobEvents.positions`, counting what the iteration has given out."""
        return dict(self._positions)

    def __aiter__(self) -> AsyncJobEvents:
        return self

    async def __anext__(self) -> JobEvent:
        events = self._events
        if events is None:
            raise Closed("open it first: async with AsyncJobEvents(...) as events")
        while not self._ready:
            self._ready.extend(await asyncio.to_thread(events.read, 0.5))
            if not self._ready and events.ended:
                raise StopAsyncIteration
        event = self._ready.popleft()
        self._positions[event.partition] = event.offset + 1
        return event
