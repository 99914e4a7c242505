"""What a host can't do, each as its own error; the text says what happened, where, and what to do."""

# ruff: noqa: N818 - named for what happened: callers read them as outcomes

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PartitionsError(Exception):
    """Root of this package's errors."""


class KafkaUnavailable(PartitionsError):
    """Kafka doesn't answer, or refuses what a leader needs. Trying again later may help."""


class ZooKeeperUnavailable(PartitionsError):
    """ZooKeeper gave no answer in time: what was asked for may or may not have been done."""


class ConfigMismatch(PartitionsError):
    """The cluster was set up with other values than this node has."""

    def __init__(self, cluster: str, differing: Mapping[str, tuple[Any, Any]]) -> None:
        listed = "; ".join(
            f"{name}: the cluster has {theirs!r}, this node {ours!r}"
            for name, (theirs, ours) in sorted(differing.items())
        )
        super().__init__(
            f"this node doesn't fit cluster {cluster!r}: {listed}. Start it with the cluster's values, "
            "or under another cluster name"
        )
        self.differing = dict(differing)
        """Field name to (value of the cluster, value of this node)."""


class NodeIdTaken(PartitionsError):
    """Another live node is registered under this node's id."""

    def __init__(self, node: str, address: str) -> None:
        super().__init__(f"node id {node!r} is in use by a live node at {address}; give this one another id")
        self.node = node


class NotLeader(PartitionsError):
    """This node doesn't lead the partition; ask `leader`, or again in a moment where it is None."""

    def __init__(self, partition: int, leader: str | None = None) -> None:
        where = f"ask node {leader!r}" if leader else "no leader is known, ask again in a moment"
        super().__init__(f"this node doesn't lead partition {partition}: {where}")
        self.partition = partition
        self.leader = leader


class TooManyReads(PartitionsError):
    """More reads wait for the leader than its queue may hold; ask again in a moment."""


class UsedAfterFork(PartitionsError):
    """A client of Kafka or ZooKeeper was made in the parent process; its threads don't exist in this one."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was made before a fork and can't work in the child process: "
            "make it in the child, or start processes with the 'spawn' method"
        )


class WrongThread(PartitionsError):
    """A ZooKeeper call from within a ZooKeeper callback would wait for itself."""
