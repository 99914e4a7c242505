"""Different jobs that are one piece of business, with real stores and several workers."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import psycopg
import pytest

import relevo
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["redis", "sql"])
def test_jobs_with_one_correlation_id_have_one_effect(
    brokers: Brokers, cluster_name: str, kind: str, redis_url: str, postgres_url: str
) -> None:
    """Two tabs, two clicks, two jobs, one charge: whichever worker gets which."""
    orders, copies = 20, 5
    charged: list[str] = []
    lock = threading.Lock()

    def make() -> relevo.WorkerApp:
        store: relevo.DedupStore = (
            relevo.RedisDedupStore(redis_url)
            if kind == "redis"
            else relevo.SqlDedupStore(postgres_url, timeout=10)
        )
        app = relevo.WorkerApp(brokers.kafka, cluster_name, dedup=store)

        @app.job("charge", dedup_by="correlation_id", concurrency=20)
        def charge(job: relevo.Job) -> str:
            with lock:
                charged.append(str(job.correlation_id))
            return job.key

        return app

    with (
        EngineThread(brokers.kafka, cluster_name, 2, ["charge"]),
        relevo.Client(brokers.kafka, cluster_name) as client,
        ExitStack() as running,
    ):
        for _ in range(2):
            running.enter_context(make())
        jobs = [client.create("charge", correlation_id=f"o-{n % orders}") for n in range(orders * copies)]
        results = [client.await_result(job, timeout=60).value for job in jobs]
    assert sorted(charged) == sorted(f"o-{n}" for n in range(orders))
    for n in range(orders):
        assert len(set(results[n::orders])) == 1


@pytest.mark.timeout(180)
def test_a_transaction_holds_for_all_jobs_of_one_business(
    brokers: Brokers, cluster_name: str, postgres_url: str
) -> None:
    app = relevo.WorkerApp(brokers.kafka, cluster_name, dedup=relevo.SqlDedupStore(postgres_url, timeout=10))

    @app.job("book", dedup_by=lambda job: job.variables["order"])
    async def book(job: relevo.Job) -> None:
        async with job.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", (job.variables["order"],))
            job.done(job.variables["order"])

    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute("CREATE TABLE effects (business text)")
        with (
            EngineThread(brokers.kafka, cluster_name, 2, ["book"]),
            relevo.Client(brokers.kafka, cluster_name) as client,
            app,
        ):
            jobs = [client.create("book", {"order": f"o-{n % 10}"}) for n in range(40)]
            values = [client.await_result(job, timeout=60).value for job in jobs]
        found = database.execute("SELECT business FROM effects ORDER BY business").fetchall()
    assert values == [f"o-{n % 10}" for n in range(40)]
    assert found == [(f"o-{n}",) for n in range(10)]
