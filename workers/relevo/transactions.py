"""Claim, effect and done mark of a job in one database transaction, as a block in its handler."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from relevo.dedup.store import Claim, DedupStore, StoreTransaction
from relevo.errors import ConfigurationError, InvalidRequest
from relevo.outcomes import Completed, of_result


@dataclass(slots=True)
class Grant:
    """A claim that a job holds, and what became of it in a transaction.

    Attributes:
        store: The dedup store.
        claim: Held in it.
        ttl: Window for the done mark in seconds; None: the store's own.
        open: The transaction that is open now.
        committed: Whether one has been committed: effect and done mark are there.
    """

    store: DedupStore
    claim: Claim
    ttl: float | None
    open: JobTransaction | None = None
    committed: bool = False

    def transaction(self) -> JobTransaction:
        """The block for a handler."""
        return JobTransaction(self)


class JobTransaction:
    """The block that `relevo.Job.transaction` opens; ``with`` in threads, ``async with`` in coroutines."""

    def __init__(self, grant: Grant) -> None:
        if grant.committed:
            raise ConfigurationError(
                "this job's transaction has been committed, and its done mark with it: a job has one "
                "transaction, so put all of its effects into that"
            )
        if grant.open is not None:
            raise ConfigurationError("this job has a transaction open already: use the one connection")
        self._grant = grant
        self._inner: StoreTransaction = grant.store.transaction(grant.claim, grant.ttl)
        self._result: bytes | None = None

    def set_result(self, result: Any) -> None:
        """Remember what the job's result is, to be committed with the rest.

        Raises:
            InvalidRequest: It isn't JSON, or is too large.
        """
        outcome = of_result(result)
        if not isinstance(outcome, Completed):
            raise InvalidRequest(getattr(outcome, "error", "the result can't be used"))
        self._result = outcome.result

    def __enter__(self) -> Any:
        connection = self._inner.begin()
        self._grant.open = self
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._grant.open = None
        if kind is not None:
            self._inner.undo()
            return
        self._inner.finish(self._result)
        self._grant.committed = True

    async def __aenter__(self) -> Any:
        connection = await self._inner.abegin()
        self._grant.open = self
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._grant.open = None
        if kind is not None:
            await self._inner.aundo()
            return
        await self._inner.afinish(self._result)
        self._grant.committed = True
