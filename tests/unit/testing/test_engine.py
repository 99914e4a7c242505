"""An engine in memory: handlers run as they would, and hours pass in no time."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

import relevo
from relevo.testing import Engine, KeptDedupStore
from relevo_schemas.events import JobCompleted


class Mail:
    """An app with a coroutine handler and a plain one, and what they did."""

    def __init__(self, dedup: relevo.DedupStore | None = None) -> None:
        self.sent: list[tuple[str, int]] = []
        self.app = relevo.WorkerApp(dedup=dedup)
        self.app.job("send-email")(self.send)
        self.app.job("print-letter")(self.print_letter)

    async def send(self, job: relevo.Job) -> dict[str, str]:
        await asyncio.sleep(0)
        self.sent.append((job.key, job.attempt))
        return {"to": job.variables["to"], "with": job.idempotency_key}

    def print_letter(self, job: relevo.Job) -> None:
        self.sent.append((job.key, job.attempt))


async def test_a_job_goes_all_the_way() -> None:
    """The shortest test that a user writes would show nothing."""
    mail = Mail()
    async with Engine() as engine:
        engine.run(mail.app)
        job = await engine.create("send-email", {"to": "ana@example.com"}, key="k1", correlation_id="order-7")
        assert engine.job("k1").state == "ACTIVE"
        await engine.settle()
        view = engine.job(job)
        assert (view.state, view.attempt, view.retries) == ("COMPLETED", 1, 3)
        assert view.result == {"to": "ana@example.com", "with": "workflow-k1"}
        assert (await engine.await_result(job)).value == view.result
        assert engine.stats.done == 1


def test_a_test_that_is_no_coroutine() -> None:
    """Half of all test suites are not asynchronous."""
    mail = Mail()
    with Engine() as engine:
        engine.run(mail.app)
        job = engine.create("send-email", {"to": "ana@example.com"}, delay=60)
        letter = engine.create("print-letter", key="letter")
        engine.settle()
        assert engine.job(letter).result is None
        assert engine.job(job).state == "SCHEDULED"
        engine.advance(60)
        assert engine.await_result(job).value["to"] == "ana@example.com"


@pytest.mark.parametrize("job_type", ["send-email", "print-letter"])
async def test_a_hundred_jobs_take_no_time(job_type: str) -> None:
    """Tests that take seconds are run by nobody. Processor time, since the machine may be busy."""
    mail = Mail()
    async with Engine() as engine:
        engine.run(mail.app)
        began = time.process_time()
        jobs = [await engine.create(job_type, {"to": "x"}, key=f"k{number}") for number in range(100)]
        await engine.settle()
        used = time.process_time() - began
        assert all(engine.job(job).state == "COMPLETED" for job in jobs)
    assert len(mail.sent) == 100
    assert used < 2


async def test_a_year_passes_at_once() -> None:
    """A delay of a year could be tested by nobody."""
    mail = Mail()
    start = datetime(2030, 1, 1, tzinfo=UTC)
    async with Engine(start=start) as engine:
        engine.run(mail.app)
        later = await engine.create("send-email", {"to": "x"}, delay=365 * 86_400)
        on_time = await engine.create("send-email", {"to": "x"}, run_at=start + timedelta(days=364))
        await engine.advance(364 * 86_400)
        assert engine.now == start + timedelta(days=364)
        assert engine.job(on_time).state == "COMPLETED"
        assert engine.job(later).state == "SCHEDULED"
        await engine.advance(86_400)
        assert engine.job(later).state == "COMPLETED"


async def test_events_are_decoded_and_in_order() -> None:
    """A projection of the log could not be tested with it."""
    mail = Mail()
    async with Engine() as engine:
        engine.run(mail.app)
        await engine.create("send-email", {"to": "x"}, key="k1")
        await engine.settle()
        about = [each for each in engine.events if each.key == "k1"]
        assert [each.kind for each in about] == ["JobCreated", "JobActivated", "JobCompleted"]
        assert isinstance(about[-1].event, JobCompleted)
        assert about[-1].event.result == b'{"to":"x","with":"workflow-k1"}'
        assert [each.offset for each in about] == sorted(each.offset for each in about)
        assert {each.kind for each in engine.events} > {"LeaderElected"}


async def test_failures_are_tried_again_after_the_backoff() -> None:
    """A retry that comes at once, or never, would go unnoticed."""
    app = relevo.WorkerApp()
    seen: list[datetime] = []
    async with Engine() as engine:

        @app.job("flaky")
        async def flaky(job: relevo.Job) -> str:
            seen.append(engine.now)
            if job.attempt < 3:
                raise ConnectionError("provider is away")
            return "done"

        engine.run(app)
        job = await engine.create("flaky", retries=2, backoff=100)
        await engine.settle()
        view = engine.job(job)
        assert (view.state, view.failures, view.retries) == ("SCHEDULED", 1, 1)
        assert "provider is away" in (view.error or "")
        await engine.advance(1_000)
        assert engine.job(job).result == "done"
        pauses = [(after - before).total_seconds() for before, after in itertools.pairwise(seen)]
        assert [round(pause, -2) for pause in pauses] == [100, 200]


async def test_a_job_that_goes_on_failing_waits_for_a_person() -> None:
    """An incident, and its retry, are part of what a handler's author has to try."""
    app = relevo.WorkerApp()
    broken = True

    @app.job("import")
    def load(job: relevo.Job) -> str:
        if broken:
            raise ValueError("no such file")
        return "loaded"

    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("import", retries=0)
        await engine.settle()
        view = engine.job(job)
        assert (view.state, view.cause) == ("INCIDENT", "RETRIES_EXHAUSTED")
        assert "no such file" in (view.error or "")
        broken = False
        await engine.retry(job, wait="decided")
        assert (await engine.await_result(job)).value == "loaded"


