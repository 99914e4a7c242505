"""What the engine in memory says to a test that is wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

import relevo
from relevo.testing import Engine, StillRunning


def make_app() -> relevo.WorkerApp:
    app = relevo.WorkerApp()

    @app.job("send-email")
    async def send_email(job: relevo.Job) -> None:
        pass

    return app


async def test_a_slip_in_a_type_is_named() -> None:
    """The job would stand there, and the test would say that it isn't done."""
    async with Engine() as engine:
        with pytest.raises(relevo.InvalidRequest, match=r"call engine\.run\(app\) first"):
            await engine.create("send-email")
        engine.run(make_app())
        with pytest.raises(relevo.InvalidRequest, match="did you mean 'send-email'"):
            await engine.create("send-emial")


async def test_the_engine_itself_refuses_what_it_would_refuse() -> None:
    async with Engine() as engine:
        engine.run(make_app())
        with pytest.raises(relevo.InvalidRequest, match="between 0 and 1000"):
            await engine.create("send-email", retries=-1)
        with pytest.raises(relevo.InvalidRequest, match="exclude each other"):
            await engine.create("send-email", delay=5, run_at=engine.now)
        with pytest.raises(relevo.Rejected, match="NOT_FOUND"):
            await engine.cancel("nobody", wait="decided")
        with pytest.raises(relevo.InvalidRequest, match="'accepted'"):
            await engine.create("send-email", wait="soon")  # type: ignore[arg-type]


async def test_a_job_that_is_not_there() -> None:
    async with Engine() as engine:
        engine.run(make_app())
        with pytest.raises(relevo.InvalidRequest, match="none was created"):
            engine.job("k1")
        await engine.create("send-email", key="k2")
        with pytest.raises(relevo.InvalidRequest, match="there are 'k2'"):
            engine.job("k1")


async def test_a_job_that_is_forgotten() -> None:
    """Listed among those that are there, it would be taken for a slip in the key."""
    async with Engine(partitions=1) as engine:
        engine.run(make_app())
        await engine.create("send-email", key="gone")
        await engine.advance(3 * 86_400)
        await engine.create("send-email", key="there")
        await engine.settle()
        with pytest.raises(relevo.InvalidRequest, match=r"'gone' ended as COMPLETED.* has forgotten it"):
            engine.job("gone")
        with pytest.raises(relevo.InvalidRequest, match=r"no job 'none': there are 'there'$"):
            engine.job("none")


@pytest.mark.parametrize("seconds", [float("inf"), 1e20, float("nan"), -1])
async def test_time_that_can_not_pass(seconds: float) -> None:
    async with Engine() as engine:
        before = engine.now
        with pytest.raises(relevo.InvalidRequest, match="can't pass"):
            await engine.advance(seconds)
        assert engine.now == before


async def _exit() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("how", ["stops the loop", "lets a task exit"])
def test_a_handler_that_ends_the_loop_ends_nothing_in_a_plain_test_either(how: str) -> None:
    """In a worker the loop goes on; a test of such a handler must see that too."""
    app = relevo.WorkerApp()

    @app.job("send-email")
    async def send_email(job: relevo.Job) -> str:
        if how == "stops the loop":
            asyncio.get_running_loop().stop()
        else:
            await asyncio.gather(asyncio.create_task(_exit()), return_exceptions=True)
        await asyncio.sleep(0)
        return job.key

    with Engine() as engine:
        engine.run(app)
        jobs = [engine.create("send-email", key=key) for key in ("a", "b")]
        assert [engine.await_result(job).value for job in jobs] == ["a", "b"]


async def test_a_store_that_is_none() -> None:
    async with Engine() as engine:
        address: Any = "redis://127.0.0.1"
        with pytest.raises(relevo.ConfigurationError, match="dedup store must be an object"):
            engine.run(make_app(), dedup=address)


async def test_a_job_that_has_not_ended() -> None:
    async with Engine() as engine:
        engine.run(make_app())
        job = await engine.create("send-email", delay=5)
        with pytest.raises(relevo.ResultTimeout, match=r"SCHEDULED: let time pass with engine\.advance"):
            await engine.await_result(job)


