"""Reading the job log in coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final

from relevo.errors import Closed
from relevo.events.event_choice import OnGap, Start
from relevo.events.events import JobEvents
from relevo.events.job_event import JobEvent
from relevo_schemas.records import Event

READ_S: Final = 0.5


class AsyncJobEvents:
    """`JobEvents` for ``async for``, with the same arguments. Open it with ``async with``.

    A read that is cancelled (`asyncio.timeout`, `asyncio.wait_for`) loses nothing: the next one goes on with
    what it had found.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        cluster: str | None = None,
        from_: Start = "beginning",
        *,
        types: Collection[str] | None = None,
        keys: Collection[str] | None = None,
        kinds: Collection[str | type[Event]] | None = None,
        group: str | None = None,
        follow: bool = True,
        on_gap: OnGap = "error",
        learn_types: bool = True,
        **kafka_options: Any,
    ) -> None:
        self._open: Callable[[], JobEvents] = lambda: JobEvents(
            bootstrap,
            cluster,
            from_,
            types=types,
            keys=keys,
            kinds=kinds,
            group=group,
            follow=follow,
            on_gap=on_gap,
            learn_types=learn_types,
            **kafka_options,
        )
        self._events: JobEvents | None = None
        # One thread of its own: the loop's default ones are few, and a wait for events would hold one.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="relevo-events")
        self._waiting: asyncio.Future[bool] | None = None

    async def __aenter__(self) -> AsyncJobEvents:
        opening = asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        try:
            self._events = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            self._thread.shutdown(wait=False)
            raise
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back the connection. Twice does no harm."""
        events, self._events = self._events, None
        if events is None:
            return
        # In the loop's own threads: ours may be waiting for events, and this ends its wait.
        closing = asyncio.get_running_loop().run_in_executor(None, events.close)
        if self._waiting is not None:
            self._waiting.add_done_callback(_heard)
            self._waiting = None
        self._thread.shutdown(wait=False)
        await asyncio.shield(closing)

    @property
    def positions(self) -> dict[int, int]:
        """As `JobEvents.positions`."""
        return self._opened().positions

    @property
    def untyped(self) -> int:
        """As `JobEvents.untyped`."""
        return self._opened().untyped

    @property
    def ended(self) -> bool:
        """As `JobEvents.ended`."""
        return self._waiting is None and self._opened().ended

    def __aiter__(self) -> AsyncJobEvents:
        return self

    async def __anext__(self) -> JobEvent:
        while True:
            found = await self.read(READ_S, 1)
            if found:
                return found[0]
            if self.ended:
                raise StopAsyncIteration

    async def read(self, timeout: float = 1.0, limit: int | None = None) -> list[JobEvent]:
        """As `JobEvents.read`."""
        events = self._opened()
        deadline = time.monotonic() + timeout
        while self._waiting is not None or not events.at_hand:
            left = deadline - time.monotonic()
            await self._wait(events, max(0.0, min(left, READ_S)))
            if left <= 0 or (events is self._events and self.ended):
                break
        # Taken here and not in the thread: what a cancelled wait has found stays where it is.
        return events.read(0, limit) if events.at_hand else []

    async def _wait(self, events: JobEvents, timeout: float) -> None:
        waiting = self._waiting
        if waiting is None:
            loop = asyncio.get_running_loop()
            waiting = self._waiting = loop.run_in_executor(self._thread, events.wait, timeout)
        # Doesn't cancel it when we are cancelled.
        await asyncio.wait({waiting})
        if self._waiting is waiting:
            self._waiting = None
        waiting.result()

    async def commit(self, timeout: float = 10.0) -> bool:
        """As `JobEvents.commit`."""
        events = self._opened()
        return await asyncio.get_running_loop().run_in_executor(self._thread, events.commit, timeout)

    def _opened(self) -> JobEvents:
        if self._events is None:
            raise Closed("open it first: async with AsyncJobEvents(...) as events")
        return self._events


def _close_unused(opening: asyncio.Future[JobEvents]) -> None:
    """Nobody waits for it any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _heard(waiting: asyncio.Future[bool]) -> None:
    """Nobody waits for it any more: an error in it is ours alone, as we closed the reader under it."""
    if not waiting.cancelled():
        waiting.exception()
