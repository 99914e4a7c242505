"""What a client hears: a job it created, and how a job ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

from relevo.errors import JobNotCompleted, RelevoError
from relevo_schemas import events
from relevo_schemas.records import Event

FINISHED_STATES: Final = frozenset({"COMPLETED", "ERRORED", "CANCELLED", "EXPIRED"})


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A command that Kafka has: what is needed to hear of it later, also from another process.

    Attributes:
        key: The job's key.
        partition: The job's partition.
        offset: Where the command stands in it.
        at: When it was sent, in milliseconds since the Unix epoch by this machine's clock.
        created: Whether this command made the job; False: it existed. None: not known, as nobody waited for
            it.
        state: State of the job that was found, where one existed.
        log_offset: A position in the log partition before which nothing caused by this command stands; None:
            unknown.
    """

    key: str
    partition: int
    offset: int
    at: int
    created: bool | None = None
    state: str | None = None
    log_offset: int | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended.

    Attributes:
        key: The job's key.
        state: COMPLETED, ERRORED, CANCELLED or EXPIRED.
        attempt: The attempt that ended it; 0 where none did.
        result: What the handler returned, as JSON; empty: nothing. None where it isn't known, because the
            job had ended before it was asked for.
        code: Code of the business error, where it ended with one.
        message: Text of the error or the reason, for people to read.
        at: When, in milliseconds since the Unix epoch by the leader's clock; 0 where it isn't known.
    """

    key: str
    state: str
    attempt: int = 0
    result: bytes | None = None
    code: str = ""
    message: str = ""
    at: int = 0

    @property
    def value(self) -> Any:
        """What the handler returned.

        Raises:
            JobNotCompleted: The job ended in another way, or its result isn't known.
        """
        if self.state != "COMPLETED":
            raise JobNotCompleted(self.key, self.state, ": ".join(filter(None, (self.code, self.message))))
        if self.result is None:
            raise JobNotCompleted(
                self.key, self.state, "its result is not known here: it had ended before it was asked for"
            )
        return orjson.loads(self.result) if self.result else None


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What became of one item of `create_many` or `retry_many`.

    Attributes:
        index: Place of the item, from 0.
        key: The job's key; None where the item was refused before it had one.
        handle: The job, where all went well.
        error: Why it didn't; its `outcome` says whether the command may have had its effect all the same.
    """

    index: int
    key: str | None
    handle: JobHandle | None = None
    error: RelevoError | None = None

    @property
    def ok(self) -> bool:
        """Whether Kafka has the command and, where that was waited for, the engine did it."""
        return self.error is None


def finish_of(event: Event) -> JobResult | None:
    """The result told by ``event``, where it ends a job."""
    match event:
        case events.JobCompleted():
            return JobResult(event.key, "COMPLETED", event.attempt, event.result, at=event.at)
        case events.JobErrored():
            return JobResult(
                event.key, "ERRORED", event.attempt, b"", code=event.code, message=event.message, at=event.at
            )
        case events.JobCancelled():
            return JobResult(event.key, "CANCELLED", message=event.reason, at=event.at)
        case events.JobExpired():
            return JobResult(event.key, "EXPIRED", at=event.at)
        case _:
            return None
