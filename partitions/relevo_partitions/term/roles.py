"""The roles of a node in one partition, and every legal way from one to another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from relevo_partitions.runtime import THREADS


class Role(StrEnum):
    """What this node is to one partition."""

    OUT = "OUT"
    """Keeps nothing of it: others stand by, or this node isn't eligible, or waits after a failure."""
    FOLLOWING = "FOLLOWING"
    """Loads its state and applies its log, and hasn't caught up: no candidate yet, or any more."""
    STANDBY = "STANDBY"
    """Hot: keeps up with the log, and is a candidate; another node leads, or nobody does yet."""
    FENCING = "FENCING"
    """Holds the claim, and shuts every earlier leader out of the log."""
    VERIFYING = "VERIFYING"
    """Asks ZooKeeper whether the claim is still its own."""
    REPLAYING = "REPLAYING"
    """Has written a barrier and applies the log up to it."""
    ANNOUNCING = "ANNOUNCING"
    """Writes the term's first event."""
    LEADING = "LEADING"
    """Decides for the partition."""
    ENDING = "ENDING"
    """The term is over; its threads and clients are being let go."""
    DAMAGED = "DAMAGED"
    """The log can't be replayed here; doesn't lead, looks again after a while."""
    STOPPED = "STOPPED"
    """The host was stopped."""


LEGAL: Final[dict[tuple[Role, Role], str]] = {
    (Role.OUT, Role.FOLLOWING): "stands by: loads and follows the log",
    (Role.OUT, Role.STOPPED): "the host stops",
    (Role.FOLLOWING, Role.STANDBY): "caught up with the log: a candidate",
    (Role.FOLLOWING, Role.OUT): "others stand by, or its log can't be followed now",
    (Role.FOLLOWING, Role.DAMAGED): "the log can't be replayed",
    (Role.FOLLOWING, Role.STOPPED): "the host stops",
    (Role.STANDBY, Role.FOLLOWING): "fell behind: no candidate any more",
    (Role.STANDBY, Role.OUT): "others stand by, or its log can't be followed now",
    (Role.STANDBY, Role.DAMAGED): "the log can't be replayed",
    (Role.STANDBY, Role.FENCING): "claimed the partition",
    (Role.STANDBY, Role.ENDING): "the term ended before its first step",
    (Role.STANDBY, Role.STOPPED): "the host stops",
    (Role.FENCING, Role.VERIFYING): "holds an initialised producer",
    (Role.VERIFYING, Role.REPLAYING): "the claim is confirmed",
    (Role.REPLAYING, Role.ANNOUNCING): "the barrier was read back",
    (Role.ANNOUNCING, Role.LEADING): "the announcement is committed",
    # A transaction went wrong and the claim stands: learn from the log what happened, and go on.
    (Role.REPLAYING, Role.FENCING): "the producer was lost while writing the barrier",
    (Role.ANNOUNCING, Role.FENCING): "the producer was lost while announcing",
    (Role.LEADING, Role.FENCING): "the producer was lost while leading",
    (Role.ANNOUNCING, Role.REPLAYING): "the announcement was aborted, the producer still serves",
    (Role.LEADING, Role.REPLAYING): "a transaction was aborted, the producer still serves",
    # A term can end at each of its steps.
    (Role.FENCING, Role.ENDING): "the term ended before the fence",
    (Role.VERIFYING, Role.ENDING): "the claim isn't confirmed",
    (Role.REPLAYING, Role.ENDING): "the term ended while replaying",
    (Role.ANNOUNCING, Role.ENDING): "the term ended while announcing",
    (Role.LEADING, Role.ENDING): "the term ended",
    (Role.ENDING, Role.FOLLOWING): "let go of the term, stands by",
    (Role.ENDING, Role.OUT): "let go of the term",
    (Role.ENDING, Role.DAMAGED): "the log can't be replayed",
    (Role.ENDING, Role.STOPPED): "the host stops",
    (Role.DAMAGED, Role.FOLLOWING): "tries the log again",
    (Role.DAMAGED, Role.OUT): "others stand by",
    (Role.DAMAGED, Role.STOPPED): "the host stops",
}
"""Every legal transition and its cause. `Role.STOPPED` is final."""


class IllegalTransition(RuntimeError):  # noqa: N818 - named for what happened
    """A bug: a role was to change in a way that `LEGAL` doesn't list."""


class RoleKeeper:
    """The role of this node in one partition. Safe to use from several threads.

    Args:
        partition: For error texts.
        changed: Told of every change: partition, role before, role after, reason.
        wall: Seconds since the Unix epoch.
    """

    def __init__(
        self,
        partition: int,
        changed: Callable[[int, Role, Role, str], None],
        wall: Callable[[], float] = THREADS.wall,
    ) -> None:
        self._partition = partition
        self._changed = changed
        self._wall = wall
        self._lock = threading.Lock()
        self._role = Role.OUT
        self._since = self._wall()

    @property
    def role(self) -> Role:
        """The present role."""
        return self._role

    @property
    def since(self) -> float:
        """When the present role began, in seconds since the Unix epoch."""
        return self._since

    def to(self, role: Role, reason: str = "") -> None:
        """Change the role; the same role again is no change.

        Raises:
            IllegalTransition: `LEGAL` doesn't list the change.
        """
        with self._lock:
            before = self._role
            if role is before:
                return
            cause = LEGAL.get((before, role))
            if cause is None:
                raise IllegalTransition(
                    f"partition {self._partition}: {before} to {role} ({reason or 'no reason'})"
                )
            self._role = role
            self._since = self._wall()
        self._changed(self._partition, before, role, reason or cause)