async def test_a_step_that_there_is_not() -> None:
    async with Engine() as engine:
        with pytest.raises(relevo.InvalidRequest, match="'read', 'claim', 'start', 'effect'"):
            engine.crash_worker(after="efect")
        with pytest.raises(relevo.InvalidRequest, match=r"'start', 'effect'$"):
            engine.freeze_worker(after="claim")


async def test_what_can_not_be_handed_over_or_expire() -> None:
    async with Engine() as engine:
        engine.run(make_app())
        job = await engine.create("send-email", delay=5)
        with pytest.raises(relevo.InvalidRequest, match="not handed to a worker yet"):
            await engine.deliver_twice(job)
        with pytest.raises(relevo.InvalidRequest, match="no worker runs job"):
            await engine.expire_lease(job)


async def test_after_its_end() -> None:
    engine = Engine()
    with pytest.raises(relevo.Closed, match="is not open: use it inside 'async with"):
        engine.run(make_app())
    async with engine:
        with pytest.raises(relevo.ConfigurationError, match="open already"):
            await engine.__aenter__()
    with pytest.raises(relevo.Closed, match="was closed"):
        await engine.settle()
    with pytest.raises(relevo.Closed, match="was closed"):
        print(engine.events)


def test_after_its_end_where_nothing_is_awaited() -> None:
    with Engine() as engine:
        pass
    with pytest.raises(relevo.Closed, match="was closed"):
        engine.settle()
    with pytest.raises(relevo.Closed, match="was closed"):
        engine.create("send-email")


async def test_the_blocking_form_in_a_coroutine() -> None:
    """It would hang, or fail deep inside asyncio."""
    with pytest.raises(relevo.ConfigurationError, match="use 'async with"), Engine():
        pass


async def test_a_handler_that_never_ends() -> None:
    app = relevo.WorkerApp()

    @app.job("hang")
    async def hang(job: relevo.Job) -> None:
        await asyncio.Event().wait()

    async with Engine(patience=0.05) as engine:
        engine.run(app)
        await engine.create("hang", key="k1")
        with pytest.raises(StillRunning, match=r"hang 'k1'.*leave_running=True"):
            await engine.settle()


async def test_a_handler_that_waits_for_the_test() -> None:
    """It would wait for itself."""
    app = relevo.WorkerApp()
    async with Engine() as engine:

        @app.job("impatient")
        async def impatient(job: relevo.Job) -> None:
            await engine.settle()

        engine.run(app)
        job = await engine.create("impatient", retries=0)
        await engine.settle()
        assert "settle and advance are the test's" in (engine.job(job).error or "")


async def test_apps_that_can_not_be_run() -> None:
    async with Engine() as engine:
        with pytest.raises(relevo.ConfigurationError, match="nothing to run"):
            engine.run(relevo.WorkerApp())
        with pytest.raises(relevo.InvalidRequest, match="not a function"):
            engine.run(make_app)  # type: ignore[arg-type]
        engine.run(make_app())
        with pytest.raises(relevo.ConfigurationError, match="run already"):
            engine.run(make_app())


async def test_time_goes_forward_only() -> None:
    async with Engine() as engine:
        with pytest.raises(relevo.InvalidRequest, match="only goes forward"):
            await engine.advance(-1)
        with pytest.raises(relevo.InvalidRequest, match="more than 0"):
            engine.lose_store(0)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"types": "send-email"}, "several names"),
    ({"partitions": 0}, "between 1 and 64"),
    ({"start": datetime(2030, 1, 1)}, "time zone"),
    ({"patience": 0}, "more than 0"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_an_engine_that_can_not_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(relevo.InvalidRequest, match=message):
        Engine(**options)


WITHOUT = """
import asyncio, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not installed")

sys.meta_path.insert(0, Blocked())
import relevo
from relevo.testing import Engine
try:
    with Engine() as engine:
        print(len(engine.events))
except relevo.MissingExtra as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("blocked", "answer"),
    [
        ({"kazoo", "aiohttp", "prometheus_client", "pydantic", "structlog", "rich", "redis", "psycopg"}, "2"),
        ({"relevo_engine"}, "relevo.testing.Engine needs an optional part: pip install 'relevo[engine]'"),
    ],
)
def test_what_it_needs(blocked: set[str], answer: str) -> None:
    """Tests that start a client for ZooKeeper are slow, and say nothing where it is missing."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(blocked=blocked)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == answer, done.stderr
