"""The dedup table in PostgreSQL, through psycopg 3."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from relevo.dedup.sql_pool import LoopPool, Pool, Watchdog, tap_of
from relevo.dedup.sql_postgres_session import (
    ALONE,
    HOLD,
    MARK,
    ask_for_calls,
    ask_for_work,
    rows_of_third,
)  # fmt: skip
from relevo.dedup.sql_postgres_table import CREATE, verify
from relevo.dedup.sql_rows import PURGE_GRACE_S, PURGE_ROWS, Call, Row, quoted, stored_key
from relevo.dedup.store import Claim
from relevo.errors import ConfigurationError, MissingExtra, StoreUnavailable, StoreUnsafe

_log: Final = logging.getLogger("relevo.dedup")

CALL_CONNECTIONS: Final = 8
CONNECTION_WAIT_S: Final = 30.0

# One statement, one round trip, and its own transaction. It decides row by row, under each row's lock and by
# the server's clock. A row that somebody has locked is passed over and not waited for: its claim is being
# taken, ended, or held by an open transaction this very moment, and one such row must not stop the batch. The
# rows it reads last may be a moment old; they only serve to say why something was not done.
_ANSWER: Final = """\
SELECT a.n, m.key IS NOT NULL, d.token = a.token, d.done, d.result,
       extract(epoch FROM d.expires_at - clock_timestamp())::float8
