"""One job of a correlation id at a time, with the real core and whole workers, in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import relevo
from relevo.dedup.store import Claim, Held
from relevo.testing import Engine, KeptDedupStore, assert_idempotent
from relevo.worker.locks import OrderLocks


class Ledger:
    """Who is in, by correlation id; written by handlers."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, str]] = []
        self.overlaps: list[tuple[str, str]] = []
        self._inside: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def inside(self, job: relevo.Job) -> Iterator[None]:
        owner = str(job.correlation_id)
        with self._lock:
            others = self._inside.setdefault(owner, [])
            self.overlaps += [(owner, other) for other in others]
            others.append(job.key)
            self.entered.append((owner, job.key))
        try:
            yield
        finally:
            with self._lock:
                others.remove(job.key)

    def order(self, owner: str) -> list[str]:
        return [key for each, key in self.entered if each == owner]


def app_of(
    ledger: Ledger, *, ordered: bool = True, wait_for: asyncio.Event | None = None
) -> relevo.WorkerApp:
    app = relevo.WorkerApp("localhost:1", "c", dedup=KeptDedupStore())

    @app.job("transfer", ordered=ordered, concurrency=20)
    async def transfer(job: relevo.Job) -> str:
        with ledger.inside(job):
            if wait_for is not None and job.key == "slow":
                await wait_for.wait()
            for _ in range(3):
                await asyncio.sleep(0)
        return job.key

    return app


def work_off(ledger: Ledger, *, ordered: bool, partitions: int = 4) -> None:
    with Engine(partitions=partitions) as engine:
        engine.run(app_of(ledger, ordered=ordered))
        jobs = [
            engine.create("transfer", key=f"{n:03}", correlation_id=f"account-{n % 7}") for n in range(200)
        ]
        assert [engine.await_result(job).value for job in jobs] == [job.key for job in jobs]


def test_never_two_of_one_id_and_all_get_done() -> None:
    ledger = Ledger()
    work_off(ledger, ordered=True)
    assert ledger.overlaps == []
    assert len(ledger.entered) == 200


def test_the_ledger_sees_two_of_one_id_where_the_type_is_not_ordered() -> None:
    """Else the tests here could not fail."""
    ledger = Ledger()
    work_off(ledger, ordered=False)
    assert ledger.overlaps


def test_jobs_of_one_partition_run_in_the_order_of_their_creation() -> None:
    ledger = Ledger()
    work_off(ledger, ordered=True, partitions=1)
    for owner in range(7):
        assert ledger.order(f"account-{owner}") == [f"{n:03}" for n in range(200) if n % 7 == owner]


def test_a_retried_attempt_waits_its_backoff_and_others_pass_meanwhile() -> None:
    ran = []
    app = relevo.WorkerApp("localhost:1", "c")

    @app.job("transfer", ordered=True)
    async def transfer(job: relevo.Job) -> None:
        ran.append((job.key, job.attempt))
        if job.key == "a" and job.attempt == 1:
            raise relevo.Fail("not now", retry_in=60)

    with Engine(partitions=1) as engine:
        engine.run(app)
        for key in "ab":
            engine.create("transfer", key=key, correlation_id="x")
        engine.settle()
        assert ran == [("a", 1), ("b", 1)]
        engine.advance(61)
        assert ran == [("a", 1), ("b", 1), ("a", 2)]


def test_a_job_gets_in_line_when_it_is_due() -> None:
    ledger = Ledger()
    with Engine(partitions=1) as engine:
        engine.run(app_of(ledger))
        engine.create("transfer", key="later", correlation_id="x", delay=5.0)
        engine.create("transfer", key="now", correlation_id="x")
        engine.advance(6)
    assert ledger.order("x") == ["now", "later"]


