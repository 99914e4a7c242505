"""Claim, effect and done mark in one transaction of PostgreSQL."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from relevo.dedup.sql_postgres_session import CLEAN, count_of_last
from relevo.dedup.sql_rows import stored_key
from relevo.errors import ClaimLost, ConfigurationError, Outcome, StoreUnavailable

if TYPE_CHECKING:
    from relevo.dedup.sql_postgres import PostgresBackend
    from relevo.dedup.store import Claim

_log: Final = logging.getLogger("relevo.dedup")


class PostgresTransaction:
    """`relevo.dedup.store.StoreTransaction` on a connection of its own.

    The claim's row is locked from beginning to end: while the transaction lives nobody can take the claim,
    even if it should end; when the worker dies, the server rolls back and lets go.
    """

    def __init__(self, backend: PostgresBackend, claim: Claim, ttl: float) -> None:
        self._backend = backend
        self._claim = claim
        self._ttl = ttl
        self._connection: Any = None
        self._block: Any = None
        self._in_loop = False
        self._found: tuple[str, ...] = ()

    # Threads

    def begin(self) -> Any:  # noqa: D102 - as in the protocol
        backend, fresh = self._backend, False
        while True:
            held = None
            try:
                self._connection, fresh = backend.threads.take(fresh=fresh)
                with backend.limit(self._connection):
                    # Its context forbids commit() and rollback(), which would part the effect from its mark.
                    self._block = self._connection.transaction()
                    self._block.__enter__()
                    held = self._connection.execute(backend.hold, self._asked()).fetchone()
            except backend.failures as error:
                self._drop()
                if fresh or self._connection is None:
                    raise self._unavailable("could not be opened", error) from None
                fresh, self._connection = True, None
            except BaseException:
                self._drop()
                raise
            if held is None:
                self.undo()
                raise self._lost()
            self._found = held[:2]
            return self._connection

    def finish(self, result: bytes | None) -> None:  # noqa: D102
        committing = False
        try:
            self._check_still_open()
            with self._backend.limit(self._connection):
                cursor = self._several()
                cursor.execute(self._backend.mark, self._values(result))
                if count_of_last(cursor) != 1:
                    raise self._lost()
                committing = True
                self._block.__exit__(None, None, None)
                well = self._clean()
        except self._backend.failures as error:
            gone = self._connection.closed
            self._drop()
            if not gone:
                raise  # the server's word about the handler's own statements, a broken constraint say
            raise self._unfinished(committing, error) from error
        except BaseException:
            self._drop()
            raise
        self._backend.threads.give(self._connection, well=well)

    def undo(self) -> None:  # noqa: D102
        try:
            with self._backend.limit(self._connection):
                self._block.__exit__(_Undone, _Undone(), None)
                well = self._clean()
        except Exception as error:
            # Without its connection the server rolls back too.
            _log.debug("rolling back failed: %s", self._backend.reason(error))
            self._drop()
        else:
            self._backend.threads.give(self._connection, well=well)

    def _clean(self) -> bool:
        """Whether the next job can have it: what the handler has set in the session, or locked, is gone."""
        try:
            if not self._backend.is_pooled(self._connection):
                self._several().execute(CLEAN)
        except self._backend.failures as error:
            _log.debug("cleaning up a session failed: %s", self._backend.reason(error))
            return False
        return True

    def abandon(self) -> None:  # noqa: D102
        if self._in_loop:
            self._adrop()
        else:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._backend.threads.give(self._connection, well=False)

    # Event loops

    async def abegin(self) -> Any:  # noqa: D102
        backend, fresh = self._backend, False
        self._in_loop = True
        while True:
            held = None
            try:
                self._connection, fresh = await backend.loops.take(fresh=fresh)
                with backend.limit(self._connection):
                    self._block = self._connection.transaction()
                    await self._block.__aenter__()
                    asked = await self._connection.execute(backend.hold, self._asked())
                    held = await asked.fetchone()
            except backend.failures as error:
                self._adrop()
                if fresh or self._connection is None:
                    raise self._unavailable("could not be opened", error) from None
                fresh, self._connection = True, None
            except BaseException:
                self._adrop()
                raise
            if held is None:
                await self.aundo()
                raise self._lost()
            self._found = held[:2]
            return self._connection

    async def afinish(self, result: bytes | None) -> None:  # noqa: D102
        committing = False
        try:
            self._check_still_open()
            with self._backend.limit(self._connection):
                cursor = self._several()
                await cursor.execute(self._backend.mark, self._values(result))
                if count_of_last(cursor) != 1:
                    raise self._lost()
                committing = True
                await self._block.__aexit__(None, None, None)
                well = await self._aclean()
        except self._backend.failures as error:
            gone = self._connection.closed
            self._adrop()
            if not gone:
                raise  # the server's word about the handler's own statements, a broken constraint say
            raise self._unfinished(committing, error) from error
        except BaseException:
            self._adrop()
            raise
        self._backend.loops.give(self._connection, well=well)

    async def aundo(self) -> None:  # noqa: D102
        try:
            with self._backend.limit(self._connection):
                await self._block.__aexit__(_Undone, _Undone(), None)
                well = await self._aclean()
        except BaseException as error:
            self._adrop()
            if not isinstance(error, Exception):
                raise
            _log.debug("rolling back failed: %s", self._backend.reason(error))
        else:
            self._backend.loops.give(self._connection, well=well)

    async def _aclean(self) -> bool:
        try:
            if not self._backend.is_pooled(self._connection):
                await self._several().execute(CLEAN)
        except self._backend.failures as error:
            _log.debug("cleaning up a session failed: %s", self._backend.reason(error))
            return False
        return True

    def _adrop(self) -> None:
        if self._connection is not None:
            self._backend.loops.give(self._connection, well=False)

    # Both

    def _row(self) -> tuple[str, str]:
        return stored_key(self._claim.key), self._claim.token

    def _asked(self) -> tuple[str, ...]:
        return self._backend.idle_ms, *self._row()

    def _several(self) -> Any:
        """A cursor for several statements in one message."""
        import psycopg

        kind = psycopg.AsyncClientCursor if self._in_loop else psycopg.ClientCursor
        return kind(self._connection, row_factory=psycopg.rows.tuple_row)

    def _values(self, result: bytes | None) -> tuple[Any, ...]:
        return *self._found, result, self._ttl, *self._row()

    def _check_still_open(self) -> None:
        """A COMMIT or ROLLBACK sent as a statement gets past psycopg."""
        import psycopg

        if self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise ConfigurationError(
                "the transaction was ended inside job.transaction(), by a statement of the handler: leave "
                "COMMIT and ROLLBACK to the block, or its effect is not bound to its done mark"
            )

    def _lost(self) -> ClaimLost:
        return ClaimLost(f"the claim of {self._claim.key!r} is another worker's, or the job is done")

    def _unavailable(self, what: str, error: Exception) -> StoreUnavailable:
        backend = self._backend
        return StoreUnavailable(
            f"a transaction at PostgreSQL, {backend.address}, {what}: {backend.reason(error)}"
        )

    def _unfinished(self, committing: bool, error: Exception) -> StoreUnavailable:
        if not committing:
            return self._unavailable("could not be finished", error)
        doubtful = self._unavailable(
            "may or may not have been committed (the store says so when the job is delivered again)", error
        )
        doubtful.outcome = Outcome.UNKNOWN
        return doubtful


class _Undone(Exception):  # noqa: N818 - no error: it tells psycopg's block to roll back
    """Ends a block of psycopg's."""
