"""Handlers that end in ways nobody meant: each comes back with an outcome that the engine takes.

A slot whose job never comes back is lost for good, and with it its lease is renewed for ever; a command that
the engine refuses leaves the job to its lease, and it runs again, effect and all.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable
from typing import Any

import pytest

import relevo
from relevo.testing import Engine
from relevo.worker import execution
from relevo.worker.bounds import CODE_BYTES_MAX, ERROR_TEXT_MAX, PAUSE_MAX_MS, RESULT_BYTES_MAX
from relevo.worker.execution import AsyncRunner, LoopThread, Runner, ThreadRunner
from relevo.worker.item import Item
from relevo.worker.job import Fail, Job, JobError
from relevo.worker.outcomes import Completed, Errored, Failed, acceptable
from relevo_engine.core.rules import DAY_MS, Rules
from tests.unit.workers.fakes import item

Ended = queue.SimpleQueue[list[Item]]
RULES = Rules(partition=0, partitions=1)


class NoFunds(JobError):  # noqa: N818
    def __init__(self, amount: int) -> None:
        self.amount = amount


class Declined(JobError):  # noqa: N818
    code = "DECLINED"

    def __init__(self, *about: Any) -> None: ...


class Later(Fail):
    def __init__(self) -> None: ...


class Mute(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Exits(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise SystemExit(1)


class Sealed(JobError):  # noqa: N818
    def __init__(self) -> None: ...

    def __getattribute__(self, name: str) -> Any:
        if name == "code":
            raise RuntimeError("sealed")
        return super().__getattribute__(name)


class Undone:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def fail(**attributes: Any) -> Fail:
    """One that was changed after it was made: its checks are past."""
    error = Fail("no")
    vars(error).update(attributes)
    return error


def job_error(code: Any, message: Any) -> JobError:
    return JobError(code, message)


# What a handler raises or returns, and what becomes of the job.
RAISED: dict[str, tuple[Callable[[], BaseException], object]] = {
    "fail with an exception": (
        lambda: Fail(ValueError("boom")),  # type: ignore[arg-type]
        Failed("ValueError: boom"),
    ),
    "fail without a text": (lambda: Fail(None), Failed("the handler failed the attempt")),  # type: ignore[arg-type]
    "a pause without end": (lambda: Fail("no", retry_in=float("inf")), Failed("no", PAUSE_MAX_MS)),
    "a pause of five weeks": (lambda: Fail("no", retry_in=3e6), Failed("no", PAUSE_MAX_MS)),
    "no number": (lambda: fail(retry_in=float("nan")), Failed("no")),
    "a negative pause": (lambda: fail(retry_in=-1), Failed("no")),
    "a pause that is a text": (lambda: fail(retry_in="soon"), Failed("no")),
    "a fail without super": (Later, Failed("the handler failed the attempt")),
    "a code with an exception": (
        lambda: job_error("X", ValueError("boom")),
        Errored("X", "ValueError: boom"),
    ),
    "a code without a text": (lambda: job_error("X", None), Errored("X", "")),
    "a code that is a number": (lambda: job_error(402, "paid"), Errored("402", "paid")),
    "a code that is empty": (lambda: JobError("", ""), Errored("", "")),
    "a code that is none": (lambda: job_error(None, "no"), Errored("JobError", "no")),
    "a code of the class": (lambda: Declined("no", 7), Errored("DECLINED", "no, 7")),
    "a business error without super": (lambda: NoFunds(3), Errored("NoFunds", "3")),
    "a long code": (
        lambda: JobError("ü" * 200, "no"),
        Errored("ü" * (CODE_BYTES_MAX // 2), "(the code was cut: 200 characters) no"),
    ),
    "a business error that can't be read": (
        Sealed,
        Errored("Sealed", "Sealed, which can't be read (RuntimeError)"),
    ),
}


@pytest.fixture(params=["threads", "coroutines"])
def run(request: pytest.FixtureRequest, loop_thread: LoopThread) -> Callable[[Callable[[Job], Any]], Any]:
    """Runs one job after the other in a runner that has one slot; gives the outcomes."""

    def runner_of(handler: Callable[[Job], Any], ended: Ended) -> Runner:
        async def handle(job: Job) -> Any:
            return handler(job)

        if request.param == "threads":
            return ThreadRunner(handler, 1, ended.put, "t")
        return AsyncRunner(loop_thread, handle, ended.put)

    def run_it(handler: Callable[[Job], Any]) -> Any:
        ended: Ended = queue.SimpleQueue()
        runner = runner_of(lambda job: "well" if job.key == "after" else handler(job), ended)
        outcomes = []
        for key in ("odd", "after"):
            runner.submit([item(key)])
            outcomes += [each.outcome for each in ended.get(timeout=30)]
        runner.close()
        assert outcomes[1] == Completed(b'"well"')
        return outcomes[0]

    return run_it


@pytest.mark.parametrize("case", RAISED)
def test_whatever_is_raised_ends_the_attempt(case: str, run: Any) -> None:
    make, outcome = RAISED[case]

    def handler(job: Job) -> None:
        raise make()

    assert run(handler) == outcome


@pytest.mark.parametrize("error", [Mute, Exits])
def test_an_exception_without_a_text_fails_the_attempt(error: type[Exception], run: Any) -> None:
    def handler(job: Job) -> None:
        raise error

    outcome = run(handler)
    assert isinstance(outcome, Failed)
    assert outcome.retriable


@pytest.mark.parametrize("inside", [Mute, Exits])
def test_a_business_error_with_an_odd_text_is_one(inside: type[Exception], run: Any) -> None:
    def handler(job: Job) -> None:
        raise job_error("X", inside())

    outcome = run(handler)
    assert isinstance(outcome, Errored | Failed)
    assert inside is Exits or (isinstance(outcome, Errored) and outcome.code == "X")


@pytest.mark.parametrize(
    "make",
    [Undone, lambda: float("nan"), lambda: {"rate": [1.0, float("inf")], "a": None}],
    ids=["odd", "NaN", "infinite"],
)
def test_a_result_that_can_not_be_kept_is_not_run_again(make: Callable[[], Any], run: Any) -> None:
    """The effect has happened: another attempt would repeat it, and come to the same end."""
    outcome = run(lambda job: make())
    assert isinstance(outcome, Failed)
    assert (outcome.retriable, outcome.kind) == (False, "result")


@pytest.mark.parametrize("broken", ["at_end", "of_result"])
def test_a_slot_outlives_what_goes_wrong_in_telling_the_end(
    broken: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the cause: the job comes back, its lease is not renewed any more, and the slot is free."""
    real = getattr(execution, broken)

    def breaks(*given: Any) -> Any:
        if given[-1] == "odd" or given[-1] == Completed(b'"odd"'):
            raise MemoryError
        return real(*given)

    monkeypatch.setattr(execution, broken, breaks)
    outcome = run(lambda job: "odd")
    assert isinstance(outcome, Failed)
    assert outcome.retriable


