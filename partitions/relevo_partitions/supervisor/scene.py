"""What the supervisor knows of the cluster: shared by the parts of it that act on one thing each."""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo_partitions.election.membership import NodeInfo


@dataclass(slots=True)
class Scene:
    """Written and read by the supervisor's thread; `nodes` may be read from any."""

    me: str
    nodes: tuple[NodeInfo, ...] = ()
    """The registered nodes, as last seen."""
    dead: set[tuple[str, str]] = field(default_factory=set)
    """Node and incarnation of processes that are proven dead, and may still be registered."""
    session: int = 0
    """The ZooKeeper session that this node is registered in, 0 while it isn't."""
    started_at: float = 0.0
    leaving: bool = False
    """Whether this node is to leave the cluster: it takes nothing on any more."""

    def live(self) -> set[str]:
        """The registered nodes that aren't known to be dead."""
        return {node.node for node in self.nodes if (node.node, node.incarnation) not in self.dead}

    def dead_names(self) -> set[str]:
        """The nodes whose registered process is known to be dead."""
        return {node.node for node in self.nodes if (node.node, node.incarnation) in self.dead}
