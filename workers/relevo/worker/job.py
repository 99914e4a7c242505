"""What a handler is given, and how it may end besides returning."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload
from urllib.parse import quote

import orjson

from relevo.errors import ConfigurationError, VariablesError
from relevo.worker.progress import Note, detail_of

if TYPE_CHECKING:
    from relevo.worker.transactions import Block, Grant, JobTransaction
    from relevo_schemas.delivery import Activation

C = TypeVar("C")
_Class: TypeAlias = type[C]
"""`Job` has a property that is called type."""
_UNREAD: Any = object()
_HEADER_SAFE: Final = "!#$&'*+-./:=@^_`|~"
"""What stands in a header's value as it is, besides letters and digits."""


class JobError(Exception):
    """Raise it to end the job with a business error: it becomes ERRORED and is not tried again.

    Args:
        code: For programs to branch on; at most 256 bytes, what is longer is cut. A subclass that gives none
            has its own name for a code.
        message: For people to read.
    """

    # Where a subclass doesn't call this class' __init__.
    code: str = ""
    message: str = ""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else f"{self.code}"


class Fail(Exception):  # noqa: N818 - it is an order to the worker, like StopIteration
    """Raise it to fail this attempt on purpose, and say when or whether there is another.

    Args:
        message: What went wrong, for people to read.
        retry_in: Pause before the next attempt, in seconds; None: the job's own backoff. Cut to 30 days.
        retriable: False: no other attempt, the job becomes an incident at once.

    Raises:
        ValueError: ``retry_in`` is negative or no number.
    """

    # Where a subclass doesn't call this class' __init__.
    message: str = ""
    retry_in: float | None = None
    retriable: bool = True

    def __init__(self, message: str = "", *, retry_in: float | None = None, retriable: bool = True) -> None:
        if retry_in is not None and not retry_in >= 0:
            raise ValueError(f"retry_in must not be negative, and a number: {retry_in}")
        super().__init__(message)
        self.message = message
        self.retry_in = retry_in
        self.retriable = retriable


