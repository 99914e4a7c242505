"""Claim, effect and done mark of a job in one database transaction, as a block in its handler."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from relevo.dedup.store import Claim, DedupStore, StoreTransaction
from relevo.errors import ConfigurationError, InvalidRequest
from relevo.worker.outcomes import Completed, Ending, Failed, of_result

if TYPE_CHECKING:
    from relevo.worker.job import Job

C_co = TypeVar("C_co", covariant=True)
_LEFT_OPEN: Final = (
    "the handler ended while its job.transaction() was open, so that was rolled back: end the block, and "
    "await what runs in it, before the handler returns"
)
_TOO_LATE: Final = "the handler has ended: what it left running can't open a job.transaction() any more"


@dataclass(slots=True)
class Grant:
    """A claim that a job holds, and what became of it in a transaction.

    Attributes:
        store: The dedup store.
        claim: Held in it.
        ttl: Window for the done mark in seconds; None: the store's own.
        open: The transaction that is open now.
        committed: Whether one has been committed: effect and done mark are there.
        over: Whether the handler has ended: what it has left running opens none any more.
    """

    store: DedupStore
    claim: Claim
    ttl: float | None
    open: JobTransaction | None = None
    committed: bool = False
    over: bool = False

    def transaction(self) -> JobTransaction:
        """The block for a handler."""
        return JobTransaction(self)


def at_end(job: Job, outcome: Ending) -> Ending:
    """What a handler's end means, with what it left open: a transaction, whose effect is rolled back.

    Without this the job would be completed, since its handler returned, and its effect never be committed.

    Args:
        job: Of the handler.
        outcome: Its end otherwise.
    """
    grant = job._grant
    if grant is None:
        return outcome
    grant.over = True
    if grant.open is None:
        return outcome
    grant.open.abandon()
    return Failed(_LEFT_OPEN, kind="result") if isinstance(outcome, Completed) else outcome


class Block(Protocol[C_co]):
    """A `JobTransaction` of which type checkers know what it gives."""

    def __enter__(self) -> C_co: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> C_co: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class JobTransaction:
    """The block that `relevo.Job.transaction` opens; ``with`` in threads, ``async with`` in coroutines."""

    def __init__(self, grant: Grant) -> None:
        if grant.committed:
            raise ConfigurationError(
                "this job's transaction has been committed, and its done mark with it: a job has one "
                "transaction, so put all of its effects into that"
            )
        if grant.over:
            raise ConfigurationError(_TOO_LATE)
        if grant.open is not None:
            raise ConfigurationError("this job has a transaction open already: use the one connection")
        self._grant = grant
        self._inner: StoreTransaction = grant.store.transaction(grant.claim, grant.ttl)
        self._result: bytes | None = None
        self._abandoned = False
        self._wanted: type[Any] = object

    def expect(self, connection: type[Any]) -> None:
        """Refuse, when the block is entered, a connection that is of another type."""
        self._wanted = connection

    def abandon(self) -> None:
        """The handler has ended and left it open: nothing of it stays, whoever still holds its connection."""
        self._abandoned = True
        self._grant.open = None
        self._inner.abandon()

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
        self._begun()
        if not isinstance(connection, self._wanted):
            self._grant.open = None
            self._inner.undo()
            raise self._other(connection)
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ends(kind):
            return
        if kind is not None:
            self._inner.undo()
            return
        self._inner.finish(self._result)
        self._grant.committed = True

    async def __aenter__(self) -> Any:
        connection = await self._inner.abegin()
        self._begun()
        if not isinstance(connection, self._wanted):
            self._grant.open = None
            await self._inner.aundo()
            raise self._other(connection)
        return connection

    def _other(self, connection: object) -> ConfigurationError:
        kind = type(connection)
        return ConfigurationError(
            f"job.transaction({self._wanted.__name__}): the worker's store gives a "
            f"{kind.__module__.partition('.')[0]}.{kind.__name__} here"
        )

    def _begun(self) -> None:
        self._grant.open = self
        if self._grant.over:
            self.abandon()
            raise ConfigurationError(_TOO_LATE)

    def _ends(self, kind: type[BaseException] | None) -> bool:
        """Whether there is something to end."""
        if self._abandoned:
            if kind is None:
                raise ConfigurationError(_LEFT_OPEN)
            return False
        self._grant.open = None
        return True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ends(kind):
            return
        if kind is not None:
            await self._inner.aundo()
            return
        await self._inner.afinish(self._result)
        self._grant.committed = True
