"""Every error of this package, and what its caller may do about it."""

# ruff: noqa: N818 - named by what happened, as callers read them in an except clause
from __future__ import annotations

from enum import StrEnum
from typing import Self


class Outcome(StrEnum):
    """What became of the request."""

    NOT_DONE = "not_done"
    """It had no effect and will have none."""
    UNKNOWN = "unknown"
    """It may have had its effect, or may still have it."""
    DONE = "done"
    """It had its effect; what failed came after."""


class Retry(StrEnum):
    """What to do next."""

    SAME = "same"
    """The same request, with the same job key, later."""
    ELSEWHERE = "elsewhere"
    """The same request, sent to another address."""
    STOP = "stop"
    """Nothing: it would fail again until something else is changed."""


class RelevoError(Exception):
    """Root of all errors of this package.

    As text an error ends with ``[outcome=… retry=…]``, unless nothing was done and repeating it is no use.

    Attributes:
        outcome: What became of the request.
        retry: What to do next. Where `outcome` is unknown, only ever the same request with the same job key:
            the engine makes one job of it however often it comes.
    """

    outcome: Outcome = Outcome.NOT_DONE
    retry: Retry = Retry.STOP

    @property
    def text(self) -> str:
        """What happened, for people to read; without outcome and retry."""
        return super().__str__()

    def __str__(self) -> str:
        if (self.outcome, self.retry) == (Outcome.NOT_DONE, Retry.STOP):
            return self.text
        return f"{self.text} [outcome={self.outcome} retry={self.retry}]"

    def but(self, outcome: Outcome, retry: Retry) -> Self:
        """This error, where it came at a point that makes another outcome of it."""
        self.outcome = outcome
        self.retry = retry
        return self


class InvalidRequest(RelevoError, ValueError):
    """An argument can't be right; nothing was sent."""


class ConfigurationError(RelevoError, ValueError):
    """A setting can't be right, or contradicts what the package relies on."""


class MissingExtra(RelevoError, ImportError):
    """An optional part is not installed; the message says how to install it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: pip install 'relevo[{extra}]'")
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), (str(self).split(" needs ")[0], self.extra)


class UsedAfterFork(RelevoError):
    """The object was made in another process: its threads and connections don't exist here."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this {what} was made before the process forked and can't work here: "
            f"make a new one in the child, or start processes with the 'spawn' method"
        )
        self.what = what

    def __reduce__(self) -> tuple[type[UsedAfterFork], tuple[str]]:
        return type(self), (self.what,)


class Closed(RelevoError):
    """The object was closed before."""


class Unreachable(RelevoError):
    """Kafka doesn't answer at the given address; nothing was sent."""

    retry = Retry.ELSEWHERE


class ClusterNotFound(RelevoError):
    """Kafka answers, but has no topics of this cluster."""


class QueueFull(RelevoError):
    """The local send queue stayed full for as long as the caller would wait; this request is not in it."""

    retry = Retry.SAME


class NotSent(RelevoError):
    """The record never left this process, and never will."""

    retry = Retry.SAME


class Refused(RelevoError):
    """Kafka will refuse the request again: not authorised, too large, against a rule of the broker's."""


class OutcomeUnknown(RelevoError):
    """The record may be in Kafka, or may still get there; or it is there, and the answer can't be heard.

    Send the same request with the same job key: a job that exists already is not made twice.
    """

    outcome = Outcome.UNKNOWN
    retry = Retry.SAME


class DecisionTimeout(RelevoError, TimeoutError):
    """Kafka has the command, so it can't be lost, but the engine didn't decide it in the time given.

    Asking again with the same job key is safe.
    """

    outcome = Outcome.UNKNOWN
    retry = Retry.SAME


class ResultTimeout(RelevoError, TimeoutError):
    """The job exists and has not finished in the time given. Wait for it again."""

    outcome = Outcome.DONE
    retry = Retry.SAME


class Rejected(RelevoError):
    """The engine refused the command; nothing changed.

    Attributes:
        key: The job's key.
        command: Kind of the command.
        reason: Code, for programs to branch on.
        expected: What the engine expects.
        found: What it found instead.
    """

    def __init__(self, key: str, command: str, reason: str, expected: str, found: str) -> None:
        super().__init__(f"{command} of job {key!r} refused, {reason}: expected {expected}, found {found}")
        self.key = key
        self.command = command
        self.reason = reason
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[type[Rejected], tuple[str, ...]]:
        return type(self), (self.key, self.command, self.reason, self.expected, self.found)


class JobNotCompleted(RelevoError):
    """A result was asked for, and the job ended in another way; `state` says which."""

    outcome = Outcome.DONE

    def __init__(self, key: str, state: str, detail: str) -> None:
        super().__init__(f"job {key!r} ended as {state}" + (f": {detail}" if detail else ""))
        self.key = key
        self.state = state
        self.detail = detail

    def __reduce__(self) -> tuple[type[JobNotCompleted], tuple[str, str, str]]:
        return type(self), (self.key, self.state, self.detail)


class LogGap(RelevoError):
    """The next record of the job log is gone or never was there; reading on would skip events."""


class VariablesError(RelevoError, ValueError):
    """A job's variables are not JSON that can be read; trying again won't change them."""


class StoreUnsafe(RelevoError):
    """The dedup store is set up in a way that forgets claims; the message says what to change."""


class StoreUnavailable(RelevoError):
    """The dedup store doesn't answer; nothing was started because of it."""

    retry = Retry.SAME


class ClaimLost(RelevoError):
    """The attempt's claim is not its own any more: another worker has it, or has done the job.

    Raised by `Job.transaction`, which has rolled everything back. Let it pass: the worker asks the store
    again.
    """
