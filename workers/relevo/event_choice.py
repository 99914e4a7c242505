"""What a reader of job events may ask for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from relevo.errors import InvalidRequest
from relevo_schemas import events as kinds_module
from relevo_schemas.records import Event

Start: TypeAlias = Literal["beginning", "now"] | datetime | int | Mapping[int, int]
#: Kinds of events, by name.
KINDS: Final = frozenset(
    name
    for name, cls in vars(kinds_module).items()
    if isinstance(cls, type) and issubclass(cls, Event) and cls is not Event
)


def check_start(from_: Any) -> Literal["beginning", "now"] | int | Mapping[int, int]:
    """Where to start, checked; times in milliseconds.

    Raises:
        InvalidRequest: It can't be a start.
    """
    match from_:
        case "beginning" | "now":
            return from_  # type: ignore[no-any-return]
        case datetime():
            if from_.tzinfo is None:
                raise InvalidRequest(
                    "from_ has no time zone: use datetime.now(timezone.utc) or .astimezone()"
                )
            return round(from_.timestamp() * 1_000)
        case int() if not isinstance(from_, bool) and from_ >= 0:
            return from_
        case Mapping() if all(
            isinstance(partition, int) and isinstance(offset, int) and offset >= 0
            for partition, offset in from_.items()
        ):
            return dict(from_)
        case _:
            raise InvalidRequest(
                f"from_={from_!r}: it is 'beginning', 'now', a datetime, milliseconds since the Unix epoch, "
                f"or offsets by partition"
            )


def check_kinds(kinds: Collection[str | type[Event]] | None) -> frozenset[str] | None:
    """Names of kinds, checked.

    Raises:
        InvalidRequest: There is no such kind.
    """
    if kinds is None:
        return None
    if isinstance(kinds, str):
        raise InvalidRequest(f"kinds must be a list, such as [{kinds!r}]")
    wanted = frozenset(kind if isinstance(kind, str) else kind.__name__ for kind in kinds)
    unknown = sorted(wanted - KINDS)
    if unknown:
        raise InvalidRequest(
            f"no such kind of event: {', '.join(unknown)}. There are: {', '.join(sorted(KINDS))}"
        )
    return wanted
