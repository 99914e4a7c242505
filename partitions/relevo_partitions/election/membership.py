"""Belonging to a cluster: agreeing on its settings, being registered in it, and knowing who else is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from relevo_partitions.errors import ConfigMismatch, NodeIdTaken
from relevo_partitions.ports import Coordinator, Znode
from relevo_partitions.runtime import THREADS, Runtime

TAKEN_MARGIN_S: Final = 2.0
"""How much longer than a session a killed predecessor's registration may stay."""
LOOK_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A registered node."""

    node: str
    address: str
    """``host:port`` of its HTTP API."""
    incarnation: str
    """Tells the process from earlier ones of the same node id."""
    pulse: str = ""
    """``host:port`` of its pulse, empty where it has none."""


class Membership:
    """One node's place in a cluster. Methods raise `ZooKeeperUnavailable` where ZooKeeper doesn't answer.

    Args:
        zookeeper: Connected.
        cluster: Name of the cluster.
        me: How this node registers.
        runtime: Clocks and waiting.
    """

    def __init__(
        self, zookeeper: Coordinator, cluster: str, me: NodeInfo, runtime: Runtime = THREADS
    ) -> None:
        self.root = f"/{cluster}"
        self.nodes_path = f"{self.root}/nodes"
        self._zookeeper = zookeeper
        self._cluster = cluster
        self._me = me
        self._runtime = runtime
        self._czxids: dict[str, int] = {}

    def set_pulse(self, address: str) -> None:
        """Where this node's pulse is reached; to be told before it registers."""
        self._me = replace(self._me, pulse=address)

    def agree(self, config: Mapping[str, Any]) -> None:
        """Set the cluster's settings, or find that they are the same.

        Raises:
            ConfigMismatch: They are not; the error lists what differs.
        """
        path = f"{self.root}/config"
        self._zookeeper.ensure(self.nodes_path)
        while True:
            found = self._zookeeper.get(path)
            if found is None:
                data = json.dumps(dict(config), sort_keys=True).encode()
                found = self._zookeeper.create(path, data, ephemeral=False)
            if found is not None:
                break
        theirs = _fields(found)
        names = theirs.keys() | config.keys()
        differing = {
            name: (theirs.get(name), config.get(name))
            for name in names
            if theirs.get(name) != config.get(name)
        }
        if differing:
            raise ConfigMismatch(self._cluster, differing)

    def register(self, cancelled: Callable[[], bool]) -> None:
        """Put this node on the list of live ones, for as long as the session lives.

        A registration left by a killed process of the same id is waited for, as long as its session can last.

        Raises:
            NodeIdTaken: Another live node has the id.
        """
        path = f"{self.nodes_path}/{self._me.node}"
        data = json.dumps(
            {"address": self._me.address, "incarnation": self._me.incarnation, "pulse": self._me.pulse}
        ).encode()
        give_up = self._runtime.monotonic() + self._zookeeper.session_timeout_s + TAKEN_MARGIN_S
        while not cancelled():
            try:
                if self._zookeeper.create(path, data, ephemeral=True) is not None:
                    return
            except KeyError:
                self._zookeeper.ensure(self.nodes_path)
                continue
            found = self._zookeeper.get(path)
            if found is None:
                continue
            holder = _node(self._me.node, found)
            if holder.incarnation == self._me.incarnation:
                if found.session == self._zookeeper.session:
                    return
                self._zookeeper.delete(path, found.version)  # of our own session before this one
            elif self._runtime.monotonic() > give_up:
                raise NodeIdTaken(self._me.node, holder.address)
            else:
                self._runtime.sleep(LOOK_AGAIN_S)

    def nodes(self) -> list[NodeInfo]:
        """All live nodes by id; watches the list."""
        found = []
        czxids = {}
        for name in sorted(self._zookeeper.children(self.nodes_path) or []):
            znode = self._zookeeper.get(f"{self.nodes_path}/{name}")
            if znode is not None:
                found.append(_node(name, znode))
                czxids[name] = znode.czxid
        self._czxids = czxids
        return found

    def registration(self, node: str) -> int:
        """What tells the registration of ``node`` seen last from any other; 0 where there was none."""
        return self._czxids.get(node, 0)

    def remove(self, node: str, registration: int) -> bool:
        """Take a dead node off the list, if its registration still is the one that was seen.

        Returns:
            Whether that was so. Otherwise it had ended by itself, or the node is back, and alive.
        """
        path = f"{self.nodes_path}/{node}"
        found = self._zookeeper.get(path)
        if found is None or found.czxid != registration:
            return False
        return self._zookeeper.delete(path, found.version)


def _fields(znode: Znode) -> dict[str, Any]:
    try:
        fields = json.loads(znode.data)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _node(name: str, znode: Znode) -> NodeInfo:
    fields = _fields(znode)
    return NodeInfo(
        name,
        str(fields.get("address", "")),
        str(fields.get("incarnation", "")),
        str(fields.get("pulse", "")),
    )
