"""What can be done to a cluster, when it was done, and what is said where it can't be done."""

# ruff: noqa: N818 - named by what happened, as all errors of this package
from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from relevo.errors import RelevoError


class DrillError(RelevoError):
    """Something about a drill, not about the cluster's work, went wrong."""


class FaultRefused(DrillError):
    """This cluster can't have this fault. Said before anything is hurt."""


class Kind(StrEnum):
    """What happened to a node, a broker or ZooKeeper."""

    KILL = "kill"
    FREEZE = "freeze"
    THAW = "thaw"
    STOP = "stop"
    START = "start"
    CUT_ZOOKEEPER = "cut-zookeeper"
    CUT_KAFKA = "cut-kafka"
    DELAY = "delay"
    MEND = "mend"
    ZOOKEEPER_STOP = "zookeeper-stop"
    ZOOKEEPER_START = "zookeeper-start"
    ZOOKEEPER_KILL = "zookeeper-kill"
    BROKER_KILL = "broker-kill"
    BROKER_START = "broker-start"
    BROKER_RESTART = "broker-restart"


@dataclass(frozen=True, slots=True)
class FaultMark:
    """One thing that was done to a cluster.

    Attributes:
        at_monotonic: When, in seconds of `time.monotonic`, just before it took effect.
        at_wall: The same moment in Unix milliseconds, to be laid beside the times of ``/v1/takeovers``.
        kind: What was done.
        target: To whom: a node's name, ``kafka-2``, ``zookeeper-1``, or ``zookeeper`` for all servers.
        partition: Whose leader was meant, where it was chosen by that.
    """

    at_monotonic: float
    at_wall: float
    kind: Kind
    target: str
    partition: int | None = None


class FaultLog:
    """All marks of a cluster, in order. Read from any thread, written by the one that does the damage."""

    def __init__(self) -> None:
        self._marks: list[FaultMark] = []

    def note(self, kind: Kind, target: str, partition: int | None = None) -> FaultMark:
        """Keeps that this happens now."""
        mark = FaultMark(time.monotonic(), time.time() * 1000, kind, target, partition)
        self._marks.append(mark)
        return mark

    @property
    def marks(self) -> list[FaultMark]:
        """A copy."""
        return list(self._marks)
