"""Real workers whose handlers put their effect into the job's own transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

import relevo
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread
from tests.support.waiting import wait_until

COUNT = "SELECT count(*), count(DISTINCT key) FROM effects"


@pytest.fixture
def database(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE effects (key text)")
        yield connection


@pytest.mark.timeout(180)
def test_every_job_has_its_effect_once_with_coroutines_and_with_threads(
    brokers: Brokers, cluster_name: str, postgres_url: str, database: psycopg.Connection
) -> None:
    """Half of the handlers fail after their effect the first time: it must be gone, and come again."""
    total, failed = 60, set[str]()
    app = relevo.WorkerApp(brokers.kafka, cluster_name, dedup=relevo.SqlDedupStore(postgres_url, timeout=10))

    def fail_once(job: relevo.Job) -> None:
        if int(job.key.rpartition("-")[2]) % 2 and job.key not in failed:
            failed.add(job.key)
            raise relevo.Fail("the first time it fails", retry_in=0)

    @app.job("coroutine")
    async def with_coroutine(job: relevo.Job) -> None:
        async with job.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", (job.key,))
            fail_once(job)
            job.done({"key": job.key})

    @app.job("thread")
    def with_thread(job: relevo.Job) -> None:
        with job.transaction() as connection:
            connection.execute("INSERT INTO effects VALUES (%s)", (job.key,))
            fail_once(job)
            job.done({"key": job.key})

    with (
        EngineThread(brokers.kafka, cluster_name, 2, ["coroutine", "thread"]),
        relevo.Client(brokers.kafka, cluster_name) as client,
        app,
    ):
        jobs = [
            client.create(name, key=f"{name}-{n}") for name in ("coroutine", "thread") for n in range(total)
        ]
        values = [client.await_result(job, timeout=120).value for job in jobs]
    assert values == [{"key": job.key} for job in jobs]
    assert database.execute(COUNT).fetchone() == (2 * total, 2 * total)
    assert len(failed) == total
    assert app.stats.failed == total


@pytest.mark.timeout(180)
def test_a_transaction_longer_than_its_claim_is_not_lost(
    brokers: Brokers, cluster_name: str, postgres_url: str, database: psycopg.Connection
) -> None:
    """The claim's row is locked by its own transaction and can't be renewed: that is no loss."""
    app = relevo.WorkerApp(brokers.kafka, cluster_name, dedup=relevo.SqlDedupStore(postgres_url, timeout=10))
    inside, leave = threading.Event(), threading.Event()
    lost: list[bool] = []

    @app.job("slow", lease=1.0)
    def slow(job: relevo.Job) -> None:
        with job.transaction() as connection:
            connection.execute("INSERT INTO effects VALUES (%s)", (job.key,))
            inside.set()
            leave.wait(60)
            lost.append(job.lost)
            job.done("ok")

    with (
        EngineThread(brokers.kafka, cluster_name, 1, ["slow"]),
        relevo.Client(brokers.kafka, cluster_name) as client,
        app,
    ):
        job = client.create("slow", lease=1.0)
        assert inside.wait(60)
        # Renewed a few times by the engine's clock, while the database's claim is over (3 s at least).
        wait_until(lambda: app.stats.extended >= 12, "the lease was renewed for longer than the claim")
        rest = "SELECT count(*) FROM dedup_left"
        database.execute("CREATE VIEW dedup_left AS SELECT 1 FROM relevo_dedup WHERE expires_at < now()")
        wait_until(lambda: database.execute(rest).fetchone() == (1,), "the claim's time is over")
        leave.set()
        assert client.await_result(job, timeout=60).value == "ok"
    assert lost == [False]
    assert database.execute(COUNT).fetchone() == (1, 1)


@pytest.mark.timeout(120)
def test_a_type_without_a_database_says_what_is_missing(brokers: Brokers, cluster_name: str) -> None:
    app = relevo.WorkerApp(brokers.kafka, cluster_name)

    @app.job("wrong")
    async def wrong(job: relevo.Job) -> None:
        async with job.transaction():
            pass

    with (
        EngineThread(brokers.kafka, cluster_name, 1, ["wrong"]),
        relevo.Client(brokers.kafka, cluster_name) as client,
        app,
    ):
        client.create("wrong", retries=0)
        with relevo.JobEvents(brokers.kafka, cluster_name, kinds=["JobFailed", "JobIncident"]) as events:
            found: list[relevo.JobEvent] = []
            while not found:
                found = events.read(0.2)
    assert "needs a SqlDedupStore: MemoryDedupStore" in str(found[0].event)
