"""Claim, effect and done mark in one transaction: on PostgreSQL and SQLite, in threads and in coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relevo.dedup.sql import SqlDedupStore
from relevo.dedup.store import MINE, Claim, Done, Finish, Held
from relevo.errors import ClaimLost, ConfigurationError, Outcome, StoreUnavailable
from relevo.worker.transactions import Grant, JobTransaction
from tests.integration.test_dedup_sql import execute
from tests.support.postgres import Postgres
from tests.support.waiting import wait_until

KEY, ME = "job-1", "me"
INSERT = "INSERT INTO effects VALUES ('job-1')"


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of either kind with a table for effects."""
    found = f"sqlite:///{tmp_path}/dedup.db"
    if request.param == "postgres":
        found = request.getfixturevalue("postgres_url")
    execute(found, "CREATE TABLE effects (key text)")
    return found


@pytest.fixture
def store(url: str) -> Iterator[SqlDedupStore]:
    store = SqlDedupStore(url, timeout=10)
    yield store
    store.close()


def effects(url: str) -> int:
    found: int = execute(url, "SELECT count(*) FROM effects")[0][0]
    return found


def held(store: SqlDedupStore, seconds: float = 60.0) -> Grant:
    """A claim that is the caller's."""
    claim = Claim(KEY, ME, seconds)
    assert store.claim([claim]) == [MINE]
    return Grant(store, claim, None)


def in_thread(block: JobTransaction, work: Callable[[Any], object]) -> None:
    with block as connection:
        work(connection)


def in_loop(block: JobTransaction, work: Callable[[Any], object]) -> None:
    async def main() -> None:
        async with block as connection:
            found = work(connection)
            if asyncio.iscoroutine(found):
                await found

    asyncio.run(main())


@pytest.fixture(params=[in_thread, in_loop], ids=["with", "async with"])
def run(request: pytest.FixtureRequest) -> Callable[[JobTransaction, Callable[[Any], object]], None]:
    found: Callable[[JobTransaction, Callable[[Any], object]], None] = request.param
    return found


Run = Callable[[JobTransaction, Callable[[Any], object]], None]


def test_effect_and_mark_are_there_together(url: str, store: SqlDedupStore, run: Run) -> None:
    grant = held(store)
    block = grant.transaction()

    def work(connection: Any) -> Any:
        block.set_result({"paid": True})
        return connection.execute(INSERT)

    run(block, work)
    assert grant.committed
    assert effects(url) == 1
    assert store.claim([Claim(KEY, "other", 60)]) == [Done(b'{"paid":true}')]
    assert store.done([Finish(KEY, ME, b'{"paid":true}')]) == [Done(b'{"paid":true}')]
    with pytest.raises(ConfigurationError, match="one transaction"):
        grant.transaction()


def test_an_exception_leaves_nothing_and_the_claim_can_be_given_back(
    url: str, store: SqlDedupStore, run: Run
) -> None:
    grant = held(store)

    async def fail_later(pending: Any) -> None:
        await pending
        raise KeyError("no")

    def fail(connection: Any) -> Any:
        pending = connection.execute(INSERT)
        if asyncio.iscoroutine(pending):
            return fail_later(pending)
        raise KeyError("no")

    with pytest.raises(KeyError):
        run(grant.transaction(), fail)
    assert not grant.committed
    assert effects(url) == 0
    assert isinstance(store.claim([Claim(KEY, "other", 60)])[0], Held)
    run(grant.transaction(), lambda connection: connection.execute(INSERT))
    assert effects(url) == 1, "the same claim may try again"


def test_a_claim_that_was_lost_runs_nothing(url: str, store: SqlDedupStore, run: Run) -> None:
    grant = held(store, 0.05)
    time.sleep(0.1)  # the claim's time is over, by the database's clock
    assert store.claim([Claim(KEY, "other", 60)]) == [MINE]
    entered: list[Any] = []
    with pytest.raises(ClaimLost, match="job-1"):
        run(grant.transaction(), entered.append)
    assert entered == [], "the handler's block must not begin: it may hold more than statements"
    assert effects(url) == 0
    assert store.done([Finish(KEY, "other", b"1")]) == [MINE]


