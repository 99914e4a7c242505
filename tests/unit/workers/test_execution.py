"""Handlers run, fail, hang, and are told apart; none takes the worker with it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from relevo.worker.execution import AsyncRunner, LoopThread, ThreadRunner, is_async
from relevo.worker.item import Item
from relevo.worker.job import Fail, Job
from relevo.worker.outcomes import Completed, Failed
from tests.support.waiting import wait_until
from tests.unit.workers.fakes import item

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture
def ended() -> queue.SimpleQueue[list[Item]]:
    return queue.SimpleQueue()


def outcomes(ended: queue.SimpleQueue[list[Item]], count: int) -> dict[str, object]:
    found: dict[str, object] = {}
    while len(found) < count:
        found |= {each.key: each.outcome for each in ended.get(timeout=30)}
    return found


def test_coroutines_and_their_failures(loop_thread: LoopThread, ended: queue.SimpleQueue[list[Item]]) -> None:
    async def handler(job: Job) -> Any:
        if job.key == "raises":
            raise ValueError("boom")
        if job.key == "exits":
            raise SystemExit(1)
        if job.key == "waits":
            async with asyncio.timeout(30):
                await asyncio.sleep(0)
        if job.key == "cancels":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(30)
        return job.key

    runner = AsyncRunner(loop_thread, handler, ended.put)
    keys = ["ok", "raises", "exits", "waits", "cancels"]
    runner.submit([item(key) for key in keys])
    found = outcomes(ended, len(keys))
    assert found["ok"] == Completed(b'"ok"')
    assert found["waits"] == Completed(b'"waits"')
    assert [type(found[key]) for key in ("raises", "exits", "cancels")] == [Failed] * 3
    runner.submit([item("after")])
    assert outcomes(ended, 1) == {"after": Completed(b'"after"')}


def test_what_ends_together_is_reported_together(
    loop_thread: LoopThread, ended: queue.SimpleQueue[list[Item]]
) -> None:
    """A report per job would cost a hop between threads per job."""

    async def handler(job: Job) -> None: ...

    AsyncRunner(loop_thread, handler, ended.put).submit([item(str(n)) for n in range(100)])
    assert len(ended.get(timeout=30)) == 100


def test_one_job_does_not_see_anothers_context(
    loop_thread: LoopThread, ended: queue.SimpleQueue[list[Item]]
) -> None:
    """Trace and log context of one customer would show up in another's."""

    async def handler(job: Job) -> str:
        seen = variable.get()
        variable.set(job.key)
        return seen

    AsyncRunner(loop_thread, handler, ended.put).submit([item("a"), item("b")])
    assert set(outcomes(ended, 2).values()) == {Completed(b'"unset"')}


def test_a_coroutine_that_ran_too_long_is_cancelled_and_says_so(
    loop_thread: LoopThread, ended: queue.SimpleQueue[list[Item]]
) -> None:
    started = threading.Event()

    async def handler(job: Job) -> None:
        started.set()
        await asyncio.sleep(3_600)

    runner = AsyncRunner(loop_thread, handler, ended.put)
    slow = item("slow")
    runner.submit([slow])
    assert started.wait(30)
    slow.timed_out = True
    runner.cancel(slow)
    outcome = outcomes(ended, 1)["slow"]
    assert isinstance(outcome, Failed)
    assert "timeout" in outcome.error


def test_a_loop_that_a_handler_blocks_does_not_keep_the_process(
    ended: queue.SimpleQueue[list[Item]],
) -> None:
    thread = LoopThread()
    release = threading.Event()

    async def handler(job: Job) -> None:
        release.wait(60)

    AsyncRunner(thread, handler, ended.put).submit([item("blocks")])
    thread.close(timeout=0.05)
    release.set()
    thread._thread.join(30)
    assert thread.loop.is_closed()


def test_plain_functions_run_side_by_side(ended: queue.SimpleQueue[list[Item]]) -> None:
    together = threading.Barrier(3, timeout=30)

    def handler(job: Job) -> str:
        together.wait()
        return job.key

    runner = ThreadRunner(handler, 3, ended.put, "t")
    runner.submit([item(key) for key in "abc"])
    assert outcomes(ended, 3) == {key: Completed(f'"{key}"'.encode()) for key in "abc"}
    runner.close()


def test_a_plain_function_that_raises_leaves_its_thread_alive(ended: queue.SimpleQueue[list[Item]]) -> None:
    def handler(job: Job) -> str:
        if job.key == "exits":
            raise SystemExit(1)
        return job.key

    runner = ThreadRunner(handler, 1, ended.put, "t")
    runner.submit([item("exits")])
    assert isinstance(outcomes(ended, 1)["exits"], Failed)
    runner.submit([item("after")])
    assert outcomes(ended, 1) == {"after": Completed(b'"after"')}
    runner.close()


