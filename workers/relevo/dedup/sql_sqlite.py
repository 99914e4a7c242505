"""The dedup table in a SQLite file, through the standard library."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from relevo.dedup.sql_line import Line, NoThread, OneThread
from relevo.dedup.sql_pool import Pool
from relevo.dedup.sql_rows import PURGE_GRACE_S, PURGE_ROWS, Call, Row, quoted, stored_key
from relevo.dedup.store import Claim
from relevo.errors import ClaimLost, ConfigurationError, StoreUnavailable, StoreUnsafe

T = TypeVar("T")

TURN_WAIT_S: Final = 30.0
"""How long a transaction waits for those before it, in seconds."""
_OLDEST: Final = (3, 35, 0)

_CREATE: Final = """\
CREATE TABLE IF NOT EXISTS {table} (
  key TEXT NOT NULL PRIMARY KEY,
  token TEXT NOT NULL,
  done INTEGER NOT NULL,
  result BLOB,
  expires_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS {index} ON {table} (expires_at)"""
_COLUMNS: Final = {"key": "TEXT", "token": "TEXT", "done": "INTEGER", "result": "BLOB", "expires_at": "REAL"}

# SQLite's clock, in seconds since the Unix epoch.
_NOW: Final = "((julianday('now') - 2440587.5) * 86400.0)"
_TAKE: Final = """
INSERT INTO {table} AS d (key, token, done, result, expires_at) VALUES (?, ?, ?, ?, {now} + ?)
ON CONFLICT (key) DO UPDATE SET
  token = excluded.token, done = excluded.done, result = excluded.result, expires_at = excluded.expires_at
WHERE d.expires_at <= {now}
  OR (d.token = excluded.token AND (NOT d.done OR (excluded.done AND d.result IS NULL)))
RETURNING 1
"""
_RELEASE: Final = "DELETE FROM {table} WHERE key = ? AND token = ? AND NOT done RETURNING 1"
_LOOK: Final = "SELECT token = ?, done, result, expires_at - {now} FROM {table} WHERE key = ?"
_PURGE: Final = """
DELETE FROM {table} WHERE key IN (
  SELECT key FROM {table} WHERE expires_at < {now} - ? ORDER BY expires_at LIMIT ?
)
"""
_HOLD: Final = "SELECT 1 FROM {table} WHERE key = ? AND token = ? AND NOT done"
_MARK: Final = """
UPDATE {table} SET done = 1, result = ?, expires_at = {now} + ? WHERE key = ? AND token = ? AND NOT done
"""


class SqliteBackend:
    """`relevo.dedup.sql_rows.Backend` on a SQLite file: for the workers of one machine.

    SQLite has one writer at a time, and gives nobody its turn: who finds the file locked asks again now and
    then. So the writers of this process stand in a line, and only the first of it contends with other
    processes.

    Args:
        path: The file; it is made if it isn't there.
        table: Checked name of the table.
        timeout: How long a call waits for its turn, and for other processes to finish writing, in seconds.
    """

    one_writer = True

    def __init__(self, path: str, table: tuple[str, ...], timeout: float) -> None:
        if len(table) != 1:
            raise ConfigurationError(f"table {'.'.join(table)!r}: SQLite has no schemas, give the name alone")
        if sqlite3.sqlite_version_info < _OLDEST:
            raise ConfigurationError(
                f"SqlDedupStore needs SQLite 3.35 or newer, this Python has {sqlite3.sqlite_version}"
            )
        self.address = path
        self._table = table[0]
        self.timeout = timeout
        self._verified = False
        self.schema = self._text(_CREATE).replace("{index}", quoted(f"{self._table}_expires"))
        self._take, self._release, self._look = self._text(_TAKE), self._text(_RELEASE), self._text(_LOOK)
        self.hold, self.mark = self._text(_HOLD), self._text(_MARK)
        self.line = Line()
        # For coroutines. Only who has the turn has something to do there, so nothing waits behind another.
        self.thread = OneThread("relevo-sqlite")
        # Whose turn it is has a connection to itself; what a handler does to its own is not for calls.
        self._calls, self.work = self._pool(), self._pool()

    def _pool(self) -> Pool[sqlite3.Connection]:
        return Pool(self._connect, sqlite3.Connection.close, _usable, 1, self.timeout)

    def _text(self, statement: str) -> str:
        return statement.replace("{table}", quoted(self._table)).replace("{now}", _NOW)

    def _connect(self) -> sqlite3.Connection:
        # A connection goes from thread to thread, and is used by one at a time.
        connection = sqlite3.connect(
            self.address, timeout=self.timeout, isolation_level=None, check_same_thread=False
        )
        try:
            # With a write-ahead log readers don't hold up the writer; FULL: an answer is on the disk.
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if not self._verified:
                self._verify(connection)
                self._verified = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _verify(self, connection: sqlite3.Connection) -> None:
        listed = f"PRAGMA table_info({quoted(self._table)})"
        if not connection.execute(listed).fetchall():
            with writing(connection):
                for statement in self.schema.split(";"):
                    connection.execute(statement)
        found = {name: kind for _, name, kind, *_ in connection.execute(listed)}
        keys = [name for _, name, *_, key in connection.execute(listed) if key]
        if found != _COLUMNS or keys != ["key"]:
            have = ", ".join(f"{name} {kind}" for name, kind in found.items())
            raise StoreUnsafe(
                f"table {self._table} in {self.address} has other columns than a dedup table ({have}; "
                f"primary key {', '.join(keys) or 'none'}): give the store another table or file"
            )

    def close(self) -> None:  # noqa: D102 - as in the protocol
        self._calls.close()
        self.work.close()
        self.thread.close()

    def _in_turn(self, call: Callable[[sqlite3.Connection], T]) -> T:
        if not self.line.enter(self.timeout, call=True):
            raise StoreUnavailable(f"this process has been writing to the file for {self.timeout:g} s")
        try:
            return self._calls.run(call, ())
        finally:
            self.line.leave()

    def ask(self, call: Call, items: Sequence[Any]) -> list[Row]:  # noqa: D102
        def run(connection: sqlite3.Connection) -> list[Row]:
            with writing(connection):
                return [self._ask_one(connection, call, item) for item in items]

        return self._in_turn(run)

    def _ask_one(self, connection: sqlite3.Connection, call: Call, item: Any) -> Row:
        key = stored_key(item.key)
        if call is Call.RELEASE:
            taken = connection.execute(self._release, (key, item.token)).fetchall()
        else:
            values = (True, item.result, item.ttl) if call is Call.DONE else (False, None, item.seconds)
            taken = connection.execute(self._take, (key, item.token, *values)).fetchall()
        if taken:
            return Row(True)
        found = connection.execute(self._look, (item.token, key)).fetchone()
        return Row(False) if found is None else Row(False, bool(found[0]), bool(found[1]), found[2], found[3])

    def purge(self) -> None:  # noqa: D102
        self._in_turn(lambda connection: connection.execute(self._text(_PURGE), (PURGE_GRACE_S, PURGE_ROWS)))

    def check(self) -> None:  # noqa: D102
        folder = Path(self.address).absolute().parent
        if not folder.is_dir():
            raise StoreUnsafe(f"the folder of {self.address} doesn't exist: make {folder}")

        def run(connection: sqlite3.Connection) -> None:
            self._verify(connection)
            with writing(connection):
                pass  # a file that can't be written to says so here

        try:
            self._in_turn(run)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"SQLite file {self.address}: {self.reason(error)}") from None

    def transaction(self, claim: Claim, ttl: float) -> SqliteTransaction:  # noqa: D102
        return SqliteTransaction(self, claim, ttl)

    def reason(self, error: Exception) -> str:  # noqa: D102
        return f"{type(error).__name__}: {str(error)[:200]}"


class SqliteTransaction:
    """`relevo.dedup.store.StoreTransaction`. It holds the file's one write lock from beginning to end.

    Coroutines get the same connection as threads do: waiting for the lock and the commit happen in a thread,
    the handler's own statements run where it calls them.
    """

    def __init__(self, backend: SqliteBackend, claim: Claim, ttl: float) -> None:
        self._backend = backend
        self._claim = claim
        self._ttl = ttl
        self._connection: sqlite3.Connection | None = None

    def begin(self) -> sqlite3.Connection:  # noqa: D102 - as in the protocol
        # A loop that is blocked here may be what the holder needs to come to its end.
        wait_s = self._backend.timeout if _in_loop() else TURN_WAIT_S
        if not self._backend.line.enter(wait_s):
            raise self._waited_in_vain(wait_s)
        return self._begin()

    def _begin(self) -> sqlite3.Connection:
        """What to do when it is its turn."""
        try:
            connection, _ = self._reached("could not be opened", self._backend.work.take)
        except BaseException:
            self._backend.line.leave()
            raise
        self._connection = connection
        try:
            connection.row_factory, connection.text_factory = None, str  # as the last handler left it
            self._reached("could not be opened", lambda: connection.execute("BEGIN IMMEDIATE"))
            held = connection.execute(self._backend.hold, self._row()).fetchone()
            if held is None:
                raise self._lost()
        except BaseException:
            self.undo()
            raise
        # A commit by the handler would part the effect from its mark.
        connection.set_authorizer(_no_transactions)
        return connection

    def finish(self, result: bytes | None) -> None:  # noqa: D102
        connection = self._open()
        try:
            connection.set_authorizer(None)
            if not connection.in_transaction:
                raise ConfigurationError("the transaction was ended inside job.transaction()")
            marked = self._reached(
                "could not be finished",
                lambda: connection.execute(self._backend.mark, (result, self._ttl, *self._row())),
            )
            if marked.rowcount != 1:
                raise self._lost()
            self._reached("could not be committed", lambda: connection.execute("COMMIT"))
        except BaseException:
            self.undo()
            raise
        self._end(connection, well=True)

    def undo(self) -> None:  # noqa: D102
        connection = self._open()
        with contextlib.suppress(sqlite3.Error):  # closing it rolls back too
            connection.set_authorizer(None)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        self._end(connection, well=True)

    def abandon(self) -> None:  # noqa: D102
        connection = self._open()
        with contextlib.suppress(sqlite3.Error):  # the handler may have closed it
            connection.interrupt()
        self._end(connection, well=False)

    def _end(self, connection: sqlite3.Connection, *, well: bool) -> None:
        try:
            self._backend.work.give(connection, well=well)
        finally:
            self._backend.line.leave()

    async def abegin(self) -> sqlite3.Connection:  # noqa: D102
        if not await self._backend.line.aenter(TURN_WAIT_S):
            raise self._waited_in_vain(TURN_WAIT_S)
        try:
            return await self._backend.thread.run(self._begin, self.undo)
        except NoThread as error:
            self._backend.line.leave()  # nobody else will: it never began
            raise self._failed("could not be opened", error) from error

    async def afinish(self, result: bytes | None) -> None:  # noqa: D102
        try:
            await self._backend.thread.run(lambda: self.finish(result))
        except NoThread as error:
            self.undo()  # which waits for nothing
            raise self._failed("could not be committed", error) from error

    async def aundo(self) -> None:  # noqa: D102
        try:
            await self._backend.thread.run(self.undo)
        except NoThread:
            self.undo()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LookupError("the transaction was never begun")
        return self._connection

    def _row(self) -> tuple[str, str]:
        return stored_key(self._claim.key), self._claim.token

    def _lost(self) -> ClaimLost:
        return ClaimLost(f"the claim of {self._claim.key!r} is another worker's, or the job is done")

    def _waited_in_vain(self, seconds: float) -> StoreUnavailable:
        return StoreUnavailable(
            f"a transaction in SQLite file {self._backend.address} could not be opened: {seconds:g} s "
            f"were not enough for those before it, and SQLite has one writer at a time. Keep transactions "
            f"short, lower the type's concurrency, or use PostgreSQL"
        )

    def _reached(self, what: str, step: Callable[[], T]) -> T:
        """The outcome of a step; a busy, full or read-only file is told as such."""
        try:
            return step()
        except sqlite3.OperationalError as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Exception) -> StoreUnavailable:
        backend = self._backend
        return StoreUnavailable(
            f"a transaction in SQLite file {backend.address} {what}: {backend.reason(error)}"
        )


@contextlib.contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _usable(connection: sqlite3.Connection) -> bool:
    try:
        return not connection.in_transaction
    except sqlite3.ProgrammingError:  # a handler has closed it
        return False


def _no_transactions(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