class Job:
    """One attempt of one job.

    Attributes:
        key: The job's identity.
        type: Job type.
        attempt: Number of this hand-over, from 1.
        partition: The job's partition.
        retries_left: Failures still answered with another attempt.
        correlation_id: The creator's own identifier.
        headers: The creator's headers.
        priority: Higher runs earlier.
    """

    __slots__ = (
        "_activation", "_grant", "_lost", "_lost_event", "_note", "_variables", "attempt", "key",
    )  # fmt: skip

    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        self.key: str = activation.job.key
        self.attempt: int = activation.attempt
        self._variables = _UNREAD
        self._grant: Grant | None = None
        self._lost: str | None = None
        self._lost_event: threading.Event | None = None
        self._note: Note | None = None

    @property
    def type(self) -> str:
        """Job type."""
        return self._activation.job.type

    @property
    def partition(self) -> int:
        """The job's partition."""
        return self._activation.partition

    @property
    def retries_left(self) -> int:
        """Failures still answered with another attempt."""
        return self._activation.retries

    @property
    def priority(self) -> int:
        """Higher runs earlier."""
        return self._activation.job.priority

    @property
    def correlation_id(self) -> str | None:
        """The creator's own identifier."""
        return self._activation.job.correlation_id

    @property
    def headers(self) -> Mapping[str, str]:
        """The creator's headers."""
        return self._activation.job.headers

    @property
    def variables(self) -> Any:
        """The job's input, parsed at first use.

        Raises:
            VariablesError: It isn't JSON, or is nested too deep. Let it pass: the job becomes an incident.
        """
        if self._variables is _UNREAD:
            raw = self._activation.job.variables
            try:
                self._variables = orjson.loads(raw) if raw else None
            except orjson.JSONDecodeError as error:
                raise VariablesError(
                    f"the variables of job {self.key!r} can't be read as JSON: {error}"
                ) from error
        return self._variables

    @property
    def variables_json(self) -> bytes:
        """The job's input as its creator sent it."""
        return self._activation.job.variables

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts: give it to whoever performs the effect, who can tell repeats by it."""
        return f"workflow-{self.key}"

    @property
    def idempotency_headers(self) -> dict[str, str]:
        """`idempotency_key` as the ``Idempotency-Key`` header of an HTTP request.

        A key may hold what no header can: spaces, ``%``, quotes, commas and all beyond ASCII are
        percent-encoded, so different keys stay different.
        """
        return {"Idempotency-Key": quote(self.idempotency_key, safe=_HEADER_SAFE)}

    def checkpoint(self, detail: Any) -> None:
        """Store how far this attempt has come, for the next one, which finds it in `progress`.

        ::

            page = (job.progress or {"page": 0})["page"]
            while page < job.variables["pages"]:
                export(page)
                page += 1
                job.checkpoint({"page": page})

        It returns at once, in coroutines and plain handlers alike; the worker sends it a moment later, of
        several in quick succession only the latest, and before the attempt's failure. Once Kafka has
        acknowledged it, it is kept until the job ends. It is also a sign of life: the lease begins anew.

        A hint for going on, and no proof: a crash right after the call may lose it, so what it speaks of may
        be done, and not be stored. Effects must be idempotent as ever. On an attempt that is `lost` the call
        does nothing.

        Args:
            detail: Any JSON of up to 64 KiB; replaces what was stored before. None: forget it.

        Raises:
            InvalidRequest: It isn't JSON, or is too large. What was stored before stays.
        """
        encoded = detail_of(self.key, detail)
        if self._lost is None:
            if self._note is None:
                self._note = Note()
            self._note.put(encoded)

    @property
    def progress(self) -> Any:
        """What earlier attempts stored last with `checkpoint`; None where there is nothing."""
        stored = self._activation.checkpoint
        return orjson.loads(stored) if stored else None

    @property
    def lost(self) -> bool:
        """Whether this attempt has lost its lease or claim. Another may run, so start no further effect."""
        return self._lost is not None

    @property
    def lost_reason(self) -> str | None:
        """Why it is lost, for people to read."""
        return self._lost

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait, in a plain handler, until the attempt is lost; False: it isn't after ``timeout`` seconds."""
        if self._lost_event is None:
            self._lost_event = threading.Event()
        if self._lost is not None:
            return True
        return self._lost_event.wait(timeout)

    @overload
    def transaction(self) -> JobTransaction: ...

    @overload
    def transaction(self, connection: _Class[C]) -> Block[C]: ...

    def transaction(self, connection: _Class[Any] | None = None) -> JobTransaction | Block[Any]:
        """Open a transaction in the database of the worker's `SqlDedupStore`, for this job's effect.

        ::

            async with job.transaction() as conn:  # a plain handler: with job.transaction() as conn:
                await conn.execute("INSERT INTO payments ...")
                job.done({"paid": True})

        The block's statements and the job's done mark are committed together at its end, so a crash at any
        point leaves all of it or nothing, and no redelivery repeats it. An exception out of the block rolls
        everything back. Give the result to `done` inside the block: a result that the handler only returns
        is stored a moment after the commit, and a crash in between completes the job without one.

        ``conn`` is a psycopg connection (`psycopg.AsyncConnection` with ``async with``) or a
        `sqlite3.Connection`; savepoints are fine, COMMIT and ROLLBACK are the block's. A job has one
        transaction: what comes after it in the handler is not bound to it.

        Args:
            connection: What ``conn`` is expected to be, such as `sqlite3.Connection`: then type checkers know
                it, and entering the block makes sure of it. None: anything.

        Raises:
            ConfigurationError: The worker's store is no `SqlDedupStore`, the job is run at most once, it has
                had its transaction, or the store's connection is of another type.
            ClaimLost: On entry or at the end: another worker has the job. Everything was rolled back; let it
                pass.
            StoreUnavailable: The database doesn't answer; `outcome` says whether the commit may have
                happened.
        """
        block = self._held("transaction").transaction()
        if connection is not None:
            block.expect(connection)
        return block

    def done(self, result: Any = None) -> None:
        """Say, inside `transaction`, what the job's result is: it is committed with the effect.

        Raises:
            ConfigurationError: No transaction is open.
            InvalidRequest: The result isn't JSON, or is too large. Let it pass and all is rolled back.
        """
        grant = self._held("done")
        if grant.open is None:
            raise ConfigurationError(
                "job.done() belongs inside a job.transaction() block; elsewhere return the result"
            )
        grant.open.set_result(result)

    def _held(self, call: str) -> Grant:
        if self._grant is None:
            raise ConfigurationError(
                f"job.{call}() needs a claim in a SqlDedupStore, and this job has none: it is run at most "
                f"once, or not by a worker"
            )
        return self._grant

    def _hand_over(self, activation: Activation) -> None:
        """A later attempt of the job came before its handler began: that is the one it runs."""
        self._activation = activation
        self.attempt = activation.attempt

    def _mark_lost(self, reason: str) -> None:
        """Called by the worker, from any thread."""
        if self._lost is None:
            self._lost = reason
            if self._lost_event is not None:
                self._lost_event.set()

    def __repr__(self) -> str:
        return f"Job(key={self.key!r}, type={self.type!r}, attempt={self.attempt})"
