"""What the engine's refusals mean, in people's words."""

from __future__ import annotations

from typing import Final

from relevo.errors import Rejected

_DOING: Final = {"CreateJob": "created", "CancelJob": "cancelled", "RetryJob": "retried"}
_FORGOTTEN: Final = "there is no such job, or it ended so long ago that it is forgotten"


def in_words(error: Rejected) -> str:
    """Why a command about a job was refused; the engine's own code stays in brackets, to search for."""
    doing = _DOING.get(error.command, "changed")
    return f"job {error.key!r} can't be {doing}: {why(error.reason, error.expected, error.found)}"


def why(reason: str, expected: str, found: str) -> str:
    """The reason of a refusal; ``expected`` and ``found`` are the engine's."""
    match reason:
        case "NOT_FOUND":
            words = _FORGOTTEN
        case "ALREADY_EXISTS":
            words = f"it is there already, {found}"
        case "ALREADY_COMPLETED":
            words = "it is completed already"
        case "ALREADY_FINISHED":
            words = f"it has ended already, {found}"
        case "NOT_RETRYABLE":
            words = f"it is {found}; only one that is an INCIDENT, or waits for its next attempt, can be"
        case "TOO_LARGE":
            words = f"it is too large: {found}, allowed are {expected}"
        case _:
            words = f"expected {expected}, found {found}"
    return f"{words} ({reason})"
