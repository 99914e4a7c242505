"""Runs handlers: coroutines on one event loop, plain functions on threads. Neither lets an exception out."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from relevo.errors import ClaimLost
from relevo.forks import ForkGuard
from relevo.stats import WorkerStats
from relevo.tracing import Tracer
from relevo.worker.bounds import said
from relevo.worker.item import Item
from relevo.worker.job import Fail, Job, JobError
from relevo.worker.outcomes import Ending, Failed, NotOurs, Outcome, of_exception, of_result
from relevo.worker.transactions import at_end

_log: Final = logging.getLogger("relevo.worker")

_CANCEL_S: Final = 2.0

AsyncHandler: TypeAlias = Callable[[Job], Awaitable[Any]]
SyncHandler: TypeAlias = Callable[[Job], Any]
Handler: TypeAlias = AsyncHandler | SyncHandler
Finished: TypeAlias = Callable[[list[Item]], None]


class Runner(Protocol):
    """Runs jobs of one type. The caller never submits more than its concurrency allows."""

    def submit(self, items: Sequence[Item]) -> None:
        """Start the handler for each; every one comes back, with its outcome set, in a call of `Finished`."""

    def cancel(self, item: Item) -> None:
        """Ask a running handler to end, where that can be asked."""

    def close(self) -> None:
        """Take no more; what runs is left alone."""


def takes_a_job(handler: Handler) -> bool:
    """Whether ``handler`` can be called with one argument, as far as that can be told."""
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True  # made in C, without a signature
    return True


def is_async(handler: Handler) -> bool:
    """Whether calling ``handler`` gives a coroutine."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(type(handler), "__call__", None)  # noqa: B004 - an object whose call is a coroutine
    )


class LoopThread:
    """An event loop in a thread of its own, shared by all coroutine handlers of an app."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="relevo-handlers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._closing:
                self._run_on()
            self.loop.run_until_complete(self._cancel_all())
        finally:
            self.loop.close()

    def _run_on(self) -> None:
        """Run until told to end; others are not to stop what all handlers share."""
        try:
            self.loop.run_forever()
        except BaseException as error:
            # A task that a handler started may raise SystemExit, and asyncio then lets the loop go.
            _log.error("a task of a handler would have ended the event loop, which goes on: %r", error)
        else:
            if not self._closing:
                _log.error("a handler has stopped the event loop that it shares with others; it goes on")

    def _end(self) -> None:
        self._closing = True
        self.loop.stop()

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        if others:
            # One that ignores it has had its chance.
            await asyncio.wait(others, timeout=_CANCEL_S)
        await self.loop.shutdown_asyncgens()

    def close(self, timeout: float = 2 * _CANCEL_S) -> None:
        """Cancel what still runs, and end the thread; one that a handler blocks is left behind."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end)
            self._thread.join(timeout)
        if self._thread.is_alive():
            _log.warning("a handler blocks its event loop; the thread is left behind")


