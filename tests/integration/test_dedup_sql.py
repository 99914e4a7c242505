"""The dedup contract on PostgreSQL and SQLite, their tables, and what happens when they are hurt."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relevo.dedup.sql import SqlDedupStore
from relevo.dedup.store import MINE, Claim, DedupStore, Done, Finish, Held, Unknown
from relevo.errors import ConfigurationError, StoreUnavailable, StoreUnsafe
from tests.contract.test_dedup_contract import DedupContract, Elapse
from tests.support.postgres import PASSWORD, Postgres, address


class SqlContract(DedupContract):
    @pytest.fixture
    def elapse(self) -> Elapse:
        # A database has a clock of its own: this is its time, not a wait for something to happen.
        return time.sleep

    def test_keys_that_sql_finds_hard_stay_apart(self, store: DedupStore) -> None:
        keys = ["a\x00b", "a\\0b", "a\\\\0b", "%s", '"; DROP TABLE relevo_dedup; --', "x" * 700]
        assert store.claim([Claim(key, "me", 60) for key in keys]) == [MINE] * len(keys)
        assert all(isinstance(each, Held) for each in store.claim([Claim(key, "you", 60) for key in keys]))


class TestPostgresDedupStore(SqlContract):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[DedupStore]:
        store = SqlDedupStore(postgres_url, timeout=10)
        yield store
        store.close()


class TestSqliteDedupStore(SqlContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[DedupStore]:
        store = SqlDedupStore(f"sqlite:///{tmp_path}/dedup.db", timeout=30)
        yield store
        store.close()


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "postgres":
        found: str = request.getfixturevalue("postgres_url")
        return found
    return f"sqlite:///{tmp_path}/dedup.db"


def execute(url: str, *statements: str) -> list[Any]:
    """Run statements past the store; returns the rows of the last one."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=10) as file:
            found = [file.execute(statement) for statement in statements]
            return found[-1].fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = [connection.execute(statement.encode()) for statement in statements][-1]
        return cursor.fetchall() if cursor.description else []


def test_a_table_that_is_another_one_is_refused(url: str) -> None:
    """Else claims go into somebody's business data, or a missing unique key lets every claim through."""
    execute(url, "CREATE TABLE orders (key text PRIMARY KEY, amount integer)")
    store = SqlDedupStore(url, timeout=10, table="orders")
    with pytest.raises(StoreUnsafe, match=r"table orders .*other columns than a dedup table.*amount"):
        store.check()
    (answer,) = store.claim([Claim("k", "me", 60)])
    assert isinstance(answer, Unknown)
    assert "other columns" in answer.reason
    store.close()


def test_a_table_made_by_somebody_else_is_taken(url: str) -> None:
    store = SqlDedupStore(url, timeout=10, table="made_before")
    execute(url, *store.schema.split(";"))
    store.check()
    assert store.claim([Claim("k", "me", 60)]) == [MINE]
    store.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE relevo_dedup DROP CONSTRAINT relevo_dedup_pkey", "no unique index on key"),
        ("ALTER TABLE relevo_dedup SET UNLOGGED", "unlogged"),
        ("ALTER TABLE relevo_dedup ADD COLUMN extra text", "other columns"),
    ],
)
def test_a_table_that_would_let_jobs_run_twice_is_refused(postgres_url: str, change: str, said: str) -> None:
    store = SqlDedupStore(postgres_url, timeout=10)
    store.check()
    execute(postgres_url, change)
    with pytest.raises(StoreUnsafe, match=said):
        store.check()
    store.close()


def test_workers_that_start_together_make_one_table(url: str) -> None:
    stores = [SqlDedupStore(url, timeout=20) for _ in range(6)]
    barrier, failed = threading.Barrier(6, timeout=30), []

    def start(store: SqlDedupStore) -> None:
        barrier.wait()
        try:
            store.check()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=start, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    for store in stores:
        store.close()


def test_a_batch_is_one_statement_and_one_transaction(postgres_url: str) -> None:
    store = SqlDedupStore(postgres_url, timeout=10)
    store.claim([Claim("warm", "me", 60)])
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        before = connection.execute("SELECT txid_current()").fetchone()
        store.claim([Claim(f"{n}", "me", 60) for n in range(500)])
        after = connection.execute("SELECT txid_current()").fetchone()
    assert before is not None
    assert after is not None
    assert after[0] - before[0] == 2, "the batch, and the question itself"
    store.close()


