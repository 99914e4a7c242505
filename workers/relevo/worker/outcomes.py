"""How an attempt ended, and the command that says so."""

from __future__ import annotations

import asyncio
import inspect
import os
import traceback
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from relevo.errors import ClaimLost, VariablesError
from relevo.worker.bounds import (
    PAUSE_MAX_MS,
    RESULT_BYTES_MAX,
    bounded_code,
    bounded_pause_ms,
    bounded_text,
    said,
    text_of,
)
from relevo.worker.job import Fail, JobError
from relevo_schemas import commands
from relevo_schemas.codec import encode_json
from relevo_schemas.records import Command


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
    """What a handler's return value means. The effect has happened: what can't be kept is not tried again."""
    if result is None:
        return NOTHING
    try:
        if inspect.iscoroutine(result):
            result.close()
            return _no_result("the handler returned a coroutine: declare it with 'async def'")
        encoded = encode_json(result)
    except (TypeError, ValueError) as error:
        return _no_result(f"the handler's result is not JSON: {said(error)} ({type(result).__name__})")
    except Exception as error:  # its own code, which runs while it is encoded
        return _no_result(
            f"the handler's result can't be made JSON: {text_of(error)} ({type(result).__name__})"
        )
    return Completed(encoded) if len(encoded) <= RESULT_BYTES_MAX else _too_large(len(encoded))


def _no_result(why: str) -> Failed:
    return Failed(bounded_text(why), retriable=False, kind="result")


def _too_large(size: int) -> Failed:
    return _no_result(
        f"the handler's result has {size} bytes, {RESULT_BYTES_MAX} are allowed: "
        f"store it elsewhere and return where"
    )


def of_exception(error: BaseException) -> Ending:
    """What an exception out of a handler means. All of them: a handler must not end the worker."""
    try:
        return _meaning(error)
    except Exception as fault:  # attributes of its own that raise, for one
        text = f"{type(error).__name__}, which can't be read ({type(fault).__name__})"
        return (
            Errored(bounded_code(type(error).__name__), text) if isinstance(error, JobError) else Failed(text)
        )


def _meaning(error: BaseException) -> Ending:
    match error:
        case JobError():
            return _errored(error)
        case Fail():
            told: Any = error.message  # text, if its maker kept to that
            text = "" if told is None else text_of(told)
            return Failed(
                bounded_text(text or "the handler failed the attempt"),
                bounded_pause_ms(error.retry_in),
                bool(error.retriable),
                kind="fail",
            )
        case ClaimLost():
            return NotOurs()
        case VariablesError():
            return Failed(bounded_text(text_of(error.text)), retriable=False, kind="variables")
        case asyncio.CancelledError():
            return Failed("the handler was cancelled", kind="cancelled")
        case _:
            return Failed(_describe(error))


def _errored(error: JobError) -> Errored:
    code: Any = error.code  # text both, if their maker kept to that
    message: Any = error.message
    if "code" not in vars(error):
        # A subclass that didn't call our __init__: its name and what it was made with say what happened.
        code = code or None
        message = message or ", ".join(text_of(arg) for arg in error.args)
    return _bounded_errored(
        type(error).__name__ if code is None else text_of(code), "" if message is None else text_of(message)
    )


def _bounded_errored(code: str, message: str) -> Errored:
    fits = bounded_code(code)
    if len(fits) < len(code):
        message = f"(the code was cut: {len(code)} characters) {message}".rstrip()
    return Errored(fits, bounded_text(message))


def acceptable(outcome: Outcome) -> Outcome:
    """The outcome as the engine takes it, wherever it is from: what it refuses, nobody would hear of."""
    match outcome:
        case Completed(result):
            return outcome if len(result) <= RESULT_BYTES_MAX else _too_large(len(result))
        case Failed(error, retry_in_ms):
            return replace(
                outcome, error=bounded_text(error), retry_in_ms=min(max(-1, retry_in_ms), PAUSE_MAX_MS)
            )
        case Errored(code, message):
            return _bounded_errored(code, message)


def command_for(key: str, created_seq: int, attempt: int, outcome: Outcome) -> Command:
    """What to tell the engine."""
    match outcome:
        case Completed(result):
            return commands.CompleteJob(key, created_seq, attempt, result)
        case Failed(error, retry_in_ms, retriable):
            return commands.FailJob(key, created_seq, attempt, error, retry_in_ms, retriable)
        case Errored(code, message):
            return commands.ThrowError(key, created_seq, attempt, code, message)


def _describe(error: BaseException) -> str:
    """The exception, and where in the handler it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if len(frames) > 1 else None
    where = f" (at {os.path.basename(last.filename)}:{last.lineno}, in {last.name})" if last else ""
    return bounded_text(text_of(error) + where)
