"""A session of PostgreSQL: what is set in it, and how it is left as it was.

Behind a pooler that lends the server's sessions for one transaction each (PgBouncer's mode ``transaction``),
a setting that outlives its transaction is found by whatever client is next, and a prepared statement isn't
found again. So nothing is set for a whole session, nor prepared in it, unless it is the connection's own.
"""

from __future__ import annotations

from typing import Any, Final

# A pooler tells a client a process id of its own making.
_OWN: Final = "SELECT {settings} WHERE pg_backend_pid() = {pid}"
_CALLS: Final = (
    "set_config('statement_timeout', '{timeout_ms}', false),"
    " set_config('default_transaction_isolation', 'read committed', false)"
)

# The same for a single transaction: one message, one round trip, as without a pooler.
ALONE: Final = """\
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL statement_timeout = {timeout_ms};
{statement};
COMMIT"""

# What the handler finds is noted, so that the mark is made in it. With a transaction that nobody goes on with
# the server ends the session, and it notices soon when the worker's machine is gone.
HOLD: Final = """
SELECT current_setting('role'), current_setting('search_path'),
  set_config('idle_in_transaction_session_timeout', %s, true), set_config('tcp_keepalives_idle', '10', true),
  set_config('tcp_keepalives_interval', '5', true), set_config('tcp_keepalives_count', '3', true)
FROM {table} WHERE key = %s AND token = %s AND NOT done FOR UPDATE
"""

# What the handler has deferred runs as whom the handler was. The mark is made in the store's table, whatever
# schema and role the handler went to; a pooler's next client finds neither.
MARK: Final = """
SET CONSTRAINTS ALL IMMEDIATE;
SELECT set_config('role', %s, false), set_config('search_path', %s, false);
UPDATE {table} SET done = true, result = %s, expires_at = clock_timestamp() + make_interval(secs => %s)
WHERE key = %s AND token = %s AND NOT done
"""

# DISCARD ALL but for prepared statements: they change nothing for others, and psycopg keeps account of them.
CLEAN: Final = (
    "CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; UNLISTEN *;"
    " SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES"
)


def ask_for_calls(pid: int, timeout_ms: int) -> str:
    """Sets what calls need for the whole session, and gives a row, if it is the connection's own.

    Args:
        pid: The server's process as the connection was told it.
        timeout_ms: How long a statement may take, in milliseconds.
    """
    return _OWN.format(settings=_CALLS.format(timeout_ms=timeout_ms), pid=pid)


def ask_for_work(pid: int) -> str:
    """Gives a row if the session is the connection's own: its transactions set what they need by `HOLD`."""
    return _OWN.format(settings="1", pid=pid)


def rows_of_third(cursor: Any) -> list[tuple[Any, ...]]:
    """What the statement inside of `ALONE` gave."""
    cursor.nextset()
    cursor.nextset()
    found: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
    return found


def count_of_last(cursor: Any) -> int:
    """How many rows the last one of several statements changed."""
    while cursor.nextset():
        pass
    count: int = cursor.rowcount
    return count