async def next_one_waits(ledger: Ledger) -> bool:
    """The partitions go to another process while a job runs; whether another one of its id waits for it."""
    async with Engine(partitions=2) as engine:
        release = asyncio.Event()
        engine.run(app_of(ledger, wait_for=release))
        await engine.create("transfer", key="slow", correlation_id="x", lease=10)
        await engine.settle(leave_running=True)
        engine.rebalance()
        await engine.settle(leave_running=True)
        await engine.create("transfer", key="next", correlation_id="x")
        await engine.create("transfer", key="other", correlation_id="y")
        # Longer than the lease: the lock is renewed.
        await engine.advance(35, leave_running=True)
        assert ledger.order("y") == ["other"]
        waited = ledger.order("x") == ["slow"]
        release.set()
        await engine.advance(5)
        assert engine.job("next").state == "COMPLETED"
    return waited


async def test_the_next_one_waits_for_a_job_that_still_runs_in_another_process() -> None:
    ledger = Ledger()
    assert await next_one_waits(ledger)
    assert (ledger.overlaps, ledger.order("x")) == ([], ["slow", "next"])


async def test_without_the_lock_two_processes_run_two_of_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the store's lock is for: the lines of one process know nothing of another's."""
    monkeypatch.setattr(OrderLocks, "take", lambda self, batch, now: batch)
    ledger = Ledger()
    assert not await next_one_waits(ledger)
    assert ledger.overlaps == [("x", "slow")]


def test_a_lock_ends_with_the_worker_that_died() -> None:
    ledger = Ledger()
    with Engine(partitions=2) as engine:
        engine.run(app_of(ledger))
        engine.crash_worker(after="start")
        for key in ("dies", "b", "c"):
            engine.create("transfer", key=key, correlation_id="x", lease=10)
        engine.settle()
        assert ledger.order("x") == []
        engine.advance(30)
        assert sorted(ledger.order("x")) == ["b", "c", "dies"]
    assert ledger.overlaps == []


def test_the_step_claim_is_the_jobs_own_claim() -> None:
    """A test that lets a worker die there means the job, which is claimed after its correlation id."""
    store = KeptDedupStore()
    with Engine(partitions=1) as engine:
        engine.run(app_of(Ledger()), dedup=store)
        engine.crash_worker(after="claim")
        engine.create("transfer", key="a", correlation_id="x")
        engine.settle()
        assert engine.pending_faults == []
        claim = Claim(f"{engine._world.cluster}:dedup:a", "another", 1.0)
        assert isinstance(store.claim([claim])[0], Held)


def test_a_store_that_is_away_stops_an_ordered_type_and_is_no_end_of_the_lock() -> None:
    ledger = Ledger()
    with Engine(partitions=2) as engine:
        engine.run(app_of(ledger))
        engine.lose_store(20)
        for n in range(10):
            engine.create("transfer", key=f"{n}", correlation_id="x")
        engine.advance(15)
        assert ledger.entered == []
        engine.advance(20)
    assert (len(ledger.entered), ledger.overlaps) == (10, [])


def test_a_business_key_and_order_go_together() -> None:
    """Two orders of one customer: one after the other; the second click on one of them: not at all."""
    ledger = Ledger()
    app = relevo.WorkerApp("localhost:1", "c", dedup=KeptDedupStore())

    @app.job("transfer", ordered=True, dedup_by=lambda job: job.variables["order"])
    async def transfer(job: relevo.Job) -> str:
        with ledger.inside(job):
            await asyncio.sleep(0)
        return job.key

    with Engine(partitions=2) as engine:
        engine.run(app)
        jobs = [
            engine.create("transfer", {"order": f"o-{n // 2}"}, key=f"{n}", correlation_id="x")
            for n in range(8)
        ]
        engine.advance(10)
        results = [engine.await_result(job).value for job in jobs]
    assert (len(ledger.entered), ledger.overlaps) == (4, [])
    assert [results[n] == results[n + 1] for n in range(0, 8, 2)] == [True] * 4


def test_every_duplicate_is_suppressed_in_an_ordered_type_too() -> None:
    done: dict[str, int] = {}
    app = relevo.WorkerApp("localhost:1", "c", dedup=KeptDedupStore())

    @app.job("transfer", ordered=True)
    async def transfer(job: relevo.Job) -> None:
        done[job.idempotency_key] = 1

    assert_idempotent(app, {"type": "transfer", "correlation_id": "x"}, done)