class Callable_:  # noqa: N801
    async def __call__(self, job: Job) -> None: ...


async def coroutine(job: Job, extra: int = 0) -> None: ...


def plain(job: Job) -> None: ...


@pytest.mark.parametrize(
    ("handler", "expected"),
    [(coroutine, True), (functools.partial(coroutine, extra=1), True), (Callable_(), True), (plain, False)],
)
def test_coroutine_handlers_are_recognised(
    handler: Callable[..., Awaitable[None] | None], expected: bool
) -> None:
    assert is_async(handler) is expected


async def _exit() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("how", ["stops", "closes", "lets a task exit", "interrupts itself"])
def test_a_handler_that_ends_the_loop_takes_no_other_along(
    how: str, loop_thread: LoopThread, ended: queue.SimpleQueue[list[Item]]
) -> None:
    """All coroutines share one loop: without it none ever ends, and their leases are renewed for ever."""
    go_on = asyncio.Event()

    async def handler(job: Job) -> str:
        if job.key == "neighbour":
            await go_on.wait()
        elif how == "stops":
            asyncio.get_running_loop().stop()
        elif how == "closes":
            asyncio.get_running_loop().close()
        elif how == "lets a task exit":
            await asyncio.gather(asyncio.create_task(_exit()), return_exceptions=True)
        else:
            raise KeyboardInterrupt
        return job.key

    runner = AsyncRunner(loop_thread, handler, ended.put)
    runner.submit([item("neighbour")])
    runner.submit([item("ends it")])
    assert outcomes(ended, 1).keys() == {"ends it"}
    loop_thread.loop.call_soon_threadsafe(go_on.set)
    assert outcomes(ended, 1) == {"neighbour": Completed(b'"neighbour"')}


@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_whatever_a_plain_function_raises_is_its_own_end_only(
    error: type[BaseException], ended: queue.SimpleQueue[list[Item]]
) -> None:
    def handler(job: Job) -> str:
        if job.key == "raises":
            raise error
        return job.key

    runner = ThreadRunner(handler, 1, ended.put, "t")
    runner.submit([item("raises"), item("after")])
    found = outcomes(ended, 2)
    assert isinstance(found["raises"], Failed)
    assert found["after"] == Completed(b'"after"')
    runner.close()


FORKS = """
import asyncio, os, queue, sys
from relevo.worker.execution import AsyncRunner, LoopThread, ThreadRunner
from tests.unit.workers.test_execution import item

effects = sys.argv[1]
children = []

def fork():
    pid = os.fork()
    if pid:
        children.append(pid)
        os.waitpid(pid, 0)

async def coroutine(job):
    if job.key == "neighbour":
        await asyncio.sleep(0.2)
        with open(effects, "a") as file:
            file.write("neighbour\\n")
        return
    fork()

def plain(job):
    fork()

ended = queue.SimpleQueue()
loop = LoopThread()
AsyncRunner(loop, coroutine, ended.put).submit([item("neighbour"), item("forks")])
ThreadRunner(plain, 1, ended.put, "t").submit([item("plain")])
left = {"neighbour", "forks", "plain"}
while left:
    left -= {each.key for each in ended.get(timeout=30)}
assert len(children) == 2
print("all ended")
"""


def test_a_child_that_comes_back_from_a_handler_is_no_second_worker(tmp_path: Path) -> None:
    """Its copy of every coroutine would run on, and each effect happen in both processes."""
    effects = tmp_path / "effects"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(effects)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "all ended\n"), ran.stderr
    assert effects.read_text() == "neighbour\n"
    assert ran.stderr.count("came back out of the handler") == 2


@pytest.mark.parametrize("kind", ["coroutine", "function"])
def test_what_a_handler_raised_is_let_go_at_once(
    loop_thread: LoopThread, ended: queue.SimpleQueue[list[Item]], kind: str
) -> None:
    """It may hold a connection, or all of a job's data: until some later garbage collection, or job."""
    held: list[weakref.ref[BaseException]] = []

    class Answer(Fail):
        def __init__(self) -> None:
            super().__init__("the provider's answer")
            held.append(weakref.ref(self))

    def fail(job: Job) -> None:
        raise Answer

    async def fail_later(job: Job) -> None:
        fail(job)

    runner = (
        AsyncRunner(loop_thread, fail_later, ended.put)
        if kind == "coroutine"
        else ThreadRunner(fail, 1, ended.put, "work")
    )
    gc.disable()
    try:
        runner.submit([item("k")])
        assert isinstance(outcomes(ended, 1)["k"], Failed)
        wait_until(lambda: held[0]() is None, "nobody has it any more", timeout_s=10)
    finally:
        gc.enable()
        runner.close()