@pytest.mark.parametrize(("call", "rows"), [("claim", 3_000), ("done", 3_000), ("release", 0)])
def test_rows_out_of_date_are_removed_in_parts(url: str, call: str, rows: int) -> None:
    """A table that only grows ends as a full disk, that of a type whose jobs all fail too."""
    store = SqlDedupStore(url, timeout=10)
    store.check()
    clock = "strftime('%s','now')" if url.startswith("sqlite") else "clock_timestamp()"
    ago = f"{clock} - 3600" if url.startswith("sqlite") else f"{clock} - interval '1 hour'"
    false, series = (
        ("0", "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<5000) SELECT i FROM n")
        if url.startswith("sqlite")
        else ("true", "SELECT generate_series(1, 5000) AS i")
    )
    execute(
        url,
        "INSERT INTO relevo_dedup (key, token, done, expires_at) "
        f"SELECT 'old' || i, 't', {false}, {ago} FROM ({series}) AS s",
    )
    left = [5000]
    for n in range(3):
        keys = [f"new-{n}-{i}" for i in range(1_000)]
        if call == "done":
            store.done([Finish(key, "me", b"") for key in keys])
        else:
            getattr(store, call)([Claim(key, "me", 600) for key in keys])
        left.append(execute(url, "SELECT count(*) FROM relevo_dedup WHERE key LIKE 'old%'")[0][0])
    assert left == [5000, 3000, 1000, 0]
    assert execute(url, "SELECT count(*) FROM relevo_dedup")[0][0] == rows
    store.close()


def test_a_store_error_is_not_taken_for_a_duplicate(own_postgres: Postgres) -> None:
    """Read-only, frozen, restarted, dead: each is no answer; the same token has its claim afterwards."""
    store = SqlDedupStore(own_postgres.url, timeout=3.0)
    mine = [Claim("k", "me", 600)]
    assert store.claim(mine) == [MINE]
    execute(
        own_postgres.url, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"
    )
    store.close()
    store = SqlDedupStore(own_postgres.url, timeout=3.0)
    (answer,) = store.done([Finish("k", "me", b"1")])
    assert isinstance(answer, Unknown)
    assert "read-only" in answer.reason
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.check()
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        connection.execute("SET transaction_read_only = off")
        connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
        connection.execute("SELECT pg_reload_conf()")
    store.close()
    store = SqlDedupStore(own_postgres.url, timeout=3.0)
    assert store.claim(mine) == [MINE]
    own_postgres.freeze()
    began = time.monotonic()
    assert isinstance(store.claim(mine)[0], Unknown)
    assert time.monotonic() - began < 30, "a server that says nothing must not hold a worker"
    own_postgres.thaw()
    assert store.claim(mine) == [MINE]
    own_postgres.kill()
    assert isinstance(store.claim(mine)[0], Unknown)
    with pytest.raises(StoreUnavailable) as caught:
        store.check()
    assert PASSWORD not in str(caught.value)
    own_postgres.restart()
    assert store.claim(mine) == [MINE], "the first call finds dead connections and makes a new one"
    assert store.done([Finish("k", "me", b"1")]) == [MINE]
    own_postgres.restart()
    assert store.claim(mine) == [Done(b"1")], "what was done is on the disk"
    store.close()


def test_a_row_that_is_locked_does_not_hold_up_the_batch(postgres_url: str) -> None:
    """One worker's long transaction would stop all others that were handed the same job again."""
    store = SqlDedupStore(postgres_url, timeout=10)
    store.claim([Claim("locked", "me", 0.05)])
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SELECT 1 FROM relevo_dedup WHERE key = 'locked' FOR UPDATE")
        time.sleep(0.1)  # the claim's time is over, by the database's clock
        locked, free = store.claim([Claim("locked", "you", 60), Claim("free", "you", 60)])
        assert isinstance(locked, Held)
        assert free == MINE
        assert isinstance(store.renew([Claim("locked", "me", 60)])[0], Unknown)
    assert store.claim([Claim("locked", "you", 60)]) == [MINE]
    store.close()


def test_a_table_that_is_locked_is_no_answer(postgres_url: str) -> None:
    """A migration, or VACUUM FULL: nothing is run, and nobody waits for it without end."""
    store = SqlDedupStore(postgres_url, timeout=2.0)
    mine = Claim("k", "me", 60)
    assert store.claim([mine]) == [MINE]
    with psycopg.connect(postgres_url) as connection:
        connection.execute("LOCK TABLE relevo_dedup IN ACCESS EXCLUSIVE MODE")
        (answer,) = store.claim([mine])
        assert isinstance(answer, Unknown)
        assert answer.reason == "QueryCanceled: canceling statement due to statement timeout"
        with pytest.raises(StoreUnavailable, match="could not be opened"):
            store.transaction(mine, None).begin()
    assert store.claim([mine]) == [MINE]
    store.close()


def test_an_error_of_the_server_is_no_answer(postgres_url: str) -> None:
    """Its disk is full, say: the error comes as the driver has it, for one key or for all."""
    store = SqlDedupStore(postgres_url, timeout=10)
    store.check()
    execute(
        postgres_url,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT ON relevo_dedup FOR EACH ROW EXECUTE FUNCTION full_disk()",
    )
    assert store.claim([Claim("k", "me", 60)]) == [Unknown("DiskFull: No space left on device")]
    assert store.done([Finish("k", "me", b"1")]) == [Unknown("DiskFull: No space left on device")]
    execute(postgres_url, "DROP TRIGGER full_disk ON relevo_dedup")
    assert store.claim([Claim("k", "me", 60)]) == [MINE]
    store.close()


