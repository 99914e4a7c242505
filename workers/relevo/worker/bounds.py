"""What the engine takes in the commands that end an attempt: a refused one would leave the job to its lease.

The engine refuses what is beyond these, and nobody waits for that answer: the attempt would be over here,
and run again there once its lease has ended, effect and all. So nothing that is refused is sent.
"""

from __future__ import annotations

import traceback
from typing import Any, Final

from relevo.client.requests import PAUSE_MAX_S

RESULT_BYTES_MAX: Final = 900_000
"""Longest result in bytes: the event with it must fit into one record."""
CODE_BYTES_MAX: Final = 256
"""Longest code of a business error, in bytes."""
PAUSE_MAX_MS: Final = PAUSE_MAX_S * 1_000
"""Longest pause before the next attempt that a handler may ask for."""
ERROR_TEXT_MAX: Final = 4_000
"""Longest error text in characters; what is longer loses its middle."""


def said(value: Any) -> str:
    """``str(value)``, whatever its own conversion does."""
    try:
        return str(value)
    except Exception as error:
        return f"{type(value).__name__}, which has no text ({type(error).__name__})"


def text_of(value: Any) -> str:
    """Any object as text; an exception with its type."""
    if not isinstance(value, BaseException):
        return said(value)
    try:
        return "".join(traceback.format_exception_only(value)).strip()
    except Exception:
        return f"{type(value).__name__}: {said(value)}"


def bounded_text(text: str) -> str:
    """A text for people: short enough, and with a UTF-8 form."""
    text = _writable(text)
    if len(text) <= ERROR_TEXT_MAX:
        return text
    half = ERROR_TEXT_MAX // 2 - 3
    return f"{text[:half]} ... {text[-half:]}"


def bounded_code(code: str) -> str:
    """An error's code, cut at a character to what is allowed."""
    raw = _writable(code).encode()
    return raw[:CODE_BYTES_MAX].decode(errors="ignore")


def bounded_pause_ms(seconds: Any) -> int:
    """A pause in milliseconds; -1, the job's own backoff, for None and for what can't be a pause."""
    try:
        pause = float(seconds)
    except (TypeError, ValueError, OverflowError):
        return -1
    return round(min(pause, PAUSE_MAX_S) * 1_000) if pause >= 0 else -1


def _writable(text: str) -> str:
    # Lone surrogates have no UTF-8 form, and a handler's text may hold anything.
    return text.encode("utf-8", "replace").decode()


__all__ = [
    "CODE_BYTES_MAX", "ERROR_TEXT_MAX", "PAUSE_MAX_MS", "RESULT_BYTES_MAX", "bounded_code",
    "bounded_pause_ms", "bounded_text", "said", "text_of",
]  # fmt: skip