class AsyncRunner:
    """Runs a coroutine handler, one task per job.

    Args:
        thread: Where it runs.
        handler: The handler.
        finished: Hears of each end.
        stats: Counters, for how long jobs have waited and run.
        tracer: Opens a span around each run; None: nobody does.
    """

    def __init__(
        self,
        thread: LoopThread,
        handler: AsyncHandler,
        finished: Finished,
        stats: WorkerStats | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.loop = thread.loop
        self._handler = handler
        self._finished = finished
        self._stats = stats or WorkerStats()
        self._tracer = tracer
        self._ended: list[Item] = []
        self._closed = False
        self._fork = ForkGuard("worker")
        # From 3.12 on a task may run its first step at once: a handler that never waits costs no trip
        # through the loop.
        self._new_task: Callable[..., asyncio.Task[None]] = (
            functools.partial(asyncio.Task, loop=self.loop, eager_start=True)  # type: ignore[call-arg,unused-ignore]
            if sys.version_info >= (3, 12)
            else self.loop.create_task
        )

    def submit(self, items: Sequence[Item]) -> None:  # noqa: D102 - as in the protocol
        self._stats.begun(items)
        self.loop.call_soon_threadsafe(self._start, items)

    def _start(self, items: Sequence[Item]) -> None:
        new_task, execute = self._new_task, self._execute
        for item in items:
            item.task = new_task(execute(item))

    async def _execute(self, item: Item) -> None:
        begun = time.monotonic()
        # In this task's own context: what other jobs await meanwhile doesn't see it.
        span = self._tracer.begin(item.job) if self._tracer is not None else None
        raised: type[BaseException] | None = None  # its type only: itself would hold this frame, and be held
        try:
            try:
                outcome: Ending = of_result(await self._handler(item.job))
            except BaseException as error:
                if self._closed and isinstance(error, asyncio.CancelledError):
                    if span is not None:
                        span.end(_timed_out(), type(error))
                    return  # the worker is gone; whoever gets the job next runs it
                _note(item, error)
                raised = type(error)
                outcome = _of_error(item, error)
            outcome = at_end(item.job, outcome)
        except BaseException as fault:
            outcome = _untold(item, fault)
        self._fork.end_child()
        if span is not None:
            span.end(outcome, raised)
        item.outcome = outcome
        item.took = time.monotonic() - begun
        self._ended.append(item)
        if len(self._ended) == 1:
            self.loop.call_soon(self._report)

    def _report(self) -> None:
        """One report for all that ended in this turn of the loop."""
        ended, self._ended = self._ended, []
        self._stats.ended(ended)
        self._finished(ended)

    def cancel(self, item: Item) -> None:  # noqa: D102
        task = item.task
        if task is not None:
            self.loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:  # noqa: D102
        self._closed = True


class ThreadRunner:
    """Runs a plain handler on threads, as many as are needed and at most ``concurrency``.

    Args:
        handler: The handler.
        concurrency: How many run at once at most.
        finished: Hears of each end.
        name: What to call the threads.
        stats: Counters, for how long jobs have waited and run.
        tracer: Opens a span around each run; None: nobody does.
    """

    def __init__(
        self,
        handler: SyncHandler,
        concurrency: int,
        finished: Finished,
        name: str,
        stats: WorkerStats | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._stats = stats or WorkerStats()
        self._tracer = tracer
        self._handler = handler
        self._concurrency = concurrency
        self._finished = finished
        self._name = name
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._fork = ForkGuard("worker")

    def submit(self, items: Sequence[Item]) -> None:  # noqa: D102 - as in the protocol
        self._stats.begun(items)
        for _ in range(min(len(items), self._concurrency - len(self._threads))):
            # Daemons: a handler that hangs must not keep the process from ending.
            thread = threading.Thread(
                target=self._run, name=f"relevo-{self._name}-{len(self._threads) + 1}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        for item in items:
            self._queue.put(item)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            begun = time.monotonic()
            span = self._tracer.begin(item.job) if self._tracer is not None else None
            raised: type[BaseException] | None = None
            try:
                try:
                    outcome: Ending = of_result(self._handler(item.job))
                except BaseException as error:
                    _note(item, error)
                    raised = type(error)
                    outcome = of_exception(error)
                outcome = at_end(item.job, outcome)
            except BaseException as fault:
                outcome = _untold(item, fault)
            self._fork.end_child()
            if span is not None:
                span.end(outcome, raised)
            item.outcome = outcome
            item.took = time.monotonic() - begun
            self._stats.ended([item])
            self._finished([item])

    def cancel(self, item: Item) -> None:
        """A thread can't be interrupted: the handler sees `Job.lost`."""

    def close(self) -> None:  # noqa: D102
        for _ in self._threads:
            self._queue.put(None)


def _note(item: Item, error: BaseException) -> None:
    """Log how a handler ended; what it raised on purpose needs no stack."""
    if isinstance(error, JobError | Fail | ClaimLost | asyncio.CancelledError):
        _tell(logging.INFO, item, f"ended by {type(error).__name__}: {said(error)}")
    else:
        _tell(logging.WARNING, item, "failed", error)


def _untold(item: Item, fault: BaseException) -> Outcome:
    """Even telling how it ended has failed: without an outcome slot and lease would be held for ever."""
    kind = type(fault).__name__
    _tell(logging.ERROR, item, f"has ended, and asking how raised {kind}")
    return Failed(f"the handler has ended, and how can't be told: asking raised {kind}")


def _tell(level: int, item: Item, what: str, error: BaseException | None = None) -> None:
    """Log something of an attempt; log handlers that raise must not decide what becomes of the job."""
    job = item.job
    try:
        _log.log(level, "%s job %r, attempt %d, %s", job.type, job.key, job.attempt, what, exc_info=error)
    except Exception as fault:
        os.write(2, f"relevo: a log handler raised {type(fault).__name__}\n".encode())


def _of_error(item: Item, error: BaseException) -> Ending:
    """What an exception out of a coroutine means, which may have been cancelled from here."""
    if item.timed_out:
        return _timed_out()
    if item.called_off and isinstance(error, asyncio.CancelledError):
        return NotOurs()
    return of_exception(error)


def _timed_out() -> Outcome:
    return Failed("the handler ran longer than its type's timeout allows, and was cancelled", kind="timeout")
