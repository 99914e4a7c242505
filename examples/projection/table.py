"""The table of jobs, in SQLite or PostgreSQL: events and the position behind them in one transaction."""

from __future__ import annotations

import importlib
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from changes import changes

import relevo

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  key TEXT PRIMARY KEY, type TEXT, state TEXT, attempt INTEGER, priority INTEGER, retries INTEGER,
  run_at BIGINT, correlation_id TEXT, worker TEXT, result TEXT, problem TEXT, created_at BIGINT,
  changed_at BIGINT
);
CREATE TABLE IF NOT EXISTS jobs_position (
  partition_number INTEGER PRIMARY KEY, seq BIGINT NOT NULL, position TEXT NOT NULL
);
"""
BUSY_S = 30.0


def _psycopg() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise ImportError("PostgreSQL needs psycopg: pip install 'relevo[sql]'") from error


def database_errors() -> tuple[type[Exception], ...]:
    """What the databases raise, as far as they are here."""
    return (sqlite3.Error, *([sys.modules["psycopg"].Error] if "psycopg" in sys.modules else []))


class JobsTable:
    """Rows that are up to date with the log as far as they say, after a crash at any point too.

    Args:
        url: ``sqlite:///relative/path``, ``sqlite:////absolute/path`` or ``postgresql://user:password@host/name``.
    """

    def __init__(self, url: str) -> None:
        self._lite = url.startswith("sqlite:///")
        self._connection: Any
        if self._lite:
            self._connection = sqlite3.connect(
                url.removeprefix("sqlite:///"), timeout=BUSY_S, isolation_level=None
            )
        elif url.startswith(("postgresql://", "postgres://")):
            self._connection = _psycopg().connect(url, autocommit=True)
        else:
            raise ValueError("the database must be sqlite:///… or postgresql://…")
        self._begin()
        try:
            if not self._lite:
                # Two that create a table at once would fail at each other.
                self._do("SELECT pg_advisory_xact_lock(7355608)")
            for statement in filter(str.strip, SCHEMA.split(";")):
                self._do(statement)
            self._do("COMMIT")
        except BaseException:
            self._do("ROLLBACK")
            raise

    def positions(self) -> list[str]:
        """Where to go on: what `relevo.JobEvents` takes as ``from_``."""
        return [row[0] for row in self._do("SELECT position FROM jobs_position")]

    def apply(self, events: Iterable[relevo.JobEvent]) -> None:
        """Bring the rows up to date, and note how far: all of it or, when anything fails, nothing."""
        self._begin()
        try:
            seen = self._seen()
            last: dict[int, relevo.JobEvent] = {}
            for event in events:
                # Another copy of this program may have been faster.
                if event.event.seq > seen.get(event.partition, 0):
                    self._change(event.key, changes(event.event))
                    last[event.partition] = event
            for partition, event in last.items():
                self._do(
                    "INSERT INTO jobs_position (partition_number, seq, position) VALUES (?, ?, ?) "
                    "ON CONFLICT (partition_number) DO UPDATE SET seq = excluded.seq, "
                    "position = excluded.position",
                    partition,
                    event.event.seq,
                    str(event.position),
                )
            self._do("COMMIT")
        except BaseException:
            self._do("ROLLBACK")
            raise

    def _begin(self) -> None:
        self._do("BEGIN IMMEDIATE" if self._lite else "BEGIN")

    def _seen(self) -> dict[int, int]:
        """The last event applied, by partition; nobody else applies any until this transaction ends."""
        if not self._lite:
            self._do("LOCK TABLE jobs_position IN EXCLUSIVE MODE")
        return dict(self._do("SELECT partition_number, seq FROM jobs_position"))

    def _change(self, key: str, columns: dict[str, Any]) -> None:
        if not columns:
            return
        names = ", ".join(["key", *columns])
        marks = ", ".join("?" for _ in range(len(columns) + 1))
        new = ", ".join(f"{name} = excluded.{name}" for name in columns)
        # The names are ours; values are handed over apart.
        self._do(
            f"INSERT INTO jobs ({names}) VALUES ({marks}) ON CONFLICT (key) DO UPDATE SET {new}",  # noqa: S608
            key,
            *columns.values(),
        )

    def _do(self, statement: str, *values: Any) -> list[Any]:
        # PostgreSQL's text can't hold a zero character: a sign for it stands there.
        plain = [value.replace("\0", "\u2400") if isinstance(value, str) else value for value in values]
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement if self._lite else statement.replace("?", "%s"), plain)
            return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        """Give back the connection."""
        self._connection.close()
