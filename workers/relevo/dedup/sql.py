"""A dedup store in a SQL database: PostgreSQL or SQLite."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from relevo.dedup.sql_postgres import PostgresBackend
from relevo.dedup.sql_rows import Asked, Backend, Call, answers, table_parts
from relevo.dedup.sql_sqlite import SqliteBackend
from relevo.dedup.store import (
    DEFAULT_TTL_S,
    MINE,
    Answer,
    Claim,
    DedupStore,
    Finish,
    StoreTransaction,
    Unknown,
    check_seconds,
)
from relevo.errors import ConfigurationError, StoreUnsafe

_log: Final = logging.getLogger("relevo.dedup")

PURGE_EVERY: Final = 1_000
PURGE_EVERY_S: Final = 60.0


class SqlDedupStore(DedupStore):
    """Remembers in a table, across worker processes, their restarts and the database's.

    Every decision is one statement under the row's lock and by the database's clock; a batch is one round
    trip. With `relevo.Job.transaction` the handler's own statements commit together with the done mark: then
    a crash at any point leaves all of it or nothing, and no redelivery repeats the effect. That is the
    strongest promise of all stores. Without it the store promises what Redis does, and forgets nothing that
    the database doesn't: an effect outside of the database can still be repeated when a worker dies between
    the effect and its mark.

    What it can't know: a failover to a replica that had not received the newest commits
    (``synchronous_commit`` without a synchronous standby) forgets them, with the effects of their
    transactions; and an effect elsewhere (a payment, a mail) is not part of any transaction here: hand
    `relevo.Job.idempotency_key` on to it.

    PostgreSQL needs psycopg 3 (``pip install 'relevo[sql]'``). The next job finds nothing of what a handler
    has set on its connection (``SET``, ``SET ROLE``, temporary tables, locks of the session). Behind
    PgBouncer, in its modes ``session`` and ``transaction``, this holds for role and ``search_path`` only:
    there use what ends with its transaction, as ``SET LOCAL``.

    SQLite is for workers on one machine: it has one writer at a time, so an open transaction holds up all
    others. Those of a process get their turn in the order they came, and wait for it up to 30 seconds.

    Args:
        url: ``postgresql://user:password@host:port/database``, or ``sqlite:///relative/path`` and
            ``sqlite:////absolute/path``.
        ttl: How long a done job is remembered, in seconds.
        table: Its table, ``name`` or ``schema.name``; made if it isn't there, see `schema`.
        timeout: How long a call may take before its answer is `Unknown`, in seconds.
        connections: How many of `relevo.Job.transaction` may be open at once (for coroutines and for threads
            each); further ones wait. In SQLite it is one, whatever is given.
        idle: How long a transaction of PostgreSQL may go without a statement, in seconds, before the server
            ends it: it holds its claim, and its worker may be frozen. 0: for ever.

    Raises:
        MissingExtra: psycopg is not installed.
        ConfigurationError: An argument can't be right.
    """

    def __init__(
        self,
        url: str,
        ttl: float = DEFAULT_TTL_S,
        *,
        table: str = "relevo_dedup",
        timeout: float = 2.0,
        connections: int = 10,
        idle: float = 300.0,
    ) -> None:
        for name, seconds in (("ttl", ttl), ("timeout", timeout)):
            check_seconds(name, seconds)
        if not idle >= 0:
            raise ConfigurationError(f"idle must not be negative, not {idle:g}")
        if connections < 1:
            raise ConfigurationError(f"connections must be at least 1, not {connections}")
        self.ttl = ttl
        self._backend = _backend(url, table_parts(table), timeout, connections, idle)
        self._in_transaction: set[tuple[str, str]] = set()
        self._purging = threading.Lock()
        self._until_purge = PURGE_EVERY
        self._purge_at = time.monotonic() + PURGE_EVERY_S

    @property
    def schema(self) -> str:
        """The statements that make the table, for those who make tables by themselves."""
        return self._backend.schema

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102 - as in the contract
        found = self._ask(Call.CLAIM, claims)
        self._purge_now_and_then(found)
        return found

    def renew(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        if not self._backend.one_writer:
            return self._ask(Call.RENEW, claims)
        # What waits for its own transaction to end would wait in vain; nobody else can take the claim.
        held = [(claim.key, claim.token) in self._in_transaction for claim in claims]
        rest = iter(
            self._ask(Call.RENEW, [claim for claim, own in zip(claims, held, strict=True) if not own])
        )
        return [MINE if own else next(rest) for own in held]

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:  # noqa: D102
        given = [
            each if each.ttl else Finish(each.key, each.token, each.result, self.ttl) for each in finishes
        ]
        found = self._ask(Call.DONE, given)
        self._purge_now_and_then(found)
        return found

    def release(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        found = self._ask(Call.RELEASE, claims)
        self._purge_now_and_then(found)
        return found

    def transaction(self, claim: Claim, ttl: float | None) -> StoreTransaction:  # noqa: D102
        inner = self._backend.transaction(claim, ttl or self.ttl)
        return _Noted(inner, claim, self._in_transaction, early=not self._backend.one_writer)

    def check(self) -> None:
        """Make the table if it isn't there, and refuse one that can't keep the store's promises.

        Raises:
            StoreUnsafe: The table has other columns, isn't unique by key or isn't kept on disk, or the
                database can't hold every key; the message says what to change.
            StoreUnavailable: The database doesn't answer, or is read-only.
        """
        self._backend.check()

    def close(self) -> None:  # noqa: D102
        self._backend.close()

    def _ask(self, call: Call, items: Sequence[Asked]) -> list[Answer]:
        return answers(call, items, self._backend.ask, self._in_transaction, self._failed)

    def _failed(self, error: Exception) -> str:
        return str(error) if isinstance(error, StoreUnsafe) else self._backend.reason(error)

    def _purge_now_and_then(self, answered: Sequence[Answer]) -> None:
        """Twice what comes is removed at most: the table can't grow faster than it is cleaned.

        Every call counts, not the done marks alone: claims of jobs that never end well leave rows too.
        """
        if all(isinstance(answer, Unknown) for answer in answered):
            return  # a database that doesn't answer is not to be waited for twice
        self._until_purge -= len(answered)
        now = time.monotonic()
        if (self._until_purge > 0 and now < self._purge_at) or not self._purging.acquire(blocking=False):
            return
        try:
            self._until_purge, self._purge_at = PURGE_EVERY, now + PURGE_EVERY_S
            self._backend.purge()
        except Exception as error:
            _log.debug("rows out of date could not be removed: %s", self._failed(error))
        finally:
            self._purging.release()


class _Noted:
    """A transaction whose claim is known to be its process' own while it lasts: its row can't be renewed.

    Args:
        inner: The transaction itself.
        claim: Its claim.
        noted: Where it is noted.
        early: Whether before it begins, for its row is locked before that returns. Otherwise the claim of one
            that still waits for its turn is renewed.
    """

    def __init__(
        self, inner: StoreTransaction, claim: Claim, noted: set[tuple[str, str]], *, early: bool
    ) -> None:
        self._inner = inner
        self._note = (claim.key, claim.token)
        self._noted = noted
        self._early = early

    def begin(self) -> Any:
        if self._early:
            self._noted.add(self._note)
        try:
            connection = self._inner.begin()
        except BaseException:
            self._noted.discard(self._note)
            raise
        self._noted.add(self._note)
        return connection

    def finish(self, result: bytes | None) -> None:
        try:
            self._inner.finish(result)
        finally:
            self._noted.discard(self._note)

    def undo(self) -> None:
        try:
            self._inner.undo()
        finally:
            self._noted.discard(self._note)

    def abandon(self) -> None:
        try:
            self._inner.abandon()
        finally:
            self._noted.discard(self._note)

    async def abegin(self) -> Any:
        if self._early:
            self._noted.add(self._note)
        try:
            connection = await self._inner.abegin()
        except BaseException:
            self._noted.discard(self._note)
            raise
        self._noted.add(self._note)
        return connection

    async def afinish(self, result: bytes | None) -> None:
        try:
            await self._inner.afinish(result)
        finally:
            self._noted.discard(self._note)

    async def aundo(self) -> None:
        try:
            await self._inner.aundo()
        finally:
            self._noted.discard(self._note)


def _backend(url: str, table: tuple[str, ...], timeout: float, connections: int, idle: float) -> Backend:
    scheme, found, rest = str(url).partition("://")
    if found and scheme in ("postgresql", "postgres"):
        return PostgresBackend(url, table, timeout, connections, idle)
    if found and scheme == "sqlite":
        path = rest.removeprefix("/")
        if not rest.startswith("/") or path in ("", ":memory:") or "?" in path:
            raise ConfigurationError(
                "the address of a SQLite store names a file: sqlite:///relative/path or sqlite:////absolute"
                "/path. What lives in memory only is a MemoryDedupStore"
            )
        return SqliteBackend(path, table, timeout)
    # What is shown must not be part of a password.
    kind = scheme if found and scheme.isalpha() and len(scheme) < 15 else "something else"
    raise ConfigurationError(
        f"SqlDedupStore can't use an address that starts with {kind}: expected "
        f"postgresql://user:password@host:port/database or sqlite:///path"
    )


__all__ = ["SqlDedupStore"]
