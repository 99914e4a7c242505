"""What a reader of job events may ask for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from relevo import names
from relevo.client.results import finish_of
from relevo.errors import InvalidRequest
from relevo.events.job_event import LogPosition, Skipped, key_of
from relevo.events.log_progress import Place
from relevo_schemas import events as kinds_module
from relevo_schemas.events import JobCreated, LeaderElected
from relevo_schemas.records import Event

#: Where to start: a time is a datetime or milliseconds since the Unix epoch; positions are next offsets by
#: partition, or last events (`LogPosition`, or its text), one for each partition.
Start: TypeAlias = (
    Literal["beginning", "now"]
    | datetime
    | int
    | Mapping[int, int]
    | Mapping[int, LogPosition]
    | Iterable[LogPosition]
    | Iterable[str]
)
#: What to do where events were trimmed off the log before they were read.
OnGap: TypeAlias = Literal["error", "skip"] | Callable[[Skipped], object]

#: Kinds of events, by name.
KINDS: Final = frozenset(
    name
    for name, cls in vars(kinds_module).items()
    if isinstance(cls, type) and issubclass(cls, Event) and cls is not Event
)


def check_start(from_: Any) -> Place:
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
        case Mapping() if all(_is_place(*each) for each in from_.items()):
            return dict(from_)
        case str() | bytes() | Mapping():
            raise _no_start(from_)
        case Iterable():
            return _by_partition(from_)
        case _:
            raise _no_start(from_)


def _is_place(partition: Any, known: Any) -> bool:
    if not isinstance(partition, int):
        return False
    if isinstance(known, LogPosition):
        return known.partition == partition
    return isinstance(known, int) and known >= 0


def _by_partition(positions: Iterable[Any]) -> dict[int, LogPosition]:
    found: dict[int, LogPosition] = {}
    for each in positions:
        position = LogPosition.parse(each) if isinstance(each, str) else each
        if not isinstance(position, LogPosition):
            raise _no_start(each)
        if position.partition in found:
            raise InvalidRequest(f"from_ has two positions of partition {position.partition}")
        found[position.partition] = position
    return found


def _no_start(from_: Any) -> InvalidRequest:
    return InvalidRequest(
        f"from_={from_!r}: it is 'beginning', 'now', a datetime, milliseconds since the Unix epoch, "
        f"offsets by partition, or positions of events"
    )


def check_gap(on_gap: Any) -> OnGap:
    """What to do at a gap, checked.

    Raises:
        InvalidRequest: It is none of that.
    """
    if on_gap in ("error", "skip") or callable(on_gap):
        return on_gap  # type: ignore[no-any-return]
    raise InvalidRequest(f"on_gap={on_gap!r}: it is 'error', 'skip' or a function")


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


class Choice:
    """Which events are wanted.

    Raises:
        InvalidRequest: A type, key or kind can't be one.
    """

    def __init__(
        self,
        types: Collection[str] | None,
        keys: Collection[str] | None,
        kinds: Collection[str | type[Event]] | None,
    ) -> None:
        for name, given in (("types", types), ("keys", keys)):
            if isinstance(given, str):
                raise InvalidRequest(f"{name} must be a list, such as [{given!r}]")
        self._types = frozenset(names.check_type(each) for each in types) if types is not None else None
        self._keys = frozenset(keys) if keys is not None else None
        self._kinds = check_kinds(kinds)
        self._type_of: dict[int, dict[str, str]] = {}
        self.untyped = 0

    @property
    def by_type(self) -> bool:
        """Whether the types of jobs have to be known."""
        return self._types is not None

    def learn(self, partition: int, key: str, job_type: str | None) -> None:
        """Note the type of a job that was created; None: it has finished."""
        known = self._type_of.setdefault(partition, {})
        if job_type is None:
            known.pop(key, None)
        else:
            # One text for all jobs of the type.
            known[key] = next((each for each in self._types or () if each == job_type), "")

    def forget(self, partition: int) -> None:
        """The partition is somebody else's."""
        self._type_of.pop(partition, None)

    def wants(self, partition: int, event: Event) -> bool:
        """Whether to give it out. Call it with every event, in order: types are learnt from them."""
        key = key_of(event)
        if self._types is not None and not self._of_wanted_type(partition, event, key):
            return False
        if self._keys is not None and key not in self._keys:
            return False
        return self._kinds is None or type(event).__name__ in self._kinds

    def _of_wanted_type(self, partition: int, event: Event, key: str) -> bool:
        if isinstance(event, LeaderElected):
            return False
        if isinstance(event, JobCreated):
            self.learn(partition, key, event.job.type)
        known = self._type_of.get(partition, {}).get(key)
        if finish_of(event) is not None:
            # The last one: what is remembered is bounded by the open jobs.
            self.learn(partition, key, None)
        if known is None and self._could_be_wanted(event):
            self.untyped += 1
        return bool(known)

    def _could_be_wanted(self, event: Event) -> bool:
        # A refused command is most often about a job that is finished, or never was.
        return type(event).__name__ != "CommandRejected"
