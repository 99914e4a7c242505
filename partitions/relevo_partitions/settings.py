"""What a host is told: what all nodes of a cluster must agree on, and what is each node's own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from relevo_partitions.snapshots.snapshotter import SnapshotSettings

FORMAT_VERSION: Final = 1
"""Of what stands in Kafka and ZooKeeper; nodes of another one don't fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSettings:
    """Bounds of a term; the times in seconds."""

    batch_max: int = 1_000
    """Most commands per transaction."""
    batch_bytes: int = 1024 * 1024
    """A transaction takes no further command once those it has take up so many bytes. A command of that size
    may lead to a hundred thousand events."""
    idle_wait_s: float = 0.1
    """Longest wait for a command; a read or the end of the term is noticed no later. An idle leader turns as
    often, which is most of what it costs."""
    reads_max: int = 1_000
    """Most reads that may wait for a commit."""
    stall_s: float = 10.0
    """After so long without a record, Kafka is asked whether it is there, and the topic with it."""
    call_limit_s: float = 60.0
    """After so long in one call of Kafka the thread counts as lost and the term as over. Every call has its
    own, shorter limit; this one is for a call that doesn't keep it."""
    position_every_s: float = 5.0
    """How often the position is published for lag tools."""
    held_back_s: float = 15.0
    """After so long behind an open transaction of another producer, readers count as held back; above the
    timeout of our own transactions."""
    rebuild_max: int = 20_000
    """A machine with more items isn't rebuilt after a setback where another node is hot, but handed over: a
    third of a second, against one for every hundred thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbySettings:
    """Bounds of a standby; the times in seconds."""

    batch_max: int = 500
    """Most records applied at a time: some milliseconds, which is the longest that a takeover waits."""
    idle_wait_s: float = 0.5
    """Longest wait for a record; a takeover doesn't wait for it, since its barrier is one."""
    lag_hot: int = 200
    """A standby that is no further behind has caught up; in a busy log the end is never quite reached."""
    lag_max: int = 10_000
    """A standby that is further behind, and stays so, isn't hot any more. A tenth of a second to catch up."""
    behind_s: float = 5.0
    """For so long it may be further behind."""
    stall_s: float = 10.0
    """After so long without the barrier that it waits for, Kafka is asked whether it is there."""
    held_back_s: float = 15.0
    """As for a term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings of a `PartitionHost`; times in seconds."""

    node: str
    """Id of this node, unique in the cluster."""
    address: str
    """``host:port`` that other nodes reach this one at."""
    kafka: str
    """``host:port[,host:port…]`` of the brokers."""
    zookeeper: str
    """``host:port[,host:port…][/chroot]`` of the ensemble."""
    partitions: int
    """Number of partitions of the cluster."""
    cluster: str = "relevo"
    """Name of the cluster: prefix of its topics, root of its znodes."""
    kafka_options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """More settings of the Kafka clients, such as ``security.protocol`` and ``sasl.*``."""
    agreed: Mapping[str, Any] = field(default_factory=dict)
    """More that all nodes must agree on, beside the number of partitions."""
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tells this process from earlier ones of the same node."""
    session_timeout_s: float = 6.0
    """After so long without a sign of life ZooKeeper gives this node's partitions away."""
    claim_step_s: float = 0.05
    """How much later each candidate tries to claim than the one ranked before it."""
    settle_s: float = 0.0
    """A node that has just started leaves a free partition alone for so long: others that start may rank
    higher."""
    replicas: int = 1
    """How many nodes stand by for a partition, besides its leader. Each costs the memory of the partition's
    state and the work of applying its log: about a third of the leader's own. One is enough for a quick
    takeover; nothing is lost without any, it only takes longer: with 0 a node begins to follow once the
    leader is gone."""
    give_back_after_s: float = 10.0
    """A partition goes back to the node that ranks first for it once that has been hot for so long without
    interruption."""
    pulse: bool = True
    """Whether this node listens for other nodes' pulse connections, and watches their processes."""
    pulse_host: str = "127.0.0.1"
    """Address that the pulse listens on. Nodes of other machines can't reach a loopback address, and notice
    this node's death by the end of its ZooKeeper session."""
    pulse_port: int = 0
    """Port that the pulse listens on, 0 for a free one."""
    pulse_advertise: str = ""
    """``host:port`` that others reach the pulse at; empty for where it listens. Must lead to this very
    process, not to a load balancer."""
    reconcile_s: float = 2.0
    """How often what ZooKeeper shows is compared with what this node does, watches or not: three questions
    for each partition."""
    snapshots: SnapshotSettings | None = None
    """When snapshots are taken; None: never, and none is looked for: a start reads the whole log."""
    term: TermSettings = field(default_factory=TermSettings)
    """Bounds of a term."""
    standby: StandbySettings = field(default_factory=StandbySettings)
    """Bounds of a standby."""
    eligible: Callable[[int], bool] = field(default=lambda partition: True)
    """Whether this node may be a candidate for a partition now; asked often, must be quick."""
    checkpoint: Callable[[int, str], None] | None = None
    """Called with partition and name between the steps of a term, and of a snapshot (``snapshot-…``, some of
    them on the thread that finishes it), for tests that stop a node in the middle."""

    def config(self) -> dict[str, Any]:
        """What all nodes must agree on."""
        return {"partitions": self.partitions, "format": FORMAT_VERSION, **self.agreed}
