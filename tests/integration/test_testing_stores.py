"""`relevo.testing` with the stores that production has: claims end in virtual time, the rest is theirs."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
import redis

import relevo
from relevo.testing import Engine, assert_idempotent, assert_idempotent_async

JOB = {"type": "charge"}
AFTER_EFFECT = "the worker dies after the effect, before its done mark"
LATE = "its lease runs out, and the first attempt ends late"


@pytest.fixture(params=["redis", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[relevo.DedupStore]:
    """A store in a real server."""
    found: relevo.DedupStore = (
        relevo.RedisDedupStore(request.getfixturevalue("redis_url"), timeout=10)
        if request.param == "redis"
        else relevo.SqlDedupStore(request.getfixturevalue("postgres_url"), timeout=10)
    )
    yield found
    found.close()


async def test_a_dead_workers_claim_ends_in_virtual_time(store: relevo.DedupStore) -> None:
    """A test with a real store would have to wait for its leases, half a minute each."""
    charged: list[str] = []
    app = relevo.WorkerApp(dedup=store)

    @app.job("charge")
    async def charge(job: relevo.Job) -> int:
        charged.append(job.key)
        return len(charged)

    async with Engine() as engine:
        engine.run(app)
        engine.crash_worker(after="claim")
        job = await engine.create("charge", lease=600)
        await engine.advance(590)
        assert charged == []
        await engine.advance(20)
        assert engine.job(job).result == 1
        await engine.deliver_twice(job)
        assert len(charged) == 1


def test_a_handler_that_takes_no_care_is_found(store: relevo.DedupStore) -> None:
    """The same two moments as with the store that stands for these."""
    charged: list[str] = []
    app = relevo.WorkerApp(dedup=store)

    @app.job("charge")
    def charge(job: relevo.Job) -> None:
        charged.append(job.key)

    with pytest.raises(AssertionError) as caught:
        assert_idempotent(app, JOB, charged)
    marked = [line[4:].rsplit(maxsplit=3)[0] for line in str(caught.value).splitlines() if line[:4] == " -> "]
    assert marked == [AFTER_EFFECT, LATE]


async def test_a_transaction_in_postgresql_passes(postgres_url: str) -> None:
    """Also where the first attempt wakes up long after another has done the job."""
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute("CREATE TABLE payments (job text)")
        store = relevo.SqlDedupStore(postgres_url, timeout=10)
        app = relevo.WorkerApp(dedup=store)

        @app.job("charge")
        async def charge(job: relevo.Job) -> None:
            async with job.transaction() as connection:
                await connection.execute("INSERT INTO payments VALUES (%s)", (job.key,))
                job.done({"paid": True})

        def payments() -> int:
            found = database.execute("SELECT count(*) FROM payments").fetchone()
            return int(found[0]) if found else 0

        await assert_idempotent_async(app, JOB, payments)
        store.close()


def test_a_redis_of_the_users_own_is_left_open(redis_url: str) -> None:
    """The next test has the same app."""
    with redis.Redis.from_url(redis_url) as client:
        app = relevo.WorkerApp(dedup=relevo.RedisDedupStore(client=client))
        app.job("charge")(lambda job: None)
        for _ in range(2):
            with Engine() as engine:
                engine.run(app)
                job = engine.create("charge", key="the-same-key-in-every-test")
                engine.settle()
                assert engine.job(job).state == "COMPLETED"
                assert engine.stats.done == 1
        assert client.ping()