def test_a_job_that_was_done_is_not_done_again(url: str, store: SqlDedupStore, run: Run) -> None:
    grant = held(store)
    store.done([Finish(KEY, ME, b"1")])
    with pytest.raises(ClaimLost):
        run(grant.transaction(), lambda connection: connection.execute(INSERT))
    assert effects(url) == 0


def test_a_result_that_comes_after_the_commit_is_added(url: str, store: SqlDedupStore, run: Run) -> None:
    grant = held(store)
    run(grant.transaction(), lambda connection: connection.execute(INSERT))
    assert store.claim([Claim(KEY, "other", 60)]) == [Done(b"")], "until then there is none"
    assert store.done([Finish(KEY, "other", b"9")]) == [Done(b"")], "and nobody else adds one"
    assert store.renew([Claim(KEY, ME, 60)]) == [MINE], "the handler goes on, and is not lost"
    assert store.done([Finish(KEY, ME, b"1")]) == [MINE]
    assert store.claim([Claim(KEY, "other", 60)]) == [Done(b"1")]


def test_a_cancelled_coroutine_leaves_nothing(url: str, store: SqlDedupStore) -> None:
    grant = held(store)

    async def handler() -> None:
        async with grant.transaction() as connection:
            pending = connection.execute(INSERT)
            if asyncio.iscoroutine(pending):
                await pending
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(handler())
        await asyncio.to_thread(wait_until, lambda: grant.open is not None, "the handler is at work")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert effects(url) == 0
    assert store.release([Claim(KEY, ME, 60)]) == [MINE]


def test_nobody_takes_a_claim_whose_transaction_is_open(postgres_url: str) -> None:
    """Its time may be over: the worker was paused, or could not renew. Both would have their effect."""
    execute(postgres_url, "CREATE TABLE effects (key text)")
    store, others = SqlDedupStore(postgres_url, timeout=10), SqlDedupStore(postgres_url, timeout=10)
    grant = held(store, 0.05)
    with grant.transaction() as connection:
        connection.execute(INSERT)
        time.sleep(0.1)  # the claim's time is over, by the database's clock
        assert isinstance(others.claim([Claim(KEY, "other", 60)])[0], Held)
        assert store.renew([Claim(KEY, ME, 60)]) == [MINE], "it is safe for as long as this lasts"
    assert others.claim([Claim(KEY, "other", 60)]) == [Done(b"")]
    store.close()
    others.close()


@pytest.mark.parametrize("way", ["thread", "loop"])
def test_a_server_that_dies_leaves_nothing(own_postgres: Postgres, way: str) -> None:
    url = own_postgres.url
    execute(url, "CREATE TABLE effects (key text)")
    store = SqlDedupStore(url, timeout=10)
    grant = held(store)

    def die(connection: Any) -> Any:
        pending = connection.execute(INSERT)
        if asyncio.iscoroutine(pending):
            return later(pending)
        own_postgres.kill()
        return None

    async def later(pending: Any) -> None:
        await pending
        own_postgres.kill()

    with pytest.raises(StoreUnavailable) as caught:
        (in_thread if way == "thread" else in_loop)(grant.transaction(), die)
    assert caught.value.outcome is Outcome.NOT_DONE
    with pytest.raises(StoreUnavailable):
        (in_thread if way == "thread" else in_loop)(grant.transaction(), die)
    own_postgres.restart()
    assert effects(url) == 0
    (in_thread if way == "thread" else in_loop)(grant.transaction(), lambda c: c.execute(INSERT))
    assert effects(url) == 1
    store.close()


