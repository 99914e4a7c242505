"""Progress in the engine in memory: a checkpoint on its real way from one attempt to the next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import relevo
from relevo.testing import Engine, KeptDedupStore, WorkerDied


class Export:
    """An export by pages that breaks once, in the middle."""

    def __init__(self, pages: int = 5, breaks_at: int = 3) -> None:
        self.pages, self.breaks_at = pages, breaks_at
        self.exported: list[int] = []
        self.found: list[Any] = []
        self.app = relevo.WorkerApp(dedup=KeptDedupStore())

    def run(self, job: relevo.Job) -> dict[str, int]:
        self.found.append(job.progress)
        page = (job.progress or {"page": 0})["page"]
        while page < self.pages:
            if page == self.breaks_at and job.attempt == 1:
                raise ConnectionError("the connection broke")
            self.exported.append(page)
            page += 1
            job.checkpoint({"page": page})
        return {"pages": page}

    async def run_async(self, job: relevo.Job) -> dict[str, int]:
        await asyncio.sleep(0)
        return self.run(job)


@pytest.mark.parametrize("kind", ["run", "run_async"])
async def test_the_next_attempt_goes_on_where_the_last_one_broke(kind: str) -> None:
    """The failure follows the last page at once: what was stored must not arrive behind it."""
    export = Export()
    export.app.job("export")(getattr(export, kind))
    async with Engine() as engine:
        engine.run(export.app)
        job = await engine.create("export", backoff=1)
        await engine.settle()
        assert export.exported == [0, 1, 2]
        await engine.advance(10)
        assert engine.job(job).state == "COMPLETED"
        assert export.exported == [0, 1, 2, 3, 4]
        assert export.found == [None, {"page": 3}]


async def test_it_is_handed_on_when_the_worker_dies_and_when_the_leader_does() -> None:
    export = Export()
    die = asyncio.Event()

    async def dies_once(job: relevo.Job) -> None:
        export.found.append(job.progress)
        if job.progress is None:
            job.checkpoint({"page": 1})
            job.checkpoint({"page": 2})
            await die.wait()
            raise WorkerDied

    export.app.job("export")(dies_once)
    async with Engine() as engine:
        engine.run(export.app)
        job = await engine.create("export", lease=5)
        await engine.settle(leave_running=True)
        await engine.advance(1, leave_running=True)
        engine.failover()
        die.set()
        await engine.advance(30)
        assert engine.job(job).state == "COMPLETED"
        assert export.found == [None, {"page": 2}]


async def test_a_handler_that_says_how_far_it_is_hears_of_its_mistakes() -> None:
    export = Export()
    heard: list[str] = []

    async def handler(job: relevo.Job) -> None:
        for detail in (object(), "x" * 70_000):
            with pytest.raises(relevo.InvalidRequest) as caught:
                job.checkpoint(detail)
            heard.append(str(caught.value))

    export.app.job("export")(handler)
    async with Engine() as engine:
        engine.run(export.app)
        job = await engine.create("export")
        await engine.settle()
        assert engine.job(job).state == "COMPLETED"
    assert "is not JSON" in heard[0]
    assert "70002 bytes, 65536 are allowed" in heard[1]
