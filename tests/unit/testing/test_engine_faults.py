"""What a test can do to a worker and to the engine, and what then happens to a job."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

import relevo
from relevo.testing import Engine, KeptDedupStore, WorkerDied
from relevo.testing.inmemory.faults import STEPS


class Bank:
    """An app whose effect is counted."""

    def __init__(self, dedup: relevo.DedupStore | None = None, **options: object) -> None:
        self.charged: list[str] = []
        self.app = relevo.WorkerApp(dedup=dedup)
        self.app.job("charge", **options)(self.charge)  # type: ignore[arg-type]

    async def charge(self, job: relevo.Job) -> dict[str, int]:
        self.charged.append(job.key)
        return {"run": len(self.charged)}


@pytest.mark.parametrize("step", STEPS)
async def test_a_job_survives_the_death_of_its_worker_at_each_step(step: str) -> None:
    """Whatever dies when, the job ends; with a store that outlives it, only one moment repeats the effect."""
    bank = Bank(KeptDedupStore())
    async with Engine() as engine:
        engine.run(bank.app)
        engine.crash_worker(after=step)
        job = await engine.create("charge")
        await engine.settle()
        assert engine.pending_faults == []
        await engine.advance(60)
        assert engine.job(job).state == "COMPLETED"
        assert len(bank.charged) == (2 if step == "effect" else 1)


async def test_nothing_happens_after_the_step_at_which_a_worker_dies() -> None:
    """A crash that still commits, completes or gives its claim back tests nothing."""
    bank = Bank(KeptDedupStore())
    async with Engine() as engine:
        engine.run(bank.app)
        engine.crash_worker(after="claim")
        job = await engine.create("charge", lease=30)
        await engine.settle()
        assert bank.charged == []
        assert engine.job(job).state == "ACTIVE"
        await engine.advance(28)
        assert bank.charged == []  # the dead worker's claim holds
        await engine.advance(4)
        assert len(bank.charged) == 1


async def test_a_store_in_memory_dies_with_its_worker() -> None:
    """A test that lets it live promises what production doesn't keep."""
    bank = Bank(relevo.MemoryDedupStore())
    async with Engine() as engine:
        engine.run(bank.app)
        engine.crash_worker(after="done")
        await engine.create("charge")
        await engine.settle()
        await engine.advance(60)
        assert len(bank.charged) == 2


async def test_an_activation_that_comes_twice_runs_once_and_tells_the_first_result() -> None:
    """The usual duplicate."""
    bank = Bank()
    async with Engine() as engine:
        engine.run(bank.app)
        job = await engine.create("charge", key="k1")
        await engine.settle()
        await engine.deliver_twice(job)
        assert bank.charged == ["k1"]
        assert engine.job(job).result == {"run": 1}
        assert engine.stats.duplicates_suppressed == 1


async def test_a_lost_completion_is_sent_again_from_the_store() -> None:
    """Nobody would ever hear of a job that is done."""
    bank = Bank(KeptDedupStore())
    async with Engine() as engine:
        engine.run(bank.app)
        engine.lose_completion()
        job = await engine.create("charge")
        await engine.settle()
        assert (len(bank.charged), engine.job(job).state) == (1, "ACTIVE")
        await engine.advance(3_601)
        assert len(bank.charged) == 1
        assert engine.job(job).result == {"run": 1}


async def test_a_lease_that_runs_out_gives_the_job_to_another_and_the_first_ends_late() -> None:
    """A paused machine wakes up in the middle of a job that was done long ago."""
    bank = Bank(KeptDedupStore())
    async with Engine() as engine:
        engine.run(bank.app)
        engine.freeze_worker(after="start")
        job = await engine.create("charge")
        await engine.settle()
        await engine.expire_lease(job)
        view = engine.job(job)
        assert (view.state, view.lease_expiries) == ("COMPLETED", 1)
        assert view.result == {"run": 1}
        assert len(bank.charged) == 2
        kinds = [each.kind for each in engine.events if each.key == job.key]
        assert kinds.count("JobTimedOut") == 1


async def test_a_lease_runs_out_under_a_handler_that_waits() -> None:
    """The handler can see in `job.lost` that another has taken over."""
    app = relevo.WorkerApp(dedup=KeptDedupStore())
    go_on = asyncio.Event()
    begun: list[str] = []
    lost: list[bool] = []

    @app.job("charge")
    async def charge(job: relevo.Job) -> None:
        begun.append(job.key)
        if len(begun) == 1:
            await go_on.wait()
            lost.append(job.lost)

    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("charge")
        await engine.settle(leave_running=True)
        await engine.expire_lease(job, leave_running=True)
        await engine.advance(30, leave_running=True)
        go_on.set()
        await engine.settle()
        assert lost == [True]
        assert len(begun) == 2


