"""The order of one partition's events: numbers, terms, time and sources. Shares no code with the appliers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relevo_engine.verify.findings import Fault, Invariant
from relevo_schemas.events import LeaderElected
from relevo_schemas.records import Event


class Order:
    """What one partition's events have in common with those before them.

    Args:
        trimmed: The partition no longer begins with its first event: whatever comes first is where it begins.

    Attributes:
        trimmed: See above.
        incomplete: There were events that can't be read any more: trimmed away, or missing.
        first_seq: Number of the first event, 0 before it.
        seq: Number of the last one.
        epoch: The term under way, 0 before the first.
        at: Time of the last event.
        source: Its source.
        position: Offset of the first command that no event speaks of.
    """

    __slots__ = (
        "_before_gap", "at", "epoch", "first_seq", "incomplete", "position", "seq", "source", "trimmed",
    )  # fmt: skip

    def __init__(self, *, trimmed: bool = False) -> None:
        self.trimmed = trimmed
        self.incomplete = trimmed
        self.first_seq = 0
        self.seq = 0
        self.epoch = 0
        self.at = 0
        self.source = -1
        self.position = 0
        self._before_gap = 0

    def take(self, event: Event) -> tuple[list[Fault], bool]:
        """What is wrong with ``event`` as the next one, and if it is new; a repeat counts for nothing."""
        if not self.first_seq and self.trimmed:
            self._begin(event)
        faults = [fault for check in CHECKS if (fault := check(self, event)) is not None]
        new = not faults or self._resume(event)
        if new:
            self._move(event)
        return faults, new

    def _begin(self, event: Event) -> None:
        self.seq = event.seq - 1
        self.epoch = event.epoch - isinstance(event, LeaderElected)
        self.at = event.at
        self.position = max(event.source, 0)

    def _resume(self, event: Event) -> bool:
        """Find the way back after a fault. False where the event repeats what was there."""
        if event.seq > self.seq + 1:
            self._before_gap, self.incomplete = self.seq, True
            return True
        # What came before was a stray record: this one follows those before it.
        return event.seq == self.seq + 1 or event.seq == self._before_gap + 1

    def _move(self, event: Event) -> None:
        self.first_seq = self.first_seq or event.seq
        self.seq = event.seq
        if event.epoch > self.epoch:
            self.epoch = event.epoch
        if event.at > self.at:
            self.at = event.at
        self.source = event.source
        if event.source >= self.position:
            self.position = event.source + 1


def check_seq(order: Order, event: Event) -> Fault | None:
    """Numbers go up by one."""
    due = order.seq + 1
    if event.seq == due:
        return None
    if event.seq > due:
        why = "an event is missing" if event.seq == due + 1 else f"{event.seq - due} events are missing"
    else:
        why = "a repeated event, or a second writer"
    return Fault(Invariant.SEQ, f"seq {due}", f"seq {event.seq}: {why}")


def check_epoch(order: Order, event: Event) -> Fault | None:
    """Only an announcement begins a term, with an epoch that was never used; all events belong to it."""
    if isinstance(event, LeaderElected):
        if event.epoch > order.epoch:
            return None
        found = f"{event.node} announced with epoch {event.epoch}"
        return Fault(Invariant.EPOCH, f"an epoch above {order.epoch}", found)
    if event.epoch == order.epoch and event.epoch > 0:
        return None
    expected = f"an event of epoch {order.epoch}" if order.epoch else "LeaderElected as the first event"
    return Fault(Invariant.EPOCH, expected, f"{type(event).__name__} of epoch {event.epoch}")


def check_time(order: Order, event: Event) -> Fault | None:
    """Time stands still at most."""
    if event.at >= order.at:
        return None
    return Fault(
        Invariant.TIME, f"a time of at least {order.at}", f"{event.at}, {order.at - event.at} ms before"
    )


def check_source(order: Order, event: Event) -> Fault | None:
    """Each command is spoken of once; several events of one follow each other."""
    source = event.source
    if source == -1 or source >= order.position or (source == order.source and source >= 0):
        return None
    return Fault(Invariant.SOURCE, f"a source of at least {order.position}, or -1", f"source {source}")


CHECKS: Final[tuple[Callable[[Order, Event], Fault | None], ...]] = (
    check_seq,
    check_epoch,
    check_time,
    check_source,
)
"""In the order in which they are reported."""