def test_a_log_handler_that_raises_decides_nothing(run: Any) -> None:
    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the log is full")

    logger = logging.getLogger("relevo.worker")
    raising, level = Raising(), logger.level
    logger.addHandler(raising)
    logger.setLevel(logging.INFO)
    try:
        outcome = run(lambda job: (_ for _ in ()).throw(JobError("NO_FUNDS", "declined")))
    finally:
        logger.removeHandler(raising)
        logger.setLevel(level)
    assert outcome == Errored("NO_FUNDS", "declined")


def test_the_bounds_are_the_engines() -> None:
    """The worker may not import them; a number that differs brings refusals back that nobody hears."""
    assert RULES.name_bytes_max == CODE_BYTES_MAX
    assert PAUSE_MAX_MS == RULES.pause_ms_max == 30 * DAY_MS
    assert RULES.result_bytes_max == RESULT_BYTES_MAX


@pytest.mark.parametrize(
    "outcome",
    [
        Completed(b"1" * (RESULT_BYTES_MAX + 1)),
        Failed("\ud800" * 10_000, 10**15, retriable=False),
        Failed("x", -7),
        Errored("\ud800" * 300, "y" * 10_000),
    ],
)
def test_nothing_is_sent_that_the_engine_refuses(outcome: Any) -> None:
    """Results come from dedup stores, and texts from functions of the user, too."""
    made = acceptable(outcome)
    assert acceptable(made) == made
    assert not isinstance(made, Completed)
    if isinstance(made, Failed):
        assert -1 <= made.retry_in_ms <= RULES.pause_ms_max
        assert len(made.error.encode()) <= 4 * ERROR_TEXT_MAX
        assert made.retriable is (getattr(outcome, "error", "") == "x")
    else:
        assert len(made.code.encode()) <= RULES.name_bytes_max


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
def test_two_such_jobs_do_not_stop_a_type(kind: str) -> None:
    app = relevo.WorkerApp()

    def handle(job: relevo.Job) -> int:
        if job.variables["bad"]:
            raise Fail(ValueError("boom"), retry_in=5)  # type: ignore[arg-type]
        return 1

    async def handle_async(job: relevo.Job) -> int:
        await asyncio.sleep(0)
        return handle(job)

    app.job("x", concurrency=2)(handle_async if kind == "coroutine" else handle)
    with Engine() as engine:
        engine.run(app)
        for number in range(2):
            engine.create("x", {"bad": True}, key=f"bad{number}", retries=0)
        engine.settle()
        good = engine.create("x", {"bad": False})
        assert engine.await_result(good).value == 1
        assert engine.job("bad0").error == "ValueError: boom"


@pytest.mark.parametrize(
    ("error", "state"),
    [(JobError("A" * 600, "no"), "ERRORED"), (Fail("no", retry_in=3e6), "SCHEDULED")],
    ids=["code", "pause"],
)
def test_the_engine_takes_it_and_the_handler_runs_once(error: Exception, state: str) -> None:
    """It would be refused, the lease would run out, and the effect would be repeated for ever."""
    app, runs = relevo.WorkerApp(), []

    @app.job("x", lease=10)
    def handle(job: relevo.Job) -> None:
        runs.append(job.attempt)
        raise error

    with Engine() as engine:
        engine.run(app)
        job = engine.create("x")
        engine.settle()
        engine.advance(3_600)
        assert engine.job(job).state == state
        assert runs == [1]
        assert "CommandRejected" not in {event.kind for event in engine.events}
