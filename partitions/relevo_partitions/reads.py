"""Reads of a leader's memory. Each is answered only behind a commit that began after the read arrived."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from relevo_partitions.errors import TooManyReads
from relevo_partitions.statemachine import StateMachine

Query = Callable[[Any], Any]
"""Runs on the leader's own thread with its machine; must be quick and change nothing."""


class PendingRead:
    """A question and where its answer goes."""

    __slots__ = ("future", "query")

    def __init__(self, query: Query) -> None:
        self.query = query
        self.future: Future[Any] = Future()

    def answer(self, machine: StateMachine) -> None:
        """Ask ``machine``; an error of the query is the caller's answer."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.query(machine)
        except Exception as error:  # noqa: BLE001,RUF100 - whatever the query raises belongs to the caller
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Answer with ``error``."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class ReadQueue:
    """Reads that wait for the next commit. Bounded; safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[PendingRead] = deque()
        self._closed: Exception | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, query: Query) -> Future[Any]:
        """Enqueue a read; where that can't be, the future says why."""
        read = PendingRead(query)
        with self._lock:
            error = self._closed
            if error is None and len(self._waiting) >= self._limit:
                error = TooManyReads(f"{self._limit} reads wait already; ask again in a moment")
            if error is None:
                self._waiting.append(read)
        if error is not None:
            read.fail(error)
        return read.future

    def take(self) -> list[PendingRead]:
        """All reads that have arrived by now."""
        if not self._waiting:
            return []
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def put_back(self, reads: list[PendingRead]) -> None:
        """Reads whose commit didn't come about wait for the next one, before the others."""
        with self._lock:
            error = self._closed
            if error is None:
                self._waiting.extendleft(reversed(reads))
        if error is not None:
            for read in reads:
                read.fail(error)

    def close(self, error: Exception) -> None:
        """Fail what waits and all that comes."""
        with self._lock:
            self._closed = error
            waiting = list(self._waiting)
            self._waiting.clear()
        for read in waiting:
            read.fail(error)
