"""What other threads tell the supervisor: only where to look, never what to believe."""

from __future__ import annotations

from dataclasses import dataclass

from relevo_partitions.term.endings import TermOver
from relevo_partitions.term.leadership import Leadership
from relevo_partitions.term.standby import Standby


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The connection to ZooKeeper is ``CONNECTED``, ``SUSPENDED`` or ``LOST``."""

    state: str


@dataclass(frozen=True, slots=True)
class Touched:
    """A watched znode changed."""

    path: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A term has ended and let go of what it owned."""

    partition: int
    leadership: Leadership
    over: TermOver


@dataclass(frozen=True, slots=True)
class Standing:
    """A standby became hot or fell behind, or has ended."""

    standby: Standby


@dataclass(frozen=True, slots=True)
class Died:
    """A process was proven dead by the pulse."""

    node: str
    incarnation: str
    at: float
    """When it was told, by the monotonic clock."""
    lost_at: float
    """When its connection had ended, which the proof came somewhat after; by the same clock."""


Event = StateChanged | Touched | Finished | Standing | Died
