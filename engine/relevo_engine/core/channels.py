"""Where activations go: what the state machine is told about the topics of job types."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol


class ChannelState(StrEnum):
    """Whether activations of a type can be written."""

    OPEN = "OPEN"
    """Its topic is there and takes records."""
    MISSING = "MISSING"
    """There is no such topic, or not yet."""
    BLOCKED = "BLOCKED"
    """Its topic can't be written: not authorised, below its in-sync minimum, deleted in mid-run."""


class Channel(NamedTuple):
    """The way to the workers of one type."""

    state: ChannelState
    slots: int = 0
    """OPEN: partitions of the activation topic; the number of engine partitions or a multiple of it."""
    reason: str = ""
    """BLOCKED: why, for people to read."""


MISSING: Final = Channel(ChannelState.MISSING)


class Channels(Protocol):
    """What is known about all types. Answers from memory: it is asked on the hot path, and never waits."""

    def channel(self, job_type: str) -> Channel:
        """The channel of ``job_type``.

        Asked again in every step for each type that has jobs waiting. So a type that is asked for, MISSING,
        and may be made, is one to make now, off this path.
        """

    def may_create(self, job_type: str) -> bool:
        """Whether a topic may be made for the type ``job_type``, which is MISSING."""


class FixedChannels:
    """Channels that are all declared beforehand, or all alike.

    Args:
        slots: Open types, each with the partitions of its topic.
        any_type: Partitions of every other type; 0: there is no other type.
    """

    def __init__(self, slots: Mapping[str, int] | None = None, *, any_type: int = 0) -> None:
        self._channels = {name: Channel(ChannelState.OPEN, count) for name, count in (slots or {}).items()}
        self._others = Channel(ChannelState.OPEN, any_type) if any_type else MISSING

    def channel(self, job_type: str) -> Channel:
        """See `Channels.channel`."""
        return self._channels.get(job_type, self._others)

    def may_create(self, job_type: str) -> bool:
        """See `Channels.may_create`."""
        return False
