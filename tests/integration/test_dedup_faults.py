"""Dedup stores that lose what they were told, or answer late: nothing is taken for a duplicate or a claim."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
import redis

import relevo
from relevo.dedup.store import MINE, Answer, Claim, Done, Finish, Held, Unknown
from relevo.errors import ClaimLost, StoreUnavailable
from relevo.worker.transactions import Grant
from tests.integration.test_dedup_sql import execute
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread
from tests.support.redis import Redis, own_redis
from tests.support.waiting import wait_until

LONG_S = 600.0
SLOW_S = 2.0


@pytest.fixture
def replica() -> Iterator[Redis]:
    with own_redis() as server:
        yield server


def me(key: str) -> Claim:
    return Claim(key, "me", LONG_S)


def you(key: str) -> Claim:
    return Claim(key, "you", LONG_S)


def kinds(answers: Sequence[Answer]) -> list[type]:
    return [type(answer) for answer in answers]


def test_a_replica_that_never_heard_of_the_last_claims_is_promoted(own_redis: Redis, replica: Redis) -> None:
    """The documented loss is a repeat, never two results: who was forgotten learns that it isn't its own."""
    client = redis.Redis.from_url(own_redis.url)
    host, port = (
        client.connection_pool.connection_kwargs["host"],
        client.connection_pool.connection_kwargs["port"],
    )
    store = relevo.RedisDedupStore(client=client)
    with redis.Redis.from_url(replica.url) as promoted:
        promoted.replicaof(host, port)
        store.claim([me("early"), me("early-claim")])
        store.done([Finish("early", "me", b'"early"')])
        wait_until(lambda: client.wait(1, 100) == 1, "the replica has all of it")
        promoted.replicaof("127.0.0.1", "1")  # cut off, and still a replica
        wait_until(lambda: promoted.info("replication")["master_link_status"] == "down", "it is cut off")
        assert store.claim([me("late-claim"), me("late")]) == [MINE] * 2
        assert store.done([Finish("late", "me", b'"late"')]) == [MINE]
        own_redis.kill()
        assert kinds(store.claim([me("late")])) == [Unknown], "nobody is there"
        # As a client that follows a failover does.
        client.connection_pool = redis.ConnectionPool.from_url(replica.url)
        assert kinds(store.done([Finish("late-claim", "me", b"1")])) == [Unknown], "not promoted yet"
        promoted.replicaof("NO", "ONE")
        assert store.claim([you("early")]) == [Done(b'"early"')]
        assert kinds(store.claim([you("early-claim")])) == [Held], "what was copied is known"
        assert store.claim([you("late"), you("late-claim")]) == [MINE] * 2, "what was not is run again"
        assert kinds(store.renew([me("late-claim")])) == [Held], (
            "and the first one hears that it lost the job"
        )
        assert kinds(store.done([Finish("late-claim", "me", b"1")])) == [Held]
        assert store.done([Finish("late-claim", "you", b"2")]) == [MINE]
        assert store.done([Finish("late-claim", "me", b"1")]) == [Done(b"2")], "there is one result"
    store.close()


def test_a_redis_that_is_emptied_between_claim_and_done(own_redis: Redis) -> None:
    store = relevo.RedisDedupStore(own_redis.url)
    assert store.claim([me("alone"), me("shared")]) == [MINE] * 2
    with redis.Redis.from_url(own_redis.url) as client:
        client.flushall()
    assert store.claim([you("shared")]) == [MINE]
    assert kinds(store.renew([me("alone"), me("shared")])) == [type(MINE), Held]
    answers = store.done([Finish("alone", "me", b"1"), Finish("shared", "me", b"1")])
    assert kinds(answers) == [type(MINE), Held], "done for the one, and not over somebody's head"
    assert store.claim([you("alone")]) == [Done(b"1")]
    store.close()


def transact(store: relevo.SqlDedupStore, key: str, before_end: Any = lambda: None) -> None:
    """An effect in its transaction."""
    with Grant(store, me(key), None).transaction() as connection:
        connection.execute("INSERT INTO effects VALUES (%s)", (key,))
        before_end()


