"""One at a time, whoever comes: threads, coroutines of any loop, and the one thread that works for these."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

_CALLS: Final = 0
_OTHERS: Final = 1


class Line:
    """A lock that is given on in the order of coming, and for which coroutines wait without a thread.

    Short calls have a queue of their own, and the two queues take turns: a call never waits for all the
    transactions that came before it. Whoever entered leaves, from whatever thread; a forked process begins
    with an empty line.
    """

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._taken = False
        self._last = _OTHERS
        self._queues: tuple[deque[Future[None]], ...] = (deque(), deque())

    def enter(self, wait_s: float, *, call: bool = False) -> bool:
        """Whether it became one's turn within so many seconds."""
        place = self._join(call)
        try:
            place.result(wait_s)
        except TimeoutError:
            return not self._gives_up(place)
        except BaseException:
            self._goes(place)
            raise
        return True

    async def aenter(self, wait_s: float) -> bool:
        """`enter` for coroutines."""
        place = self._join(call=False)
        try:
            async with asyncio.timeout(wait_s):
                await seen(place)
        except TimeoutError:
            return not self._gives_up(place)
        except BaseException:
            self._goes(place)
            raise
        return True

    def leave(self) -> None:
        """The next one's turn."""
        with self._lock:
            for kind in (1 - self._last, self._last):
                if self._queues[kind]:
                    self._last = kind
                    self._queues[kind].popleft().set_result(None)
                    return
            self._taken = False

    def _join(self, call: bool) -> Future[None]:
        if os.getpid() != self._pid:
            self._start_over()  # whoever was in it goes on in the parent
        place: Future[None] = Future()
        with self._lock:
            if self._taken:
                self._queues[_CALLS if call else _OTHERS].append(place)
            else:
                self._taken = True
                place.set_result(None)
        return place

    def _gives_up(self, place: Future[None]) -> bool:
        """False: its turn has come this very moment."""
        with self._lock:
            for queue in self._queues:
                if place in queue:
                    queue.remove(place)
                    return True
        return False

    def _goes(self, place: Future[None]) -> None:
        if not self._gives_up(place):
            self.leave()


class NoThread(Exception):  # noqa: N818 - named for what happened
    """There is none, and none can be started: the work was not begun, and never will be."""


class OneThread:
    """A thread for what coroutines can't wait for themselves; made when it is first needed.

    Not the event loop's own: its few threads may all be waiting for what is to be done here.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._open = True
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], T], undo: Callable[[], None] | None = None) -> T:
        """The outcome of ``work``. It goes on to its end even if the caller is cancelled, or its loop ends.

        Args:
            work: Called in the thread.
            undo: Called when ``work`` went well and nobody waits for it any more.

        Raises:
            NoThread: The system gives no thread, or the interpreter is ending.
        """
        running = self._submit(work)

        def clean_up(ended: Future[T]) -> None:
            if undo is not None and ended.exception() is None:
                undo()

        try:
            await seen(running)
        except BaseException:
            running.add_done_callback(clean_up)
            raise
        return running.result()

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        if os.getpid() != self._pid:
            self._start_over()  # a fork leaves the thread to the parent
        with self._lock:
            executor = self._executor or ThreadPoolExecutor(1, thread_name_prefix=self._name)
            try:
                running = executor.submit(work)
            except RuntimeError as error:
                if executor is not self._executor:
                    # It has queued the work before it looked for a thread.
                    executor.shutdown(wait=False, cancel_futures=True)
                raise NoThread(str(error)) from error
            if self._open:
                self._executor = executor
            else:
                executor.shutdown(wait=False)  # a transaction that outlives its store ends all the same
        return running

    def close(self) -> None:
        """End the thread when its work is done."""
        self._open = False
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._executor is not None:
                self._executor.shutdown(wait=False)
            self._executor = None


async def seen(ended: Future[T]) -> None:
    """Wait until it has ended, however; a cancelled caller leaves it as it is."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    def tell(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile, and nobody waits
            loop.call_soon_threadsafe(wake)

    if not ended.done():
        ended.add_done_callback(tell)
        await waiting
