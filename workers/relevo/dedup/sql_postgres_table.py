"""The table of claims in PostgreSQL: made where it is missing, refused where it is another one."""

from __future__ import annotations

from typing import Any, Final

from relevo.errors import StoreUnsafe

CREATE: Final = """\
CREATE TABLE IF NOT EXISTS {table} (
  key text COLLATE "C" PRIMARY KEY,
  token text NOT NULL,
  done boolean NOT NULL,
  result bytea,
  expires_at timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS {index} ON {table} (expires_at)"""

_EXPECTED: Final = {
    "key": "text",
    "token": "text",
    "done": "boolean",
    "result": "bytea",
    "expires_at": "timestamp with time zone",
}
_KIND: Final = "SELECT c.oid, c.relpersistence FROM pg_class c WHERE c.oid = to_regclass(%s)"
_COLUMNS: Final = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""
_UNIQUE: Final = """
SELECT count(*) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1
  AND a.attname = 'key'
"""
# Any number that all workers use, so that two of them don't make the table at the same time.
_LOCK: Final = "SELECT pg_advisory_xact_lock(7282739)"


def verify(connection: Any, table: tuple[str, ...], schema: str) -> None:
    """Make the table if it isn't there, and look at what is there.

    Args:
        connection: In autocommit mode.
        table: Its name, with or without its schema.
        schema: The statements that make it.

    Raises:
        StoreUnsafe: The table or the database is not fit; the message says what to change.
        psycopg.Error: The server says no, or nothing.
    """
    name = ".".join(table)
    named = ".".join(f'"{part}"' for part in table)
    encoding = connection.execute("SHOW server_encoding").fetchone()[0]
    if encoding != "UTF8":
        raise StoreUnsafe(f"the database has encoding {encoding}, which can't hold every job key: use UTF8")
    found = connection.execute(_KIND, (named,)).fetchone()
    if found is None:
        _make(connection, name, schema)
        found = connection.execute(_KIND, (named,)).fetchone()
    oid, persistence = found
    if persistence not in ("p", b"p"):
        raise StoreUnsafe(
            f"table {name} is unlogged or temporary: a crash of the server would empty it and jobs run "
            f"twice. ALTER TABLE {named} SET LOGGED"
        )
    columns = dict(connection.execute(_COLUMNS, (oid,)).fetchall())
    if columns != _EXPECTED:
        raise StoreUnsafe(
            f"table {name} has other columns than a dedup table ({_listed(columns)}; expected "
            f"{_listed(_EXPECTED)}): give the store another table name, or another schema"
        )
    if not connection.execute(_UNIQUE, (oid,)).fetchone()[0]:
        raise StoreUnsafe(
            f"table {name} has no unique index on key alone, so two workers could claim the same job: "
            f"ALTER TABLE {named} ADD PRIMARY KEY (key)"
        )


def _make(connection: Any, name: str, schema: str) -> None:
    import psycopg

    try:
        with connection.transaction():
            connection.execute(_LOCK)
            connection.execute(schema)
    except psycopg.ProgrammingError as error:
        raise StoreUnsafe(
            f"table {name} doesn't exist and can't be made ({error.diag.message_primary}). Let somebody who "
            f"may make it run:\n{schema}"
        ) from None


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
