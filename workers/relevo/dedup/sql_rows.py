"""What the SQL stores have in common: a row of their table, what it means, and how keys are written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

from relevo.dedup.store import MINE, Answer, Claim, Done, Finish, Held, StoreTransaction, Unknown
from relevo.errors import ConfigurationError

COLUMNS: Final = ("key", "token", "done", "result", "expires_at")
BATCH_BYTES_MAX: Final = 8_000_000
"""Results in one statement, in bytes."""
PURGE_ROWS: Final = 2_000
"""Rows out of date that one clean-up removes at most."""
IN_USE_S: Final = 0.2
"""When to ask again about a row that somebody has locked, in seconds."""
PURGE_GRACE_S: Final = 60.0
"""A claim that ended is still its owner's while nobody else wants it."""

# The index on a table is named after it, and names have at most 63 bytes.
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}\Z")

Asked = TypeVar("Asked", Claim, Finish)


class Call(Enum):
    """What was asked about a row."""

    CLAIM = "claim"
    RENEW = "renew"
    DONE = "done"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Row:
    """What a statement says about one key.

    Attributes:
        taken: What was asked is in effect.
        own: The row bears the caller's token; None: there is no row.
        done: It is a done mark.
        result: What stands in it; None: a done mark whose handler has yet to say.
        left_s: When it ends, in seconds from now by the database's clock.
    """

    taken: bool
    own: bool | None = None
    done: bool = False
    result: bytes | None = None
    left_s: float = 0.0


class Backend(Protocol):
    """One kind of database."""

    #: Where it is, without user and password.
    address: str
    #: The statements that make the table.
    schema: str
    #: Whether an open transaction holds up every other call.
    one_writer: bool

    def ask(self, call: Call, items: Sequence[Any]) -> list[Row]:
        """Do it for each, no key twice; raises the driver's errors."""

    def purge(self) -> None:
        """Remove some rows that are out of date."""

    def check(self) -> None:
        """Raises `StoreUnsafe` or `StoreUnavailable`."""

    def transaction(self, claim: Claim, ttl: float) -> StoreTransaction:
        """A transaction around a claim's effect."""

    def reason(self, error: Exception) -> str:
        """What went wrong, without secrets."""

    def close(self) -> None:
        """End the connections."""


def answer_of(call: Call, row: Row, in_transaction: bool) -> Answer:
    """What a row means to whoever asked.

    Args:
        call: What was asked.
        row: What the database said.
        in_transaction: Whether the caller has a transaction open for this claim, which keeps its row locked.
    """
    if row.taken:
        return MINE
    if call is Call.RENEW and row.own and (row.done or in_transaction):
        return MINE
    if row.done and row.left_s > 0:
        return Done(row.result or b"")
    if call is Call.RELEASE and (row.own is None or (not row.own and row.left_s <= 0)):
        return MINE
    if call is not Call.CLAIM and (row.own or (row.own is None and call is Call.RENEW)):
        return Unknown("the claim's row is in use: ask again")
    # A row that has ended and could not be taken is in use this moment: by a transaction, as a rule.
    return Held(time.time() + max(row.left_s, 0.0 if row.own is None else IN_USE_S))


def rounds(items: Sequence[Asked]) -> Iterator[list[int]]:
    """Places of ``items`` in groups that one statement can answer: no key twice, not too many bytes."""
    left = list(range(len(items)))
    while left:
        seen: set[str] = set()
        size = 0
        now: list[int] = []
        later: list[int] = []
        for at in left:
            item = items[at]
            size += len(getattr(item, "result", b""))
            if item.key in seen or (now and size > BATCH_BYTES_MAX):
                later.append(at)
            else:
                now.append(at)
            seen.add(item.key)
        yield now
        left = later


def answers(
    call: Call,
    items: Sequence[Asked],
    ask: Callable[[Call, Sequence[Any]], list[Row]],
    in_transaction: Container[tuple[str, str]],
    failed: Callable[[Exception], str],
) -> list[Answer]:
    """Ask about all items; what goes wrong is `Unknown` for those it went wrong for."""
    found: list[Answer] = [Unknown("not asked")] * len(items)
    for places in rounds(items):
        some = [items[at] for at in places]
        try:
            rows = ask(call, some)
            if len(rows) != len(some):
                raise LookupError(f"{len(rows)} answers to {len(some)} questions")
        except Exception as error:
            said: list[Answer] = [Unknown(failed(error))] * len(some)
        else:
            said = [
                answer_of(call, row, (item.key, item.token) in in_transaction)
                for row, item in zip(rows, some, strict=True)
            ]
        for at, answer in zip(places, said, strict=True):
            found[at] = answer
    return found


def stored_key(key: str) -> str:
    r"""The key as its column holds it: as it is, but for NUL (``\0``) and the backslash (``\\``)."""
    return key.replace("\\", "\\\\").replace("\x00", "\\0")


def table_parts(table: str) -> tuple[str, ...]:
    """Schema, if given, and table.

    Raises:
        ConfigurationError: It isn't a name that every database takes.
    """
    parts = tuple(str(table).split("."))
    if not 1 <= len(parts) <= 2 or not all(_NAME.match(part) for part in parts):
        raise ConfigurationError(
            f"table {table!r}: letters, digits and '_' are allowed, 50 at most, the first no digit; "
            f"a schema may stand before it, with a dot"
        )
    return parts


def quoted(*parts: str) -> str:
    """A checked name as it stands in a statement."""
    return ".".join(f'"{part}"' for part in parts)
