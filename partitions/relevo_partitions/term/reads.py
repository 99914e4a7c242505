"""Reads of a leader's memory: behind a commit that began after the read arrived, or, for gauges, as it is."""

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
    """A question and where its answer goes; the first answer counts."""

    __slots__ = ("_turn", "future", "proven", "query")

    def __init__(self, query: Query, proven: bool = True) -> None:
        self.query = query
        self.proven = proven
        self.future: Future[Any] = Future()
        self._turn = threading.Lock()

    def answer(self, machine: StateMachine) -> None:
        """Ask ``machine``; an error of the query is the caller's answer."""
        if not self._first():
            return
        try:
            result = self.query(machine)
        except Exception as error:  # whatever the query raises belongs to the caller
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Answer with ``error``."""
        if self._first():
            self.future.set_exception(error)

    def _first(self) -> bool:
        """Whether nobody has answered yet, and the caller still waits. Never released: one answer is all."""
        return self._turn.acquire(blocking=False) and self.future.set_running_or_notify_cancel()


class ReadQueue:
    """Reads that wait for the next commit. Bounded; safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[PendingRead] = deque()
        self._taken: list[PendingRead] = []
        self._closed: Exception | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, query: Query, *, proven: bool = True) -> Future[Any]:
        """Enqueue a read; where that can't be, the future says why."""
        read = PendingRead(query, proven)
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
        """All reads that have arrived by now, for one turn; they count as answered at the next call."""
        if not self._waiting and not self._taken:
            return []
        with self._lock:
            self._taken = list(self._waiting)
            self._waiting.clear()
            return self._taken

    def put_back(self, reads: list[PendingRead]) -> None:
        """Reads whose commit didn't come about wait for the next one, before the others."""
        with self._lock:
            error = self._closed
            self._taken = []
            if error is None:
                self._waiting.extendleft(reversed(reads))
        if error is not None:
            for read in reads:
                read.fail(error)

    def close(self, error: Exception) -> None:
        """Fail what waits, what is in a turn that hangs, and all that comes."""
        with self._lock:
            self._closed = error
            waiting = [*self._taken, *self._waiting]
            self._taken = []
            self._waiting.clear()
        for read in waiting:
            read.fail(error)
