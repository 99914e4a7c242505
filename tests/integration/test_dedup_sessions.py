"""Sessions of PostgreSQL: what a job leaves for the next one, and a store for the clients of a pooler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from relevo.dedup.sql import SqlDedupStore
from relevo.dedup.store import MINE, Claim, DedupStore, Done, Finish, Unknown
from relevo.errors import StoreUnavailable
from relevo.worker.transactions import Grant
from tests.integration.test_dedup_sql import SqlContract, execute
from tests.integration.test_dedup_transactions import Run, run
from tests.support.postgres_pooler import pooled
from tests.support.waiting import wait_until

__all__ = ["run"]  # a fixture

SESSION = "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name <> 'application_name'"


@pytest.fixture
def pooled_url(postgres_url: str) -> Iterator[str]:
    """Through a PgBouncer in its mode ``transaction`` that has a single session for all its clients."""
    with pooled(postgres_url) as url:
        yield url


@pytest.fixture
def tenant(postgres_url: str) -> Iterator[str]:
    """A role and a schema of the same name, and its table; it may not touch the store's table."""
    name = f"tenant_{time.monotonic_ns()}"
    execute(
        postgres_url,
        f"CREATE ROLE {name}",
        f"CREATE SCHEMA {name} AUTHORIZATION {name}",
        f"CREATE TABLE {name}.effects (key text PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)",
        f"ALTER TABLE {name}.effects OWNER TO {name}",
    )
    yield name
    execute(postgres_url, f"DROP SCHEMA {name} CASCADE", f"DROP ROLE {name}")


def held(store: SqlDedupStore, key: str = "k") -> Grant:
    claim = Claim(key, "me", 60)
    assert store.claim([claim]) == [MINE]
    return Grant(store, claim, None)


def statements(*given: str, asked: list[Any] | None = None) -> Callable[[Any], Any]:
    """A handler's work, for either kind of connection; the row of the last one goes to ``asked``."""

    async def later(connection: Any) -> None:
        cursor: Any = None
        for statement in given:
            cursor = await connection.execute(statement)
        if asked is not None:
            asked.append(await cursor.fetchone())

    def work(connection: Any) -> Any:
        if isinstance(connection, psycopg.AsyncConnection):
            return later(connection)
        cursor: Any = None
        for statement in given:
            cursor = connection.execute(statement)
        if asked is not None:
            asked.append(cursor.fetchone())
        return None

    return work


@pytest.mark.parametrize("ends", ["well", "badly"])
@pytest.mark.parametrize("way", ["thread", "loop"])
def test_the_next_job_finds_nothing_of_what_a_handler_left_in_its_session(
    postgres_url: str, tenant: str, way: str, ends: str
) -> None:
    """It may be any job's: its statements would go into another tenant's schema, or wait for its locks."""
    store = SqlDedupStore(postgres_url, timeout=10, connections=1)
    first, second = held(store), held(store, "next")
    left = statements(
        f"SET search_path = {tenant}", f"SET ROLE {tenant}", "SET my.tenant = '7'", "LISTEN news",
        "CREATE TEMP TABLE kept (n int)", "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "SELECT pg_advisory_lock(4711)",
        *(["SELECT 1/0"] if ends == "badly" else []),
    )  # fmt: skip
    found: list[Any] = []
    look = statements(
        "SELECT current_setting('search_path'), current_setting('role'), current_user = session_user,"
        " coalesce(current_setting('my.tenant', true), ''), to_regclass('kept'), pg_backend_pid(),"
        " (SELECT count(*) FROM pg_cursors), (SELECT count(*) FROM pg_listening_channels()),"
        " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')",
        asked=found,
    )
    pid = statements("SELECT pg_backend_pid()", asked=found)
    if way == "thread":
        for grant, work in ((first, left), (second, look)):
            try:
                with grant.transaction() as connection:
                    pid(connection)
                    work(connection)
            except psycopg.errors.DivisionByZero:
                assert ends == "badly"
    else:

        async def main() -> None:
            for grant, work in ((first, left), (second, look)):
                try:
                    async with grant.transaction() as connection:
                        await pid(connection)
                        await work(connection)
                except psycopg.errors.DivisionByZero:
                    assert ends == "badly"

        asyncio.run(main())
    assert found[0] == found[1], "the same session"
    assert found[2] == ('"$user", public', "none", True, "", None, found[0][0], 0, 0, 0)
    assert second.committed
    store.close()