async def test_a_business_error_ends_the_job() -> None:
    """`relevo.JobError` is for good: a retry of it would be wrong."""
    app = relevo.WorkerApp()

    @app.job("charge")
    async def charge(job: relevo.Job) -> None:
        raise relevo.JobError("NO_MONEY", "the card is empty")

    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("charge")
        await engine.settle()
        view = engine.job(job)
        assert (view.state, view.code, view.error) == ("ERRORED", "NO_MONEY", "the card is empty")
        with pytest.raises(relevo.JobNotCompleted, match="the card is empty"):
            print(view.result)


async def test_a_job_expires_where_nobody_works() -> None:
    async with Engine(types=["somebody-elses"]) as engine:
        job = await engine.create("somebody-elses", expires_at=engine.now + timedelta(minutes=5))
        await engine.advance(299)
        assert engine.job(job).state == "ACTIVE"
        await engine.advance(1)
        assert engine.job(job).state == "EXPIRED"


async def test_creating_a_key_again_gives_the_same_job() -> None:
    """The first rule of idempotent clients."""
    mail = Mail()
    async with Engine() as engine:
        engine.run(mail.app)
        first = await engine.create("send-email", {"to": "x"}, key="k1", wait="decided")
        await engine.settle()
        again = await engine.create("send-email", {"to": "y"}, key="k1", wait="decided")
        await engine.settle()
        assert (first.created, again.created, again.state) == (True, False, "COMPLETED")
        assert len(mail.sent) == 1


async def test_a_handler_may_create_jobs() -> None:
    """Workflows of several steps are made like this."""
    app = relevo.WorkerApp()
    async with Engine() as engine:

        @app.job("order")
        async def order(job: relevo.Job) -> None:
            await engine.create("invoice", key=f"{job.key}-invoice")

        @app.job("invoice")
        def invoice(job: relevo.Job) -> str:
            return "paid"

        engine.run(app)
        await engine.create("order", key="o1")
        await engine.settle()
        assert engine.job("o1-invoice").result == "paid"


async def test_a_long_handler_keeps_its_lease_and_is_told_of_a_cancellation() -> None:
    """A handler that runs for an hour must not be started twice, and must hear that nobody wants it."""
    app = relevo.WorkerApp()
    go_on = asyncio.Event()
    lost: list[str | None] = []

    @app.job("video")
    async def render(job: relevo.Job) -> None:
        await go_on.wait()
        lost.append(job.lost_reason)

    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("video", lease=10)
        await engine.settle(leave_running=True)
        await engine.advance(3_600, leave_running=True)
        view = engine.job(job)
        assert (view.state, view.attempt, view.lease_expiries) == ("ACTIVE", 1, 0)
        assert view.lease_until is not None
        await engine.cancel(job, "not needed")
        await engine.settle(leave_running=True)
        go_on.set()
        await engine.settle()
        assert lost == ["the job is CANCELLED already"]
        assert engine.job(job).error == "not needed"


async def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    """A type's timeout is counted in virtual time, as its lease is."""
    app = relevo.WorkerApp()

    @app.job("slow", timeout=60)
    async def slow(job: relevo.Job) -> None:
        await asyncio.Event().wait()

    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("slow", retries=0)
        await engine.settle(leave_running=True)
        await engine.advance(59, leave_running=True)
        assert engine.job(job).state == "ACTIVE"
        await engine.advance(2, leave_running=True)
        await engine.settle()
        assert "timeout" in (engine.job(job).error or "")