def test_a_frozen_workers_transaction_is_ended_by_the_server(postgres_url: str) -> None:
    """Else its claim is held for ever."""
    store, others = SqlDedupStore(postgres_url, timeout=10, idle=0.3), SqlDedupStore(postgres_url, timeout=10)
    grant = held(store, 0.05)
    with pytest.raises(StoreUnavailable), grant.transaction():
        time.sleep(1.0)  # nothing is heard from the handler, by the server's clock
    assert others.claim([Claim(KEY, "other", 60)]) == [MINE]
    store.close()
    others.close()


def test_a_commit_by_the_handler_is_refused(url: str, store: SqlDedupStore) -> None:
    """It would part the effect from its mark: the next delivery would repeat it."""
    grant = held(store)

    def commit() -> None:
        with grant.transaction() as connection:
            connection.execute(INSERT)
            connection.commit()

    with pytest.raises((psycopg.ProgrammingError, sqlite3.DatabaseError)):
        commit()
    assert effects(url) == 0

    def commit_as_a_statement() -> None:
        with grant.transaction() as connection:
            connection.execute("COMMIT")

    with pytest.raises((ConfigurationError, sqlite3.DatabaseError)):
        commit_as_a_statement()
    assert store.release([Claim(KEY, ME, 60)]) == [MINE]


def test_savepoints_are_the_handlers(url: str, store: SqlDedupStore) -> None:
    grant = held(store)
    with grant.transaction() as connection:
        connection.execute("SAVEPOINT one")
        connection.execute(INSERT)
        connection.execute("ROLLBACK TO one")
        connection.execute(INSERT)
    assert effects(url) == 1


def test_a_broken_statement_that_was_caught_commits_nothing(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE effects (key text)")
    store = SqlDedupStore(postgres_url, timeout=10)
    grant = held(store)

    def work() -> None:
        with grant.transaction() as connection:
            connection.execute(INSERT)
            with contextlib.suppress(psycopg.Error):
                connection.execute("SELECT nonsense")

    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        work()
    assert effects(postgres_url) == 0
    store.close()


def test_what_a_handler_set_on_its_connection_is_gone_for_the_next(postgres_url: str) -> None:
    store = SqlDedupStore(postgres_url, timeout=10, connections=1)
    with held(store).transaction() as connection:
        connection.row_factory = psycopg.rows.dict_row
    claim = Claim("job-2", ME, 60)
    store.claim([claim])
    with Grant(store, claim, None).transaction() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    store.close()


def test_many_at_once_share_the_connections(postgres_url: str) -> None:
    """More handlers than connections wait for each other, and end."""
    execute(postgres_url, "CREATE TABLE effects (key text)")
    store = SqlDedupStore(postgres_url, timeout=10, connections=3)
    claims = [Claim(f"k{n}", ME, 60) for n in range(40)]
    assert store.claim(claims) == [MINE] * 40

    async def one(claim: Claim) -> None:
        async with Grant(store, claim, None).transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", (claim.key,))
            await connection.execute("SELECT pg_sleep(0.01)")

    async def main() -> None:
        await asyncio.gather(*[one(claim) for claim in claims])

    asyncio.run(main())
    assert effects(postgres_url) == 40
    (count,) = execute(
        postgres_url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relevo'"
    )[0]
    assert count <= 3 + 8
    store.close()


def test_sqlite_gives_the_lock_to_one_transaction_after_the_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dedup.db"
    execute(url, "CREATE TABLE effects (key text)")
    store = SqlDedupStore(url, timeout=30)
    claims = [Claim(f"k{n}", ME, 60) for n in range(30)]
    assert store.claim(claims) == [MINE] * 30

    def one(claim: Claim) -> None:
        with Grant(store, claim, None).transaction() as connection:
            connection.execute("INSERT INTO effects VALUES (?)", (claim.key,))

    threads = [threading.Thread(target=one, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert effects(url) == 30
    assert store.claim(claims) == [Done(b"")] * 30
    store.close()