@pytest.mark.parametrize("asked", [True, False])
async def test_a_lost_attempt_is_cancelled_where_its_author_asked_for_it(asked: bool) -> None:
    """Two coroutines that send the same mail, one of them for nobody; and the cancelled one is no failure."""
    app = relevo.WorkerApp(dedup=KeptDedupStore())
    ends: list[str] = []

    @app.job("charge", cancel_when_lost=asked)
    async def charge(job: relevo.Job) -> None:
        try:
            if job.attempt == 1:
                await asyncio.Event().wait()
            ends.append("done")
        except asyncio.CancelledError:
            ends.append(f"cancelled, as {job.lost_reason}")
            raise

    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("charge", retries=0)
        await engine.settle(leave_running=True)
        await engine.expire_lease(job, leave_running=True)
        await engine.advance(60, leave_running=True)
        assert engine.job(job).state == "COMPLETED"
        kinds = [each.kind for each in engine.events if each.key == job.key]
        assert "JobFailed" not in kinds
        cancelled = [end for end in ends if end == "cancelled, as another worker has claimed the job"]
        assert (len(cancelled), ends.count("done"), len(ends)) == ((1, 1, 2) if asked else (0, 1, 1))


async def test_a_handler_that_is_called_off_as_its_job_was_cancelled_is_not_begun_again() -> None:
    """Its claim is its own still: asked again, the store would say that it may run."""
    app = relevo.WorkerApp(dedup=KeptDedupStore())
    begun: list[int] = []

    @app.job("charge", cancel_when_lost=True)
    async def charge(job: relevo.Job) -> None:
        begun.append(job.attempt)
        await asyncio.Event().wait()

    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("charge", lease=3)
        await engine.settle(leave_running=True)
        await engine.advance(2, leave_running=True)  # reported, and renewed once, so that it is watched
        await engine.cancel(job)
        await engine.advance(10)
        assert engine.job(job).state == "CANCELLED"
        assert begun == [1]
        assert engine.stats.stale_dropped == 1


async def test_a_new_leader_knows_everything_from_the_log() -> None:
    """A failover in the middle of anything must be seen by nobody."""
    bank = Bank()
    async with Engine() as engine:
        engine.run(bank.app)
        scheduled = await engine.create("charge", delay=10)
        engine.failover()
        await engine.create("charge")
        engine.failover()
        await engine.settle()
        await engine.advance(10)
        engine.failover()
        assert engine.job(scheduled).state == "COMPLETED"
        assert len(bank.charged) == 2
        elected = [each.event.epoch for each in engine.events if each.kind == "LeaderElected"]
        assert sorted(elected) == [1, 1, 2, 2, 3, 3, 4, 4]


async def test_nothing_runs_while_the_store_is_silent() -> None:
    """An effect without a claim is one that happens twice."""
    bank = Bank()
    async with Engine() as engine:
        engine.run(bank.app)
        engine.lose_store(30)
        job = await engine.create("charge")
        await engine.advance(25)
        assert bank.charged == []
        assert engine.stats.unknown_claims > 0
        await engine.advance(10)
        assert engine.job(job).state == "COMPLETED"


async def test_a_rebalance_repeats_nothing_that_another_still_runs() -> None:
    """The new owner of a partition reads again what the former one is at."""
    bank = Bank(KeptDedupStore())
    async with Engine() as engine:
        engine.run(bank.app)
        engine.freeze_worker(after="start")
        job = await engine.create("charge")
        await engine.settle()
        engine.rebalance()
        await engine.settle()
        assert bank.charged == []
        engine.thaw_worker()
        await engine.advance(5)
        assert len(bank.charged) == 1
        assert engine.job(job).state == "COMPLETED"
        assert engine.stats.duplicates_suppressed == 1


@pytest.mark.parametrize("plain", [False, True])
async def test_a_worker_dies_inside_a_handler(plain: bool) -> None:
    """Between two effects of one handler is a moment, too."""
    app = relevo.WorkerApp(dedup=KeptDedupStore())
    steps: list[str] = []

    def work(job: relevo.Job) -> None:
        steps.append("reserve")
        if len(steps) == 1:
            raise WorkerDied
        steps.append("pay")

    async def work_async(job: relevo.Job) -> None:
        work(job)

    app.job("charge")(work if plain else work_async)
    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("charge")
        await engine.settle()
        assert engine.job(job).state == "ACTIVE"  # nobody heard how it ended
        assert engine.job(job).failures == 0
        await engine.advance(60)
        assert steps == ["reserve", "reserve", "pay"]
        assert engine.job(job).state == "COMPLETED"


