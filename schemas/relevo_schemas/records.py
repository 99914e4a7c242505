"""Base of all records: fast to make, read-only to a type checker, compared by value and kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make ``cls`` a record: a slotted dataclass that type checkers treat as frozen.

    ``dataclass(frozen=True)`` would enforce it at run time as well, for four times the cost of making one; a
    leader makes several per job.
    """
    return dataclass(slots=True)(cls)


class Record:
    """Anything that has a schema of its own; the class name is the schema's name."""

    __slots__ = ()
    #: Field names in the schema's order; the codec fills it in.
    FIELDS: ClassVar[Sequence[str]] = ()


class Command(Record):
    """What somebody asks for, in the imperative. Changes nothing by itself."""

    __slots__ = ()


class Event(Record):
    """What happened, in the past tense. The only thing that changes state.

    Every event begins with ``seq, epoch, at, source`` (see ``JobCreated.avsc``).
    """

    __slots__ = ()
    if TYPE_CHECKING:
        seq: int
        epoch: int
        at: int
        source: int
