"""What a node's API and metrics ask of its partitions, from the moment the process starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import Any, Final

from relevo_engine.api.backend import LocalPartition, NodeInfo
from relevo_engine.held_activations import HeldActivations
from relevo_engine.machine import PartitionMachine
from relevo_engine.metrics import NodeMetrics, PartitionGauges
from relevo_engine.settings import NodeSettings
from relevo_engine.types import TypeDirectory
from relevo_partitions.errors import NotLeader, PartitionsError
from relevo_partitions.host import PartitionHost
from relevo_partitions.supervisor.views import PartitionView
from relevo_partitions.term.roles import Role

_SCRAPE_BUDGET_S: Final = 2.0
"""Longest wait of a scrape for the leaders' numbers; what isn't there by then is left out."""


class NodeBackend:
    """See `relevo_engine.api.backend.Backend`.

    Attributes:
        starting: What the node waits for; None once it belongs to the cluster.
        host: Its partitions, once there are any.
        activations: Watches the activation topics, once there are partitions.
    """

    def __init__(self, settings: NodeSettings, metrics: NodeMetrics, types: TypeDirectory) -> None:
        self._settings = settings
        self._metrics = metrics
        self._types = types
        self._zookeeper_state = ""
        self.starting: str | None = "the node is starting"
        self.host: PartitionHost | None = None
        self.activations: HeldActivations | None = None
        metrics.observe(self._gauges)

    @property
    def node_id(self) -> str:
        """The node's name."""
        return self._settings.node_id

    @property
    def partitions(self) -> int:
        """How many the cluster has."""
        return self._settings.partitions

    @property
    def cluster_name(self) -> str:
        """The cluster's name."""
        return self._settings.cluster

    def local(self) -> list[LocalPartition]:
        """All partitions as this node sees them."""
        return [
            LocalPartition(
                view.partition,
                view.role,
                view.epoch,
                view.lag if _leads(view) else None,
                view.standby_lag,
                view.role == Role.STANDBY,
                view.hand_over,
                self._held_back(view),
            )
            for view in self._views()
        ]

    def takeovers(self) -> list[dict[str, Any]]:
        """This node's last takeovers, the newest last."""
        return [each.as_dict() for each in self.host.takeovers()] if self.host is not None else []

    def not_ready(self) -> list[str]:
        """Why the node isn't ready; empty when it is."""
        if self.starting is not None:
            return [self.starting]
        reasons = [reason for view in self._views() if (reason := _unsettled(view)) is not None]
        trouble = self._types.trouble()
        if trouble is not None:
            reasons.append(trouble)
        if self._zookeeper_state != "CONNECTED":
            reasons.append(
                f"ZooKeeper at {self._settings.zookeeper} isn't reachable ({self._zookeeper_state})"
            )
        return reasons

    def zookeeper_state(self, state: str) -> None:
        """Takes in what the host says of its session."""
        self._zookeeper_state = state

    def metrics(self) -> bytes:
        """Prometheus' text format."""
        return self._metrics.render()

    def read(self, partition: int, query: Callable[[Any], Any]) -> Future[Any]:
        """See `PartitionHost.read`."""
        if self.host is not None:
            return self.host.read(partition, query)
        refused: Future[Any] = Future()
        refused.set_exception(NotLeader(partition))
        return refused

    def leaders(self) -> dict[int, str]:
        """Which node has claimed each partition, as ZooKeeper showed it last."""
        return {view.partition: view.leader for view in self._views() if view.leader is not None}

    def nodes(self) -> dict[str, NodeInfo]:
        """The nodes that are alive, as ZooKeeper showed it last."""
        found = self.host.nodes() if self.host is not None else []
        return {each.node: NodeInfo(each.node, each.address, each.incarnation) for each in found}

    def led(self) -> list[int]:
        """The partitions that this node leads."""
        return [view.partition for view in self._views() if _leads(view)]

    def _held_back(self, view: PartitionView) -> str | None:
        """What keeps this node from the commands or the log, and workers from activations."""
        behind = self.activations.text(view.partition) if self.activations is not None else None
        return "; ".join(text for text in (view.held_back, behind) if text is not None) or None

    def _views(self) -> list[PartitionView]:
        return self.host.views() if self.host is not None else []

    def _gauges(self) -> Iterator[PartitionGauges]:
        """Asks all partitions at once, then waits for what comes in time."""
        views = self._views()
        host = self.host
        asked = {
            view.partition: host.read(view.partition, _summary, proven=False)
            for view in views
            if host is not None and _leads(view)
        }
        deadline = time.monotonic() + _SCRAPE_BUDGET_S
        now = time.time() * 1000
        for view in views:
            future = asked.get(view.partition)
            try:
                summary = future.result(max(0.0, deadline - time.monotonic())) if future is not None else None
            except (PartitionsError, NotInTime):
                summary = None
            yield _gauges_of(view, summary, int(now))


def _summary(machine: PartitionMachine) -> dict[str, Any]:
    return machine.summary()


def _gauges_of(view: PartitionView, summary: dict[str, Any] | None, now_ms: int) -> PartitionGauges:
    if summary is None:
        return PartitionGauges(view.partition, view.role, view.epoch, view.lag if _leads(view) else None)
    offered_at, lease_until = summary["oldest_unclaimed_at"], summary["next_lease_until"]
    return PartitionGauges(
        view.partition,
        view.role,
        view.epoch,
        view.lag,
        {
            (state, job_type): count
            for job_type, counts in summary["counts"].items()
            for state, count in counts.items()
        },
        {name: max(0, now_ms - since) for name, since in summary["next_ready_since"].items()},
        max(0, now_ms - offered_at) if offered_at is not None else 0,
        max(0, now_ms - lease_until) if lease_until is not None else 0,
    )


def _leads(view: PartitionView) -> bool:
    return view.role == Role.LEADING


def _unsettled(view: PartitionView) -> str | None:
    """Why the node's role in a partition isn't settled, None where it is.

    A standby that hasn't caught up isn't: whoever restarts nodes one after the other should wait for it, so
    that somebody is there to hand over to.
    """
    idle = view.role == Role.STANDBY or (view.role == Role.OUT and view.fault is None)
    if _leads(view) or (idle and view.leader is not None):
        return None
    name = f"partition {view.partition}"
    if idle:
        return f"{name} has no leader"
    if view.role == Role.FOLLOWING and view.standby_lag is not None and view.standby_lag >= 0:
        return f"{name} is {view.role}: {view.standby_lag} records behind"
    return f"{name} is {view.role}" + (f": {view.fault}" if view.fault else "")