async def test_neighbours_of_a_worker_that_dies_are_cancelled() -> None:
    """A handler that goes on after its process has died is no crash."""
    app = relevo.WorkerApp(dedup=KeptDedupStore())
    ended: list[str] = []

    @app.job("wait")
    async def wait(job: relevo.Job) -> None:
        if job.key == "quick":
            return
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(job.key)

    async with Engine() as engine:
        engine.run(app)
        await engine.create("wait", key="long")
        await engine.settle(leave_running=True)
        engine.crash_worker(after="effect")
        await engine.create("wait", key="quick")
        await engine.settle(leave_running=True)
        await asyncio.sleep(0)
        assert ended == ["long"]


async def test_a_job_that_is_run_at_most_once_is_lost_rather_than_repeated() -> None:
    bank = Bank(delivery="at-most-once")
    async with Engine() as engine:
        engine.run(bank.app)
        engine.crash_worker(after="effect")
        job = await engine.create("charge")
        await engine.settle()
        await engine.advance(7_200)
        assert len(bank.charged) == 1
        assert engine.job(job).state == "ERRORED"
        assert engine.job(job).code == "MAYBE_RUN"


async def test_a_database_as_store_is_the_users_own(tmp_path: Path) -> None:
    """Claim, effect and done mark in one transaction, with the store that production has."""
    place = tmp_path / "bank.db"
    with sqlite3.connect(place) as database:
        database.execute("CREATE TABLE payments (job TEXT)")
    store = relevo.SqlDedupStore(f"sqlite:///{place}")
    app = relevo.WorkerApp(dedup=store)

    @app.job("charge")
    def charge(job: relevo.Job) -> None:
        with job.transaction() as connection:
            connection.execute("INSERT INTO payments VALUES (?)", (job.key,))
            job.done({"paid": True})

    async with Engine() as engine:
        engine.run(app)
        engine.crash_worker(after="effect")
        job = await engine.create("charge")
        await engine.settle()
        await engine.advance(60)
        assert engine.job(job).result == {"paid": True}
    store.close()
    assert database.execute("SELECT count(*) FROM payments").fetchone() == (1,)
    database.close()


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("late", [True, False])
async def test_a_transaction_gets_no_answer_either_while_the_store_is_silent(
    tmp_path: Path, plain: bool, late: bool
) -> None:
    """With the strongest store a test would never see what its outage does."""
    with sqlite3.connect(tmp_path / "bank.db") as database:
        database.execute("CREATE TABLE payments (job TEXT)")
    store = relevo.SqlDedupStore(f"sqlite:///{tmp_path}/bank.db")
    app = relevo.WorkerApp(dedup=store)
    errors: list[str] = []
    async with Engine() as engine:

        def charge(job: relevo.Job) -> None:
            silence = not errors
            if silence and not late:
                engine.lose_store(20)
            try:
                with job.transaction() as connection:
                    connection.execute("INSERT INTO payments VALUES (?)", (job.key,))
                    job.done({"paid": True})
                    if silence and late:
                        engine.lose_store(20)
            except relevo.StoreUnavailable as error:
                errors.append(str(error))
                raise

        async def charge_async(job: relevo.Job) -> None:
            silence = not errors
            if silence and not late:
                engine.lose_store(20)
            try:
                async with job.transaction() as connection:
                    connection.execute("INSERT INTO payments VALUES (?)", (job.key,))
                    job.done({"paid": True})
                    if silence and late:
                        engine.lose_store(20)
            except relevo.StoreUnavailable as error:
                errors.append(str(error))
                raise

        app.job("charge")(charge if plain else charge_async)
        engine.run(app)
        job = await engine.create("charge")
        await engine.settle()
        assert len(errors) == 1
        assert "lost by the test" in errors[0]
        await engine.advance(60)
        assert engine.job(job).result == {"paid": True}
    store.close()
    assert database.execute("SELECT count(*) FROM payments").fetchone() == (1,)
    database.close()


async def test_a_job_that_is_run_at_most_once_gets_to_the_step_after_its_completion() -> None:
    """It was committed long before: a crash that waits for a commit would never come."""
    bank = Bank(delivery="at-most-once")
    async with Engine() as engine:
        engine.run(bank.app)
        engine.crash_worker(after="complete")
        job = await engine.create("charge")
        await engine.settle()
        assert engine.pending_faults == []
        assert engine.job(job).state == "COMPLETED"
