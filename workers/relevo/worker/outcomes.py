"""How an attempt ended, and the command that says so."""

from __future__ import annotations

import asyncio
import inspect
import os
import traceback
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from relevo.errors import ClaimLost, VariablesError
from relevo.worker.job import Fail, JobError
from relevo_schemas import commands
from relevo_schemas.codec import encode_json
from relevo_schemas.records import Command

RESULT_BYTES_MAX: Final = 900_000
"""Longest result in bytes, as the engine takes it: the event with it must fit into one record."""
ERROR_TEXT_MAX: Final = 4_000
"""Longest error text in characters; what is longer loses its middle."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned."""

    result: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed; whether there is another is the engine's to say.

    Attributes:
        error: For people to read.
        retry_in_ms: Pause before the next attempt in milliseconds; -1: the job's own backoff.
        retriable: False: there is none.
        kind: One of `relevo.stats.FAILURES`; for counting only.
    """

    error: str
    retry_in_ms: int = -1
    retriable: bool = True
    kind: str = field(default="exception", compare=False)


@dataclass(frozen=True, slots=True)
class Errored:
    """The job ends with a business error."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class NotOurs:
    """The attempt turned out to be another worker's, and nothing of it is left: the store is asked again."""


Outcome: TypeAlias = Completed | Failed | Errored
Ending: TypeAlias = Outcome | NotOurs

NOTHING: Final = Completed(b"")
_COUNTED: Final[dict[type, str]] = {Completed: "done", Errored: "errored"}


def counted_as(outcome: Ending | None) -> str:
    """``done``, ``errored``, or the kind of failure, of `relevo.stats.FAILURES`."""
    return outcome.kind if isinstance(outcome, Failed) else _COUNTED[type(outcome)]


def of_result(result: Any) -> Outcome:
    """What a handler's return value means."""
    if result is None:
        return NOTHING
    if inspect.iscoroutine(result):
        result.close()
        return Failed(
            "the handler returned a coroutine: declare it with 'async def'", retriable=False, kind="result"
        )
    try:
        encoded = encode_json(result)
    except (TypeError, ValueError) as error:
        return Failed(
            f"the handler's result is not JSON: {error} ({type(result).__name__})",
            retriable=False,
            kind="result",
        )
    if len(encoded) > RESULT_BYTES_MAX:
        return Failed(
            f"the handler's result has {len(encoded)} bytes, {RESULT_BYTES_MAX} are allowed: "
            f"store it elsewhere and return where",
            retriable=False,
            kind="result",
        )
    return Completed(encoded)


def of_exception(error: BaseException) -> Ending:
    """What an exception out of a handler means. All of them: a handler must not end the worker."""
    match error:
        case JobError():
            return Errored(error.code, _bounded(error.message))
        case Fail():
            retry_in_ms = -1 if error.retry_in is None else round(error.retry_in * 1_000)
            return Failed(
                _bounded(error.message or "the handler failed the attempt"),
                retry_in_ms,
                error.retriable,
                kind="fail",
            )
        case ClaimLost():
            return NotOurs()
        case VariablesError():
            return Failed(_bounded(str(error)), retriable=False, kind="variables")
        case asyncio.CancelledError():
            return Failed("the handler was cancelled", kind="cancelled")
        case _:
            return Failed(_describe(error))


def command_for(key: str, attempt: int, outcome: Outcome) -> Command:
    """What to tell the engine."""
    match outcome:
        case Completed(result):
            return commands.CompleteJob(key, attempt, result)
        case Failed(error, retry_in_ms, retriable):
            return commands.FailJob(key, attempt, error, retry_in_ms, retriable)
        case Errored(code, message):
            return commands.ThrowError(key, attempt, code, message)


def _describe(error: BaseException) -> str:
    """The exception, and where in the handler it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if len(frames) > 1 else None
    where = f" (at {os.path.basename(last.filename)}:{last.lineno}, in {last.name})" if last else ""
    try:
        text = "".join(traceback.format_exception_only(error)).strip()
    except Exception:  # an exception whose own text can't be made
        text = type(error).__name__
    return _bounded(text + where)


def _bounded(text: str) -> str:
    # Lone surrogates have no UTF-8 form, and a handler's text may hold anything.
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= ERROR_TEXT_MAX:
        return text
    half = ERROR_TEXT_MAX // 2 - 3
    return f"{text[:half]} ... {text[-half:]}"
