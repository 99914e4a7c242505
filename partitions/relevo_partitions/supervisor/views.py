"""What a node tells of its partitions to whoever asks."""

from __future__ import annotations

from dataclasses import dataclass

from relevo_partitions.term.roles import Role


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
    """What ended this node's last term or standby, where it was trouble."""
    candidates: tuple[str, ...] = ()
    """The nodes that are hot, as ZooKeeper showed it last."""
    standby_lag: int | None = None
    """Records of the log that this node's standby hasn't applied, -1 where unknown; None where it doesn't
    stand by."""
    hand_over: str | None = None
    """What a hand-over of the partition by this node waits for."""
    held_back: str | None = None
    """Whose open transaction keeps this node from reading on, in words."""

    @property
    def lag(self) -> int:
        """Commands that wait for a decision, as far as this node knows."""
        return max(0, self.end - self.position) if self.role == Role.LEADING else 0
