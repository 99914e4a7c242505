"""What a node keeps of one partition: its role, ZooKeeper's last picture, and the running term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from relevo_partitions.election import Claim, Sight
from relevo_partitions.endings import Ending, TermOver
from relevo_partitions.ports import PartitionIO
from relevo_partitions.roles import Role, RoleKeeper
from relevo_partitions.runtime import Task
from relevo_partitions.term import Leadership

_BACKOFF_S: Final[dict[Ending, tuple[float, float]]] = {
    Ending.KAFKA_UNAVAILABLE: (1.0, 10.0),
    Ending.LOG_DAMAGED: (5.0, 300.0),
    Ending.MACHINE_FAILED: (1.0, 60.0),
    Ending.ABANDONED: (10.0, 60.0),
}
"""First and longest wait before this node tries to lead again; doubles in between. Other endings need
none."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as this node sees it."""

    partition: int
    role: str
    """This node's `Role` in it."""
    leader: str | None
    """Id of the node that holds the claim, None where nobody does."""
    epoch: int
    """Of the term that this node leads or last led, 0 where it never did."""
    position: int
    """Offset of the next command to be decided; meaningful while this node leads."""
    end: int
    """End of the commands partition as last heard by this node as its leader, -1 where unknown."""
    since: float
    """When the role began, in seconds since the Unix epoch."""
    fault: str | None
    """What ended this node's last term, where it was trouble."""

    @property
    def lag(self) -> int:
        """Commands that wait for a decision, as far as this node knows."""
        return max(0, self.end - self.position) if self.role == Role.LEADING else 0


class Post:
    """Used by the supervisor's thread; `view` and `leadership` may be read from any."""

    def __init__(self, partition: int, roles: RoleKeeper, io: PartitionIO) -> None:
        self.partition = partition
        self.roles = roles
        self.io = io
        self.sight: Sight | None = None
        self.looked_at = float("-inf")
        self.dirty = True
        self.previous_leader: str | None = None
        self.token = ""
        """Of this node's last attempt to claim."""
        self.free_since: float | None = None
        self.joined_at = 0.0
        """When a candidate was last seen to have turned up."""
        self.claim_at: float | None = None
        self.claim: Claim | None = None
        self.leadership: Leadership | None = None
        self.thread: Task | None = None
        self.blocked_until = 0.0
        self.fault: str | None = None
        self._failures = 0
        self._epoch = self._position = 0

    def saw(self, sight: Sight, now: float) -> None:
        """Take in what ZooKeeper shows."""
        before = self.sight.leader if self.sight is not None else None
        known = self.sight.candidates if self.sight is not None else ()
        if not set(sight.candidates) <= set(known):
            self.joined_at = now
        if before is not None and (sight.leader is None or sight.leader.czxid != before.czxid):
            self.previous_leader = before.node
        self.sight = sight
        self.looked_at = now
        self.dirty = False
        if sight.leader is not None:
            self.free_since = None
        elif self.free_since is None:
            self.free_since = now

    def ended(self, over: TermOver, now: float) -> None:
        """Take leave of the term, and decide when this node may try again."""
        leadership = self.leadership
        if leadership is not None:
            self._epoch, self._position = leadership.progress.epoch, leadership.progress.position
            if leadership.progress.led:
                self._failures = 0
        self.leadership = self.claim = self.thread = None
        self.token = ""
        self.dirty = True
        backoff = _BACKOFF_S.get(over.ending)
        if backoff is None:
            self.fault = None if over.ending is Ending.STOPPED else str(over)
            return
        self.fault = str(over)
        self.blocked_until = now + min(backoff[0] * 2**self._failures, backoff[1])
        self._failures = min(self._failures + 1, 16)

    def view(self) -> PartitionView:
        """The partition as others may see it."""
        leadership, leader = self.leadership, self.sight.leader if self.sight else None
        progress = leadership.progress if leadership is not None else None
        leading = self.roles.role is Role.LEADING
        return PartitionView(
            partition=self.partition,
            role=str(self.roles.role),
            leader=leader.node if leader is not None else None,
            epoch=progress.epoch if progress is not None else self._epoch,
            position=progress.position if progress is not None else self._position,
            end=progress.end if progress is not None else -1,
            since=self.roles.since,
            fault=None if leading else self.fault,
        )