FROM asked a LEFT JOIN did m ON m.key = a.key LEFT JOIN {table} d ON d.key = a.key
ORDER BY a.n
"""
_TAKE: Final = """
WITH asked AS MATERIALIZED (
  SELECT * FROM unnest(%(keys)s::text[], %(tokens)s::text[], %(seconds)s::float8[], %(results)b::bytea[])
    WITH ORDINALITY AS a(key, token, seconds, result, n)
), free AS MATERIALIZED (
  SELECT d.key, a.token, a.seconds, a.result FROM {table} d JOIN asked a ON a.key = d.key
  WHERE d.expires_at <= clock_timestamp() OR (d.token = a.token AND {mine})
  ORDER BY d.key FOR UPDATE OF d SKIP LOCKED
), taken AS (
  UPDATE {table} d SET token = f.token, done = {done}, result = f.result,
    expires_at = clock_timestamp() + make_interval(secs => f.seconds)
  FROM free f WHERE d.key = f.key RETURNING d.key
), added AS (
  INSERT INTO {table} (key, token, done, result, expires_at)
  SELECT key, token, {done}, result, clock_timestamp() + make_interval(secs => seconds)
  FROM asked ORDER BY key
  ON CONFLICT (key) DO NOTHING RETURNING key
), did AS (SELECT key FROM taken UNION ALL SELECT key FROM added)
{answer}"""
_CLAIM: Final = _TAKE.replace("{mine}", "NOT d.done").replace("{done}", "false")
# A done mark of one's own without a result was made in a transaction: the result is added.
_DONE: Final = _TAKE.replace("{mine}", "(NOT d.done OR d.result IS NULL)").replace("{done}", "true")
_RELEASE: Final = """
WITH asked AS MATERIALIZED (
  SELECT * FROM unnest(%(keys)s::text[], %(tokens)s::text[]) WITH ORDINALITY AS a(key, token, n)
), mine AS MATERIALIZED (
  SELECT d.key FROM {table} d JOIN asked a ON a.key = d.key WHERE d.token = a.token AND NOT d.done
  ORDER BY d.key FOR UPDATE OF d SKIP LOCKED
), did AS (DELETE FROM {table} d USING mine WHERE d.key = mine.key RETURNING d.key)
{answer}"""
_PURGE: Final = """
DELETE FROM {table} WHERE key IN (
  SELECT key FROM {table} WHERE expires_at < clock_timestamp() - make_interval(secs => %(grace)s)
  ORDER BY expires_at LIMIT %(rows)s FOR UPDATE SKIP LOCKED
)
"""


def _is_whole(given: Mapping[str, Any]) -> bool:
    """Whether an address was read as it was meant.

    libpq ends user and password at the first ``/``, and the host begins behind the first ``@``: a password
    with one of them turns up as the port, the host or the database, where it would be shown.
    """
    ports = str(given.get("port") or "").split(",")
    return all(not port or port.isdigit() for port in ports) and not any(
        "@" in str(given.get(name) or "") for name in ("host", "dbname")
    )


class PostgresBackend:
    """`relevo.dedup.sql_rows.Backend` on PostgreSQL.

    Args:
        url: ``postgresql://…``.
        table: Checked name of the table, with or without its schema.
        timeout: How long a call may take, in seconds.
        connections: How many transactions may be open at once (for each event loop, and for threads).
        idle: How long a transaction may have no statement before the server ends it, in seconds; 0: any.
    """

    one_writer = False

    def __init__(
        self, url: str, table: tuple[str, ...], timeout: float, connections: int, idle: float
    ) -> None:
        try:
            self._psycopg: Any = importlib.import_module("psycopg")
        except ImportError as error:
            raise MissingExtra("SqlDedupStore with PostgreSQL", "sql") from error
        self._arguments, self._secrets, self.address = self._read(url, timeout)
        self._table = table
        self._timeout = timeout
        # The server is to give up first, as long as it can: its error says why.
        self._timeout_ms = math.ceil(timeout * 900)
        #: For `HOLD`.
        self.idle_ms = str(math.ceil(idle * 1_000))
        self._verified = False
        self._told = False
        self._watchdog = Watchdog()
        self._taps: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._pooled: WeakSet[Any] = WeakSet()
        self.schema = self._text(CREATE).replace("{index}", quoted(table[-1] + "_expires"))
        self._statements = {
            Call.CLAIM: self._text(_CLAIM),
            Call.RENEW: self._text(_CLAIM),
            Call.DONE: self._text(_DONE),
            Call.RELEASE: self._text(_RELEASE),
        }
        self.hold, self.mark = self._text(HOLD), self._text(MARK)
        self._calls: Pool[Any] = Pool(self._connect, self.end, self._usable, CALL_CONNECTIONS, timeout)
        self.threads: Pool[Any] = Pool(
            self._connect_for_work, self.end, self._usable, connections, CONNECTION_WAIT_S
        )
        self.loops: LoopPool[Any] = LoopPool(
            self._aconnect_for_work, self.end, self._usable, connections, CONNECTION_WAIT_S
        )
        #: What psycopg raises.
        self.failures: tuple[type[Exception], ...] = (self._psycopg.Error,)

    def _read(self, url: str, timeout: float) -> tuple[dict[str, Any], list[str], str]:
        """Arguments for psycopg, what must not be shown, and where it is."""
        try:
            given: dict[str, Any] = self._psycopg.conninfo.conninfo_to_dict(url)
        except self._psycopg.Error:
            # Its text may quote the address with the password in it.
            raise ConfigurationError(
                "the address of PostgreSQL can't be read: expected postgresql://user:password@host:port/db"
            ) from None
        if "://" in url and not _is_whole(given):
            raise ConfigurationError(
                "the address of PostgreSQL can't be read: in a user name or password, characters as / and @ "
                "are to be percent-encoded (urllib.parse.quote(password, safe='')), as in "
                "postgresql://me:a%2Fb@host/db"
            )
        secrets = [str(given[name]) for name in ("password", "sslpassword") if given.get(name)]
        # A worker that has vanished, and a server that has, are noticed within half a minute.
        usual = {"connect_timeout": max(2, math.ceil(timeout)), "application_name": "relevo"}
        usual |= {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
        hosts = str(given.get("host") or given.get("hostaddr") or "localhost")
        address = f"{hosts}:{given.get('port') or 5432}/{given.get('dbname') or ''}"
        return usual | given, secrets, address

    def _text(self, statement: str) -> str:
        return statement.replace("{answer}", _ANSWER).replace("{table}", quoted(*self._table))

    # Connections

    def _connect(self) -> Any:
        """One for calls: each its own transaction, none of them slow."""
        connection = self._psycopg.Connection.connect(**self._arguments, autocommit=True)
        try:
            self._taps[connection] = tap_of(connection.fileno())
            with self.limit(connection):
                asked = connection.execute(ask_for_calls(connection.info.backend_pid, self._timeout_ms))
                self._note_owner(connection, asked.fetchone())
                if not self._verified:
                    verify(connection, self._table, self.schema)
                    self._verified = True
        except BaseException:
            self.end(connection)
            raise
        return connection

    def _connect_for_work(self) -> Any:
        connection = self._psycopg.Connection.connect(**self._arguments, autocommit=True)
        try:
            self._taps[connection] = tap_of(connection.fileno())
            with self.limit(connection):
                asked = connection.execute(ask_for_work(connection.info.backend_pid))
                self._note_owner(connection, asked.fetchone())
        except BaseException:
            self.end(connection)
            raise
        return connection

    async def _aconnect_for_work(self) -> Any:
        connection = await self._psycopg.AsyncConnection.connect(**self._arguments, autocommit=True)
        try:
            self._taps[connection] = tap_of(connection.fileno())
            with self.limit(connection):
                asked = await connection.execute(ask_for_work(connection.info.backend_pid))
                self._note_owner(connection, await asked.fetchone())
        except BaseException:
            self.end(connection)
            raise
        return connection

    def _note_owner(self, connection: Any, own_session: object) -> None:
        if own_session is None:
            self._pooled.add(connection)
            connection.prepare_threshold = None

    def is_pooled(self, connection: Any) -> bool:
        """Whether its session is a pooler's, and may be another one in the next transaction."""
        return connection in self._pooled

    def limit(self, connection: Any) -> AbstractContextManager[None]:
        """Cuts the connection unless the block ends in time."""
        return self._watchdog.limit(self._taps[connection], self._timeout)

    def end(self, connection: Any) -> None:
        """Close it now, from whatever thread."""
        tap = self._taps.pop(connection, None)
        if tap is not None:
            tap.close()
        connection.pgconn.finish()

    def _usable(self, connection: Any) -> bool:
        # A handler may have set others.
        in_loop = isinstance(connection, self._psycopg.AsyncConnection)
        connection.row_factory = self._psycopg.rows.tuple_row
        connection.cursor_factory = self._psycopg.AsyncCursor if in_loop else self._psycopg.Cursor
        idle = self._psycopg.pq.TransactionStatus.IDLE
        return not connection.closed and connection.info.transaction_status == idle

    def close(self) -> None:  # noqa: D102 - as in the protocol
        for pool in (self._calls, self.threads, self.loops):
            pool.close()

    # Calls

    def ask(self, call: Call, items: Sequence[Any]) -> list[Row]:  # noqa: D102
        given: dict[str, Any] = {
            "keys": [stored_key(item.key) for item in items],
            "tokens": [item.token for item in items],
        }
        if call is not Call.RELEASE:
            ending = call is Call.DONE
            given["seconds"] = [item.ttl if ending else item.seconds for item in items]
            given["results"] = [item.result if ending else None for item in items]

        def run(connection: Any) -> list[tuple[Any, ...]]:
            return self._alone(connection, self._statements[call], given)

        return [
            Row(taken, own, bool(done), result, left or 0.0)
            for _, taken, own, done, result, left in self._calls.run(run, self.failures)
        ]

    def purge(self) -> None:  # noqa: D102
        given = {"grace": PURGE_GRACE_S, "rows": PURGE_ROWS}
        self._calls.run(lambda connection: self._alone(connection, self._text(_PURGE), given), self.failures)

    def _alone(self, connection: Any, statement: str, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement that is a transaction of its own, in one round trip."""
        with self.limit(connection):
            if not self.is_pooled(connection):
                cursor = connection.execute(statement, given)
                found: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
                return found
            cursor = self._psycopg.ClientCursor(connection)
            try:
                cursor.execute(ALONE.format(timeout_ms=self._timeout_ms, statement=statement), given)
            except self.failures:
                with contextlib.suppress(*self.failures):
                    connection.rollback()
                raise
            return rows_of_third(cursor)

    def check(self) -> None:  # noqa: D102
        def run(connection: Any) -> tuple[Any, ...]:
            with self.limit(connection):
                verify(connection, self._table, self.schema)
                found: tuple[Any, ...] = connection.execute(
                    "SELECT current_setting('transaction_read_only'), current_setting('fsync'),"
                    " current_setting('synchronous_commit')"
                ).fetchone()
            return found

        try:
            read_only, fsync, commit = self._calls.run(run, self.failures)
        except (StoreUnsafe, StoreUnavailable):
            raise
        except (self._psycopg.Error, OSError) as error:
            raise StoreUnavailable(f"PostgreSQL at {self.address}: {self.reason(error)}") from None
        if read_only == "on":
            raise StoreUnavailable(f"PostgreSQL at {self.address} is read-only: a replica, or set so")
        if "off" in (fsync, commit) and not self._told:
            self._told = True  # each job type of a process has it checked
            _log.warning(
                "PostgreSQL at %s has fsync %s and synchronous_commit %s: a crash of the server forgets "
                "what was done last", self.address, fsync, commit,
            )  # fmt: skip

    def transaction(self, claim: Claim, ttl: float) -> Any:  # noqa: D102
        from relevo.dedup.sql_postgres_transaction import PostgresTransaction

        return PostgresTransaction(self, claim, ttl)

    def reason(self, error: Exception) -> str:  # noqa: D102
        said = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
        for secret in self._secrets:
            said = said.replace(secret, "***")
        return f"{type(error).__name__}: {' '.join(said.split())[:200]}"
