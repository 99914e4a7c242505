"""What a dedup store promises, for those who use one and those who write one.

A store knows for each key one of three things: nothing, a claim (somebody's attempt is running, until a
time), or `done` with a result (kept for the dedup window). The store decides atomically who may run; it
never guesses: when it can't tell, the answer is `Unknown`, and the caller does nothing that can't be
repeated.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from relevo.errors import ConfigurationError

DEFAULT_TTL_S: Final = 24 * 3600.0
"""The dedup window: how long a done job is remembered, in seconds."""
SECONDS_MAX: Final = 3_153_600_000.0
"""A hundred years, which every store can add to its clock."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The wish to run, or to go on running.

    Attributes:
        key: What must not happen twice.
        token: Names the owner; no two owners have the same.
        seconds: How long the claim holds without being renewed.
    """

    key: str
    token: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The news that the effect has happened.

    Attributes:
        key: What must not happen twice.
        token: The owner of the claim.
        result: What the handler returned, as JSON; empty: nothing.
        ttl: How long to remember it, in seconds; None: the store's own window.
    """

    key: str
    token: str
    result: bytes
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class Mine:
    """The caller owns the claim; in answer to `done` and `release`: what it asked is in effect."""


@dataclass(frozen=True, slots=True)
class Done:
    """The effect has happened before; nobody needs to run it again.

    Attributes:
        result: What was stored with it.
    """

    result: bytes


@dataclass(frozen=True, slots=True)
class Held:
    """Another owner holds the claim.

    Attributes:
        until: When it ends unless it is renewed, in seconds since the Unix epoch by this process' clock.
    """

    until: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """The store didn't answer, or not clearly. Never to be read as a duplicate.

    Attributes:
        reason: What went wrong, without secrets.
    """

    reason: str


Answer: TypeAlias = Mine | Done | Held | Unknown
MINE: Final = Mine()


def check_seconds(name: str, seconds: float) -> None:
    """Do nothing with a time that a store can count with.

    Raises:
        ConfigurationError: It is 0, negative, no number, or longer than a hundred years.
    """
    if not 0 < seconds <= SECONDS_MAX:
        raise ConfigurationError(f"{name} must be more than 0 seconds, and finite, not {seconds:g}")


class StoreTransaction(Protocol):
    """A database transaction that holds one claim, its effect and its done mark. Used once.

    The `begin` family raises `ClaimLost` where the claim is not the caller's any more, and `StoreUnavailable`
    where the database doesn't answer; either way nothing is left open. The ``a…`` forms are for coroutines.
    """

    def begin(self) -> Any:
        """Open it, make sure of the claim; returns the connection."""

    def finish(self, result: bytes | None) -> None:
        """Write the done mark and commit; whatever it raises, nothing is left open.

        Args:
            result: To be told to everybody; None: it follows with `DedupStore.done`.

        Raises:
            ClaimLost: The claim is not the caller's any more; everything was rolled back.
            StoreUnavailable: No answer; `outcome` says whether it may have been committed.
        """

    def undo(self) -> None:
        """Roll everything back. Never raises."""

    def abandon(self) -> None:
        """Roll back by ending the connection: somebody may still hold it, and must not do anything more.

        Of either form; for coroutines on their own loop. Never raises.
        """

    async def abegin(self) -> Any:
        """`begin`."""

    async def afinish(self, result: bytes | None) -> None:
        """`finish`."""

    async def aundo(self) -> None:
        """`undo`."""


class DedupStore(ABC):
    """Remembers what has been done, and who is doing what.

    All calls take a batch and answer each item in its place. They don't raise: what goes wrong is `Unknown`
    for the items it went wrong for. They are safe to call from several threads. The ``a…`` forms are for
    coroutines.
    """

    ttl: float = DEFAULT_TTL_S

    @abstractmethod
    def claim(self, claims: Sequence[Claim]) -> list[Answer]:
        """Take each key that is free, expired, or the caller's own already.

        `Mine` is given to one owner at a time; the same token gets it again, so a claim whose answer was
        lost may be repeated.
        """

    @abstractmethod
    def renew(self, claims: Sequence[Claim]) -> list[Answer]:
        """Make each claim hold for its seconds from now.

        A claim that has ended and that nobody else took is taken again: `Mine`. One that its owner has turned
        into `done` in a transaction, while the handler goes on, may be `Mine` too.
        """

    @abstractmethod
    def done(self, finishes: Sequence[Finish]) -> list[Answer]:
        """Turn each claim into `done`, to be remembered for the window.

        A claim that has ended and that nobody else took counts as the caller's: the effect has happened.
        """

    @abstractmethod
    def release(self, claims: Sequence[Claim]) -> list[Answer]:
        """Give each claim back, so that the next attempt can have it at once.

        `Mine`: it was the caller's, or nobody's.
        """

    def check(self) -> None:  # noqa: B027 - most stores need none
        """Find out whether the store can keep its promises. Called once before the first claim.

        Raises:
            StoreUnsafe: It can't; the message says what to change.
            StoreUnavailable: It doesn't answer.
        """

    def close(self) -> None:  # noqa: B027 - most stores need none
        """Give back connections. The store isn't used afterwards."""

    def transaction(self, claim: Claim, ttl: float | None) -> StoreTransaction:
        """A transaction for the claim, its effect and its done mark, where the store is a database.

        Args:
            claim: One that is the caller's.
            ttl: How long to remember it, in seconds; None: the store's own window.

        Raises:
            ConfigurationError: The store is none.
        """
        raise ConfigurationError(
            f"job.transaction() needs a SqlDedupStore: {type(self).__name__} can't commit together with "
            f"an effect in a database"
        )

    async def aclaim(self, claims: Sequence[Claim]) -> list[Answer]:
        """`claim` for coroutines."""
        return await asyncio.to_thread(self.claim, claims)

    async def arenew(self, claims: Sequence[Claim]) -> list[Answer]:
        """`renew` for coroutines."""
        return await asyncio.to_thread(self.renew, claims)

    async def adone(self, finishes: Sequence[Finish]) -> list[Answer]:
        """`done` for coroutines."""
        return await asyncio.to_thread(self.done, finishes)

    async def arelease(self, claims: Sequence[Claim]) -> list[Answer]:
        """`release` for coroutines."""
        return await asyncio.to_thread(self.release, claims)