def test_a_table_that_is_emptied_between_claim_and_effect(postgres_url: str) -> None:
    """The claim is gone, and with it the right to the effect: it is rolled back, and the claim made anew."""
    store = relevo.SqlDedupStore(postgres_url, timeout=10)
    execute(postgres_url, "CREATE TABLE effects (key text)")
    assert store.claim([me("k")]) == [MINE]
    execute(postgres_url, "TRUNCATE relevo_dedup")
    with pytest.raises(ClaimLost):
        transact(store, "k")
    assert execute(postgres_url, "SELECT * FROM effects") == []
    assert store.claim([me("k")]) == [MINE]

    def empty_it() -> None:
        # Not under an open transaction: it holds its claim's row.
        with pytest.raises(psycopg.errors.LockNotAvailable):
            execute(postgres_url, "SET lock_timeout = '100ms'", "TRUNCATE relevo_dedup")

    transact(store, "k", empty_it)
    assert kinds(store.claim([you("k")])) == [Done]
    assert execute(postgres_url, "SELECT * FROM effects") == [("k",)]
    store.close()


def test_a_table_that_is_dropped_under_a_worker_is_no_answer(postgres_url: str) -> None:
    """Made anew by itself it would have forgotten everything, and nobody would hear of that."""
    store = relevo.SqlDedupStore(postgres_url, timeout=10)
    store.check()
    execute(postgres_url, "CREATE TABLE effects (key text)")
    assert store.claim([me("k")]) == [MINE]
    execute(postgres_url, "DROP TABLE relevo_dedup")
    for (answer,) in (store.claim([me("k")]), store.renew([me("k")]), store.done([Finish("k", "me", b"1")])):
        assert isinstance(answer, Unknown)
        assert 'relation "relevo_dedup" does not exist' in answer.reason
    with pytest.raises(StoreUnavailable, match="relevo_dedup"):
        transact(store, "k")
    assert execute(postgres_url, "SELECT * FROM effects") == []
    store.check()
    assert store.claim([me("k")]) == [MINE], "whoever starts next makes it, and all go on"
    store.close()


def test_a_transaction_left_open_is_rolled_back_and_its_connection_ended(postgres_url: str) -> None:
    """The handler's task may still hold it, and the next job's statements must not mix with its own."""
    store = relevo.SqlDedupStore(postgres_url, timeout=10, connections=1)
    execute(postgres_url, "CREATE TABLE effects (key text)")
    store.claim([me("k"), me("next")])
    grant = Grant(store, me("k"), None)
    leaked = grant.transaction()
    connection = leaked.__enter__()
    connection.execute("INSERT INTO effects VALUES ('k')")
    leaked.abandon()
    assert connection.closed
    with Grant(store, me("next"), None).transaction() as another:
        assert another is not connection
        another.execute("INSERT INTO effects VALUES ('next')")

    async def coroutine() -> None:
        left = Grant(store, me("k"), None).transaction()
        held = await left.__aenter__()
        await held.execute("INSERT INTO effects VALUES ('k')")
        left.abandon()
        assert held.closed
        async with asyncio.timeout(10), Grant(store, me("k"), None).transaction() as fresh:
            await fresh.execute("INSERT INTO effects VALUES ('k')")

    asyncio.run(coroutine())
    assert execute(postgres_url, "SELECT * FROM effects") == [("next",), ("k",)]
    store.close()


class SlowStore(relevo.MemoryDedupStore):
    """Every answer takes its time."""

    def _late(self) -> None:
        time.sleep(SLOW_S)

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:
        self._late()
        return super().claim(claims)

    def renew(self, claims: Sequence[Claim]) -> list[Answer]:
        self._late()
        return super().claim(claims)

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:
        self._late()
        return super().done(finishes)


def test_a_store_that_takes_two_seconds_for_each_call_costs_time_only(
    brokers: Brokers, cluster_name: str
) -> None:
    """It must neither hold up reading, nor let leases run out that a round of its calls outlasts."""
    app = relevo.WorkerApp(brokers.kafka, cluster_name, dedup=SlowStore())
    ran: list[str] = []
    long_enough = threading.Event()

    def handle(job: relevo.Job) -> str:
        ran.append(job.key)
        long_enough.wait(5.0)
        return job.key

    kinds = [f"slow-{number}" for number in range(5)]
    for kind in kinds:
        app.job(kind)(handle)
    with (
        EngineThread(brokers.kafka, cluster_name, 1, kinds),
        relevo.Client(brokers.kafka, cluster_name) as client,
        app,
    ):
        jobs = [client.create(kind, lease=4.0) for kind in kinds]
        wait_until(lambda: len(ran) == 5, "all of them run", timeout_s=60)
        wait_until(lambda: app.stats.extended >= 5, "their leases are renewed meanwhile", timeout_s=60)
        assert [client.await_result(job, timeout=60).value for job in jobs] == [job.key for job in jobs]
    assert sorted(ran) == sorted(job.key for job in jobs), "each once"
    assert app.stats.lost == 0