@pytest.mark.parametrize("scope", ["LOCAL", "SESSION"])
@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooled"])
def test_the_mark_is_made_whatever_schema_and_role_the_handler_went_to(
    request: pytest.FixtureRequest, postgres_url: str, tenant: str, run: Run, pooler: bool, scope: str
) -> None:
    """As those do who have a schema for each tenant: their jobs would never be done."""
    url = request.getfixturevalue("pooled_url") if pooler else postgres_url
    store = SqlDedupStore(url, timeout=10)
    before = execute(url, SESSION)
    grant = held(store)
    run(
        grant.transaction(),
        statements(
            f"SET {scope} search_path = {tenant}", f"SET {scope} ROLE {tenant}",
            "INSERT INTO effects VALUES ('k')",
        ),
    )  # fmt: skip
    assert execute(postgres_url, f"SELECT * FROM {tenant}.effects") == [("k",)]
    assert store.claim([Claim("k", "you", 60)]) == [Done(b"")]
    assert execute(url, "SELECT current_user = session_user, current_setting('search_path')") == [
        (True, '"$user", public')
    ]
    assert pooler or execute(url, SESSION) == before
    store.close()


def test_what_the_handler_has_deferred_is_checked_before_the_mark(
    postgres_url: str, tenant: str, run: Run
) -> None:
    store = SqlDedupStore(postgres_url, timeout=10)
    work = statements(*[f"INSERT INTO {tenant}.effects VALUES ('k')"] * 2)
    with pytest.raises(psycopg.errors.UniqueViolation):
        run(held(store).transaction(), work)
    assert execute(postgres_url, f"SELECT * FROM {tenant}.effects") == []
    assert store.release([Claim("k", "me", 60)]) == [MINE]
    store.close()


class TestPooledDedupStore(SqlContract):
    @pytest.fixture
    def store(self, pooled_url: str) -> Iterator[DedupStore]:
        store = SqlDedupStore(pooled_url, timeout=10)
        yield store
        store.close()


def test_a_pooler_hands_on_nothing_of_the_stores(pooled_url: str, run: Run) -> None:
    """Its other clients would have their statements cancelled after two seconds, or their sessions ended."""
    before = execute(pooled_url, SESSION)
    store = SqlDedupStore(pooled_url, timeout=10)
    store.check()
    for number in range(10):  # psycopg prepares what comes again
        key = f"k{number}"
        grant = held(store, key)
        assert store.renew([grant.claim]) == [MINE]
        run(grant.transaction(), statements("SELECT 1"))
        assert store.done([Finish(key, "me", b"1")]) == [MINE]
        assert store.release([Claim(f"none{number}", "me", 60)]) == [MINE]
    store._backend.purge()
    found = execute(pooled_url, SESSION)
    assert [each for each in found if each[0] != "search_path"] == before
    assert dict(found).get("search_path", '"$user", public') == '"$user", public'
    assert execute(pooled_url, "SELECT * FROM pg_prepared_statements") == []
    store.close()


def test_stores_that_share_a_poolers_session_do_not_disturb_each_other(pooled_url: str, run: Run) -> None:
    """Each would prepare statements under the same names."""
    stores = [SqlDedupStore(pooled_url, timeout=10) for _ in range(2)]
    for number in range(12):
        for store in stores:
            grant = held(store, f"{id(store)}-{number}")
            run(grant.transaction(), statements("SELECT 1"))
            assert grant.committed
    for store in stores:
        store.close()


def test_calls_keep_their_own_settings_behind_a_pooler(postgres_url: str, pooled_url: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    execute(postgres_url, f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
    store = SqlDedupStore(pooled_url, timeout=2.0)
    mine = Claim("k", "me", 60)
    assert store.claim([mine]) == [MINE]
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SELECT 1 FROM relevo_dedup WHERE key = 'k'")  # a snapshot
        assert store.renew([mine]) == [MINE], "a serializable one would fail now and then"
    with psycopg.connect(postgres_url) as connection:
        connection.execute("LOCK TABLE relevo_dedup IN ACCESS EXCLUSIVE MODE")
        assert store.claim([mine]) == [Unknown("QueryCanceled: canceling statement due to statement timeout")]
    assert store.claim([mine]) == [MINE]
    store.close()


def test_a_frozen_workers_transaction_is_ended_behind_a_pooler(pooled_url: str) -> None:
    """Else its claim is held for ever, and the pooler's session with it."""
    store = SqlDedupStore(pooled_url, timeout=10, idle=0.3)
    grant = held(store)
    with pytest.raises(StoreUnavailable), grant.transaction():
        time.sleep(1.0)  # nothing is heard from the handler, by the server's clock
    wait_until(lambda: store.release([grant.claim]) == [MINE], "its claim is free")
    store.close()


def test_a_pooler_that_lends_sessions_for_a_statement_says_why_it_will_not_do(postgres_url: str) -> None:
    direct = SqlDedupStore(postgres_url, timeout=10)
    direct.check()
    direct.close()
    with pooled(postgres_url, "statement") as url:
        store = SqlDedupStore(url, timeout=10)
        grant = held(store)
        with pytest.raises(StoreUnavailable, match="not allowed in statement pooling mode"):
            grant.transaction().__enter__()
        store.close()