async def test_jobs_wait_for_a_free_place() -> None:
    """More handlers at once than allowed would break whoever they call."""
    app = relevo.WorkerApp()
    lock = threading.Lock()
    at_once = most = 0

    @app.job("narrow", concurrency=2)
    def narrow(job: relevo.Job) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.001)
        with lock:
            at_once -= 1

    async with Engine() as engine:
        engine.run(app)
        jobs = [await engine.create("narrow") for _ in range(20)]
        await engine.settle()
        assert {engine.job(job).state for job in jobs} == {"COMPLETED"}
    assert 1 <= most <= 2


async def test_two_apps_and_an_object_form() -> None:
    """A test may need the workers of several services."""
    mail, store = Mail(), KeptDedupStore()
    with relevo.Client("localhost:1") as client:
        other = relevo.JobWorker(
            client=client, job_type="charge", handler=lambda job: "charged", dedup_store=store
        )
        async with Engine() as engine:
            engine.run(mail.app)
            engine.run(other)
            job = await engine.create("charge")
            await engine.create("print-letter")
            await engine.settle()
            assert engine.job(job).result == "charged"
            assert len(mail.sent) == 1
    assert len(store) == 1


async def test_the_workers_time_is_real_again_afterwards() -> None:
    """A worker for a real cluster in the same process would run on a clock that stands still."""
    from relevo.dedup import link
    from relevo.worker import gate, leases

    modules = (gate, leases, link)
    async with Engine(), Engine():
        assert {vars(module)["time"] is time for module in modules} == {False}
        assert all(abs(vars(module)["time"].monotonic() - time.monotonic()) < 60 for module in modules)
    assert {vars(module)["time"] is time for module in modules} == {True}


async def test_a_key_that_is_used_anew_tells_of_its_latest_job() -> None:
    """A result of yesterday's job would pass for today's, which may have failed."""
    app = relevo.WorkerApp()

    @app.job("charge", ttl=1)
    async def charge(job: relevo.Job) -> str:
        if job.variables == "second":
            raise relevo.JobError("NO_MONEY", "none left")
        return "paid"

    async with Engine(partitions=1) as engine:
        engine.run(app)
        first = await engine.create("charge", "first", key="k1")
        assert (await engine.await_result(first)).value == "paid"
        await engine.advance(3 * 86_400)
        await engine.create("charge", key="between")  # by now k1 is forgotten
        second = await engine.create("charge", "second", key="k1")
        assert engine.job("k1").result_json == b""
        await engine.settle()
        view = engine.job("k1")
        assert (view.state, view.code, view.error) == ("ERRORED", "NO_MONEY", "none left")
        assert view.result_json == b""
        assert (await engine.await_result("k1")).state == "ERRORED"
        assert (await engine.await_result(second)).state == "ERRORED"
        assert (await engine.await_result(first)).value == "paid", "as a client with this handle is told"
        await engine.advance(3 * 86_400)
        await engine.create("charge", key="after")
        with pytest.raises(relevo.InvalidRequest, match="ended as ERRORED, and the engine has forgotten it"):
            engine.job("k1")


@pytest.mark.parametrize("watch", [True, False])
async def test_an_app_that_does_not_follow_the_log_hears_of_no_cancellation(watch: bool) -> None:
    """A test of it would show what never happens in production."""
    app = relevo.WorkerApp(watch=watch)
    go_on, lost = asyncio.Event(), []

    @app.job("render")
    async def render(job: relevo.Job) -> None:
        await go_on.wait()
        lost.append(job.lost)

    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("render")
        await engine.settle(leave_running=True)
        await engine.advance(60, leave_running=True)
        await engine.cancel(job)
        await engine.settle(leave_running=True)
        go_on.set()
        await engine.settle()
    assert lost == [watch]


@pytest.mark.parametrize("suspect_after", [None, 1])
async def test_a_suspect_runs_alone_as_the_app_says(suspect_after: int | None) -> None:
    """Who has switched it off waits in vain for the other jobs to stand still."""
    app = relevo.WorkerApp(dedup=KeptDedupStore(), suspect_after=suspect_after)
    go_on = asyncio.Event()
    begun: list[str] = []

    @app.job("work")
    async def work(job: relevo.Job) -> None:
        begun.append(job.key)
        if job.key == "killer" and job.attempt > 1:
            await go_on.wait()

    async with Engine() as engine:
        engine.run(app)
        engine.crash_worker(after="start")
        await engine.create("work", key="killer", lease=10)
        await engine.settle()
        await engine.advance(40, leave_running=True)
        await engine.create("work", key="other")
        await engine.settle(leave_running=True)
        assert begun == (["killer"] if suspect_after else ["killer", "other"])
        go_on.set()
        await engine.settle()
        assert begun == ["killer", "other"]
