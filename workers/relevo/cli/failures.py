"""An error as fields of JSON: what became of the request, and whether to repeat it."""

from __future__ import annotations

from typing import Any, Final

from relevo.cli.output import scrub
from relevo.cli.refusals import in_words
from relevo.errors import Outcome, Rejected, RelevoError, Retry, Unreachable

_NOT_REACHED: Final = 6
"""The exit code of the engine's errors that say so."""


def fields_of(error: Exception) -> dict[str, Any]:
    """``error``, ``kind``, ``outcome`` and ``retry`` of any exception, and what else it has for programs.

    The engine's own errors come from looking things up and from starting; they have changed nothing.
    Of an exception that is nobody's, nothing is known.
    """
    kind = type(error).__name__
    if isinstance(error, Rejected):
        told = {"reason": error.reason, "expected": error.expected, "found": error.found}
        return _fields(in_words(error), kind, error.outcome, error.retry) | told
    if isinstance(error, RelevoError):
        return _fields(error.text, kind, error.outcome, error.retry)
    if type(error).__module__.startswith("relevo"):
        return _fields(str(error), kind, Outcome.NOT_DONE, _retry(error))
    return _fields(str(error) or kind, kind, Outcome.UNKNOWN, Retry.STOP)


def _retry(error: Exception) -> Retry:
    if getattr(error, "retry_after_s", None) is not None:
        return Retry.SAME
    unreachable = isinstance(error, Unreachable) or getattr(error, "exit_code", 1) == _NOT_REACHED
    return Retry.ELSEWHERE if unreachable else Retry.STOP


def _fields(text: str, kind: str, outcome: Outcome, retry: Retry) -> dict[str, Any]:
    return {"error": scrub(text), "kind": kind, "outcome": outcome, "retry": retry}
