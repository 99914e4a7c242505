"""What the HTTP API needs of the node it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol


class NodeInfo(NamedTuple):
    """A node that is alive, as ZooKeeper knows it."""

    node: str
    address: str
    """``host:port`` of its HTTP API; empty where it has none."""
    incarnation: str


class LocalPartition(NamedTuple):
    """A partition as one node sees it, without asking anybody."""

    partition: int
    role: str
    epoch: int
    lag: int | None
    """Commands that wait to be decided, where this node leads and knows."""
    standby_lag: int | None = None
    """Records of the log that this node hasn't applied, where it stands by; -1 where it doesn't know yet."""
    hot: bool = False
    """Whether this node stands by and keeps up: it can take over at once."""
    hand_over: str | None = None
    """What a hand-over of the partition waits for, where this node leads."""
    held_back: str | None = None
    """Which open transaction of somebody else's keeps this node, or workers, from reading on, in words."""


class Backend(Protocol):
    """A node, for its API. What asks ZooKeeper may block and is called off the event loop."""

    @property
    def node_id(self) -> str:
        """The node's name."""

    @property
    def cluster_name(self) -> str:
        """The cluster's name."""

    @property
    def partitions(self) -> int:
        """How many the cluster has."""

    def local(self) -> list[LocalPartition]:
        """All partitions as this node sees them, at once."""

    def takeovers(self) -> list[dict[str, Any]]:
        """This node's last takeovers, the newest last, at once."""

    def not_ready(self) -> list[str]:
        """Why the node isn't ready; empty when it is. Answers at once."""

    def metrics(self) -> bytes:
        """Prometheus' text format."""

    def read(self, partition: int, query: Callable[[Any], Any]) -> Future[Any]:
        """Runs ``query`` on the partition's machine, behind a commit; `NotLeader` where another leads."""

    def leaders(self) -> Mapping[int, str]:
        """Which node has claimed each partition; those without are missing. Blocks; may raise."""

    def nodes(self) -> Mapping[str, NodeInfo]:
        """The nodes that are alive, by name. Blocks; may raise."""