def test_a_database_that_likes_it_strict_is_no_obstacle(postgres_url: str) -> None:
    """With serializable transactions every second claim would end in an error."""
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    execute(postgres_url, f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
    stores = [SqlDedupStore(postgres_url, timeout=10) for _ in range(2)]
    found: list[Any] = []

    def work(store: SqlDedupStore) -> None:
        for n in range(100):
            found.extend(store.claim([Claim(f"{n}", f"{id(store)}", 60)]))

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found.count(MINE) == 100
    assert [each for each in found if isinstance(each, Unknown)] == []
    for store in stores:
        store.close()


def test_a_full_disk_is_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "dedup.db"
    store = SqlDedupStore(f"sqlite:///{path}")
    store.check()
    # The page limit is the disk's end, as far as SQLite can tell.
    pool = store._backend._calls  # type: ignore[attr-defined]
    connection, _ = pool.take()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    pool.give(connection, well=True)
    (answer,) = store.done([Finish("k", "me", b"x" * 100_000)])
    assert answer == Unknown("OperationalError: database or disk is full")
    assert store.claim([Claim("k", "me", 60)]) == [MINE]
    store.close()


def test_a_file_that_is_locked_or_no_database_is_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "dedup.db"
    store = SqlDedupStore(f"sqlite:///{path}", timeout=0.1)
    store.check()
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.claim([Claim("k", "me", 60)]) == [Unknown("OperationalError: database is locked")]
        other.execute("ROLLBACK")
    assert store.claim([Claim("k", "me", 60)]) == [MINE]
    store.close()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"no database at all" * 1_000)
    store = SqlDedupStore(f"sqlite:///{damaged}")
    assert isinstance(store.claim([Claim("k", "me", 60)])[0], Unknown)
    with pytest.raises(StoreUnavailable, match="not a database"):
        store.check()
    store.close()
    with pytest.raises(StoreUnsafe, match=r"folder .* doesn't exist"):
        SqlDedupStore(f"sqlite:///{tmp_path}/missing/dedup.db").check()


def test_a_connection_cut_half_way_is_replaced(postgres_url: str) -> None:
    """A firewall that forgets a connection: the client's side looks well."""
    store = SqlDedupStore(postgres_url, timeout=10)
    assert store.claim([Claim("k", "me", 60)]) == [MINE]
    execute(
        postgres_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'relevo'",
    )
    assert store.claim([Claim("k", "me", 60)]) == [MINE]
    store.close()


def test_a_server_that_accepts_and_says_nothing_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = SqlDedupStore(address(port), timeout=0.5)
        (answer,) = store.claim([Claim("k", "me", 60)])
        assert isinstance(answer, Unknown)
        assert PASSWORD not in answer.reason
        store.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": f"http://u:{PASSWORD}@h"}, "expected postgresql://"),
        ({"url": f"u:{PASSWORD}@h"}, "expected postgresql://"),
        ({"url": f"postgresql://u:{PASSWORD}@h:1:2/%zz"}, "can't be read"),
        ({"url": f"postgresql://u:a/{PASSWORD}@h:1/db"}, "percent-encoded"),
        ({"url": f"postgresql://u:1/{PASSWORD}@h/db"}, "percent-encoded"),
        ({"url": f"postgresql://u:a@{PASSWORD}@h/db"}, "percent-encoded"),
        ({"url": "sqlite://:memory:"}, "names a file"),
        ({"url": "sqlite:///"}, "names a file"),
        ({"url": "sqlite:///a.db", "ttl": 0}, "ttl must be more than 0"),
        ({"url": "sqlite:///a.db", "ttl": -1}, "ttl must be more than 0"),
        ({"url": "sqlite:///a.db", "ttl": float("nan")}, "ttl must be more than 0"),
        ({"url": "sqlite:///a.db", "timeout": 0}, "timeout must be more than 0"),
        ({"url": "sqlite:///a.db", "connections": 0}, "connections must be at least 1"),
        ({"url": "sqlite:///a.db", "idle": -1}, "idle must not be negative"),
        ({"url": "sqlite:///a.db", "table": 'x"; DROP TABLE y; --'}, "letters, digits"),
        ({"url": "sqlite:///a.db", "table": "a.b"}, "no schemas"),
        ({"url": "sqlite:///a.db", "table": "x" * 51}, "50 at most"),
    ],
)
def test_what_cannot_be_right_is_refused_without_the_password(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        SqlDedupStore(**given)
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_wrong_password_is_told_without_it(postgres_url: str) -> None:
    store = SqlDedupStore(postgres_url.replace(PASSWORD, "wrong-secret"), timeout=10)
    with pytest.raises(StoreUnavailable, match="password authentication failed") as caught:
        store.check()
    assert "wrong-secret" not in str(caught.value)
    (answer,) = store.claim([Claim("k", "me", 60)])
    assert isinstance(answer, Unknown)
    assert "wrong-secret" not in answer.reason
    store.close()
