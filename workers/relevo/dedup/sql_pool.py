"""Connections to a database, lent to one caller at a time, and ended when the database falls silent."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from relevo.errors import StoreUnavailable

C = TypeVar("C")
R = TypeVar("R")

_IDLE_END_S: Final = 5.0
_DEAD_BEFORE_S: Final = 1.0
"""A connection that was dead before its call fails within this time, in seconds."""


class Watchdog:
    """Cuts connections whose call has no answer in time.

    A server that is frozen, or a network that drops packets without a word, leaves a client waiting for
    ever: the server's own time-outs can't help. Cutting the socket wakes the waiting thread or coroutine
    with the driver's ordinary error.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._armed: dict[object, tuple[float, socket.socket]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, tap: socket.socket, seconds: float) -> Iterator[None]:
        """Cut ``tap`` unless the block ends in so many seconds."""
        call = object()
        with self._news:
            self._armed[call] = (time.monotonic() + seconds, tap)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="relevo-sql-watchdog", daemon=True)
                self._thread.start()
            elif len(self._armed) == 1:
                self._news.notify()
        try:
            yield
        finally:
            with self._news:
                self._armed.pop(call, None)

    def _run(self) -> None:
        with self._news:
            while True:
                if not self._armed and not self._news.wait(_IDLE_END_S) and not self._armed:
                    self._thread = None
                    return
                now = time.monotonic()
                for call, (deadline, tap) in list(self._armed.items()):
                    if deadline <= now:
                        del self._armed[call]
                        cut(tap)
                if self._armed:
                    # Calls are limited to about the same time, so a later one is not due before this.
                    next_due = min(deadline for deadline, _ in self._armed.values())
                    self._news.wait(max(0.001, next_due - now))


def cut(tap: socket.socket) -> None:
    """End a connection's traffic; whoever waits for it wakes up."""
    try:
        tap.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already


def tap_of(fileno: int) -> socket.socket:
    """A handle of one's own on a socket: its number can't come to mean another connection."""
    return socket.socket(fileno=os.dup(fileno))


class Pool(Generic[C]):
    """At most so many connections. Safe for threads, and empty again after a fork.

    Args:
        connect: Makes one.
        close: Ends one; never raises.
        usable: Whether one that was used can be used again.
        limit: How many may be lent at once.
        wait_s: How long a caller waits for one, in seconds.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], None],
        usable: Callable[[C], bool],
        limit: int,
        wait_s: float,
    ) -> None:
        self._connect = connect
        self._close = close
        self._usable = usable
        self._limit = limit
        self._wait_s = wait_s
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._idle: list[C] = []
        self._free = threading.BoundedSemaphore(self._limit)
        self._open = True

    def take(self, *, fresh: bool = False) -> tuple[C, bool]:
        """A connection, and whether it was made just now.

        Raises:
            StoreUnavailable: All are lent for too long.
        """
        if os.getpid() != self._pid:
            # The parent's sockets: using them, or saying goodbye on them, would disturb the parent.
            self._start_over()
        if not self._free.acquire(timeout=self._wait_s):
            raise StoreUnavailable(_all_lent(self._limit, self._wait_s))
        try:
            while self._idle:
                connection = self._idle.pop()
                if not fresh:
                    return connection, False
                self._close(connection)
            return self._connect(), True
        except BaseException:
            self._free.release()
            raise

    def give(self, connection: C, *, well: bool) -> None:
        """Take a connection back; one that is not well is closed."""
        if well and self._open and self._usable(connection):
            self._idle.append(connection)
        else:
            self._close(connection)
        self._free.release()

    def run(self, call: Callable[[C], R], broken: tuple[type[Exception], ...]) -> R:
        """The outcome of ``call`` on a connection; it must be one that may be repeated.

        An idle connection may have died with a server that was restarted: then there is one more try, on a
        fresh one.
        """
        fresh = False
        while True:
            connection, fresh = self.take(fresh=fresh)
            began = time.monotonic()
            well = False
            try:
                answer = call(connection)
                well = True
                return answer
            except broken:
                if fresh or self._usable(connection) or time.monotonic() - began > _DEAD_BEFORE_S:
                    raise
                fresh = True
            finally:
                self.give(connection, well=well)

    def close(self) -> None:
        """Close those that nobody uses; the others when they come back."""
        self._open = False
        while self._idle:
            self._close(self._idle.pop())


class _Lent(Generic[C]):
    """One event loop's connections."""

    def __init__(self, limit: int) -> None:
        self.idle: list[C] = []
        self.free = asyncio.Semaphore(limit)


class LoopPool(Generic[C]):
    """At most so many connections for each event loop: those of one loop are of no use to another.

    Args:
        connect: Makes one.
        close: Ends one at once, from any thread; never raises.
        usable: Whether one that was used can be used again.
        limit: How many may be lent at once in a loop.
        wait_s: How long a caller waits for one, in seconds.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        close: Callable[[C], None],
        usable: Callable[[C], bool],
        limit: int,
        wait_s: float,
    ) -> None:
        self._connect = connect
        self._close = close
        self._usable = usable
        self._limit = limit
        self._wait_s = wait_s
        self._loops: dict[asyncio.AbstractEventLoop, _Lent[C]] = {}
        self._open = True

    def _here(self) -> _Lent[C]:
        loop = asyncio.get_running_loop()
        lent = self._loops.get(loop)
        if lent is None:
            self._forget_ended_loops()
            lent = self._loops[loop] = _Lent(self._limit)
        return lent

    def _forget_ended_loops(self) -> None:
        for loop in list(self._loops):
            if loop.is_closed() and (lent := self._loops.pop(loop, None)) is not None:
                self._close_idle(lent)

    def _close_idle(self, lent: _Lent[C]) -> None:
        while lent.idle:
            self._close(lent.idle.pop())

    async def take(self, *, fresh: bool = False) -> tuple[C, bool]:
        """A connection, and whether it was made just now.

        Raises:
            StoreUnavailable: All are lent for too long.
        """
        lent = self._here()
        try:
            async with asyncio.timeout(self._wait_s):
                await lent.free.acquire()
        except TimeoutError:
            raise StoreUnavailable(_all_lent(self._limit, self._wait_s)) from None
        try:
            while lent.idle:
                connection = lent.idle.pop()
                if not fresh:
                    return connection, False
                self._close(connection)
            return await self._connect(), True
        except BaseException:
            lent.free.release()
            raise

    def give(self, connection: C, *, well: bool) -> None:
        """Take a connection back; one that is not well is closed."""
        lent = self._here()
        if well and self._open and self._usable(connection):
            lent.idle.append(connection)
        else:
            self._close(connection)
        lent.free.release()

    def close(self) -> None:
        """Close those that nobody uses, of all loops; the others when they come back."""
        self._open = False
        for lent in list(self._loops.values()):
            self._close_idle(lent)


def _all_lent(limit: int, wait_s: float) -> str:
    return (
        f"all {limit} connections of the dedup store were in use for {wait_s:g} s: "
        f"keep transactions short, lower the type's concurrency, or raise connections="
    )
