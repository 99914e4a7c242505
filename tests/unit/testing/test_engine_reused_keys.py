"""A key that is used anew, end to end: who wakes up with its earlier job ends nothing of the later one."""

from __future__ import annotations

import asyncio

import pytest

import relevo
from relevo.testing import Engine
from relevo_schemas.events import CommandRejected

DAY_S = 86_400


@pytest.mark.parametrize("failover", [False, True])
async def test_a_worker_that_wakes_up_a_day_later_completes_no_job_but_its_own(failover: bool) -> None:
    """The later job would count as done, with the result of the earlier one, and nobody would have run it."""
    app = relevo.WorkerApp(dedup=relevo.MemoryDedupStore())
    go_on = asyncio.Event()

    @app.job("charge")
    async def charge(job: relevo.Job) -> str:
        if job.variables == "first":
            return "first"
        await go_on.wait()
        return "second"

    async with Engine() as engine:
        engine.run(app)
        engine.freeze_worker(after="start")
        await engine.create("charge", "first", key="k")
        await engine.settle()
        await engine.cancel("k")
        await engine.advance(DAY_S + 1)
        engine.rebalance()
        await engine.create("charge", "other", key="what makes it forget")
        await engine.create("charge", "second", key="k")
        await engine.settle(leave_running=True)
        if failover:
            engine.failover()
        assert (engine.job("k").state, engine.job("k").attempt) == ("ACTIVE", 1)

        engine.thaw_worker()
        await engine.settle(leave_running=True)
        assert engine.job("k").state == "ACTIVE", "its own handler runs yet"
        told = [each.event for each in engine.events if isinstance(each.event, CommandRejected)]
        assert {(each.key, each.reason) for each in told} == {("k", "NOT_FOUND")}
        assert "CompleteJob" in {each.command for each in told}

        go_on.set()
        await engine.settle()
        assert (engine.job("k").state, engine.job("k").result) == ("COMPLETED", "second")


async def test_delivering_twice_means_the_job_that_has_the_key_now() -> None:
    app = relevo.WorkerApp(dedup=relevo.MemoryDedupStore())
    tried: list[str] = []

    @app.job("charge")
    async def charge(job: relevo.Job) -> None:
        tried.append(f"{job.variables} {job.attempt}")
        if job.attempt < 2 and job.variables == "first":
            raise relevo.Fail("not yet", retry_in=0)

    async with Engine() as engine:
        engine.run(app, dedup=relevo.MemoryDedupStore())
        await engine.create("charge", "first", key="k")
        await engine.settle()
        await engine.advance(DAY_S + 1)
        await engine.create("charge", "other", key="what makes it forget")
        engine.rebalance()
        again = await engine.create("charge", "second", key="k")
        await engine.settle()
        engine.rebalance()
        await engine.deliver_twice(again)
        assert tried[-1] == "second 1"
        assert "first 2" in tried
