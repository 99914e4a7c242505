"""A node's share of a cluster's partitions: stands by for some, leads some."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from relevo_partitions.election.membership import NodeInfo
from relevo_partitions.errors import NotLeader, ZooKeeperUnavailable
from relevo_partitions.fork import ForkGuard
from relevo_partitions.observer import Observer
from relevo_partitions.settings import HostSettings
from relevo_partitions.statemachine import MachineFactory
from relevo_partitions.supervisor.supervisor import Supervisor
from relevo_partitions.supervisor.views import PartitionView
from relevo_partitions.surroundings import RealSurroundings, Surroundings
from relevo_partitions.term.reads import Query
from relevo_partitions.term.roles import Role
from relevo_partitions.term.takeover import Takeover

log: Final = logging.getLogger(__name__)

STOP_DEADLINE_S: Final = 15.0


class PartitionHost:
    """Registers in ZooKeeper, follows the partitions that it is to stand by for, and leads those it wins.

    One thread talks to ZooKeeper; each partition that this node follows or leads has a thread of its own.
    Methods may be called from any thread.

    Args:
        settings: Of cluster and node.
        machine_factory: Makes an empty state machine for a partition.
        observer: Hears what happens.
        on_topic_failure: Told (topic, reason) when a topic other than the log can't be written. The
            partition's machine is rebuilt from the log afterwards, and should leave that topic alone.
        surroundings: Kafka, ZooKeeper, clocks and threads; the real ones by default.

    Raises:
        ValueError: ``settings.kafka_options`` holds a setting that the guarantees rest on.
    """

    def __init__(
        self,
        settings: HostSettings,
        machine_factory: MachineFactory,
        observer: Observer | None = None,
        on_topic_failure: Callable[[str, str], None] | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._settings = settings
        self._fork = ForkGuard("a PartitionHost")
        self._supervisor = Supervisor(
            settings,
            machine_factory,
            observer or Observer(),
            on_topic_failure or _log_topic_failure,
            surroundings or RealSurroundings(settings),
        )

    def start(self, limit_s: float | None = None) -> None:
        """Join the cluster; returns once this node is registered. May be called once.

        Args:
            limit_s: Give up after so long; None waits for ZooKeeper without end, and tells the observer.

        Raises:
            ZooKeeperUnavailable: It couldn't be reached within ``limit_s``.
            ConfigMismatch: The cluster has other settings.
            NodeIdTaken: Another live node has this id.
            PulseUnavailable: The pulse's address can't be listened on.
        """
        self._fork.check()
        self._supervisor.start()
        if not self._supervisor.started.wait(limit_s):
            self.stop(1.0)
            raise ZooKeeperUnavailable(
                f"ZooKeeper isn't reachable at {self._settings.zookeeper} (tried for {limit_s:g} s): "
                "is it running, and is the address right?"
            )
        if self._supervisor.error is not None:
            raise self._supervisor.error

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> bool:
        """Hand every partition over to a node that is hot for it, where there is one, and leave the cluster.

        Returns within ``deadline_s`` though Kafka or ZooKeeper hang; then False: what couldn't be ended in
        time is shut out by Kafka's fence and ends with the process.
        """
        self._fork.check()
        return self._supervisor.stop(deadline_s)

    def views(self) -> list[PartitionView]:
        """All partitions as this node sees them."""
        return [post.view() for post in self._supervisor.posts]

    def leader_of(self, partition: int) -> NodeInfo | None:
        """The node that holds the claim to ``partition``, as last seen; None where nobody does."""
        sight = self._supervisor.posts[partition].sight
        if sight is None or sight.leader is None:
            return None
        leader = sight.leader
        known = (node for node in self._supervisor.scene.nodes if node.node == leader.node)
        return next(known, NodeInfo(leader.node, "", leader.incarnation))

    def nodes(self) -> list[NodeInfo]:
        """The live nodes, as last seen."""
        return list(self._supervisor.scene.nodes)

    def takeovers(self) -> list[Takeover]:
        """This node's last takeovers, the newest last."""
        return list(self._supervisor.steward.takeovers)

    def read(self, partition: int, query: Query, *, proven: bool = True) -> Future[Any]:
        """Run ``query`` on the partition's machine, behind a commit that begins after this call.

        Not ``proven``: without such a commit, for gauges; the answer may be a former leader's.

        The future fails with `NotLeader` where this node doesn't lead the partition or stops to, with
        `TooManyReads` where too many wait, and with whatever ``query`` raises.
        """
        self._fork.check()
        post = self._supervisor.posts[partition]
        leadership = post.leadership
        if leadership is None or post.roles.role is Role.ENDING:
            leader = self.leader_of(partition)
            refused: Future[Any] = Future()
            refused.set_exception(NotLeader(partition, leader.node if leader is not None else None))
            return refused
        return leadership.read(query, proven=proven)


def _log_topic_failure(topic: str, reason: str) -> None:
    log.error("Topic %s can't be written: %s", topic, reason)
