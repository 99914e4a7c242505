"""Why a term ends, and what interrupts one that goes on."""

from __future__ import annotations

from enum import StrEnum

from relevo_partitions.outcomes import Aborted, Fenced, Unclear


class Ending(StrEnum):
    """The reason of a term's end."""

    STOPPED = "STOPPED"
    """The host stops, or this node isn't eligible any more."""
    HANDED_OVER = "HANDED_OVER"
    """Given up in order, so that another node takes over."""
    LOST = "LOST"
    """ZooKeeper says that the claim or the session is gone."""
    FENCED = "FENCED"
    """Kafka refuses our transactions, and ZooKeeper can't be asked whether the claim stands."""
    UNCONFIRMED = "UNCONFIRMED"
    """ZooKeeper couldn't be asked behind the fence."""
    KAFKA_UNAVAILABLE = "KAFKA_UNAVAILABLE"
    """Kafka didn't let this node fence, replay or read."""
    LOG_DAMAGED = "LOG_DAMAGED"
    """The log can't be replayed."""
    MACHINE_FAILED = "MACHINE_FAILED"
    """The state machine raised."""
    ABANDONED = "ABANDONED"
    """A call of Kafka never returned; its thread is given up."""


class TermOver(Exception):  # noqa: N818 - an end, not always an error
    """Ends a term, wherever it stands."""

    def __init__(self, ending: Ending, detail: str) -> None:
        super().__init__(f"{ending}: {detail}")
        self.ending = ending
        self.detail = detail


class Setback(Exception):  # noqa: N818 - a turn of events that the term deals with
    """A transaction didn't commit: the machine is ahead of the log and has to be rebuilt."""

    def __init__(self, outcome: Aborted | Fenced | Unclear) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome
