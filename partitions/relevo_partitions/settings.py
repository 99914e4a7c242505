"""What a host is told: what all nodes of a cluster must agree on, and what is each node's own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
    idle_wait_s: float = 0.05
    """Longest wait for a command; a read or the end of the term is noticed no later."""
    reads_max: int = 1_000
    """Most reads that may wait for a commit."""
    stall_s: float = 10.0
    """After so long without a record, Kafka is asked whether it is there, and the topic with it."""
    call_limit_s: float = 60.0
    """After so long in one call of Kafka the thread counts as lost and the term as over. Every call has its
    own, shorter limit; this one is for a call that doesn't keep it."""
    position_every_s: float = 5.0
    """How often the position is published for lag tools."""


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
    reconcile_s: float = 1.0
    """How often what ZooKeeper shows is compared with what this node does, watches or not."""
    term: TermSettings = field(default_factory=TermSettings)
    """Bounds of a term."""
    eligible: Callable[[int], bool] = field(default=lambda partition: True)
    """Whether this node may be a candidate for a partition now; asked often, must be quick."""
    checkpoint: Callable[[int, str], None] | None = None
    """Called with partition and name between a leader's steps, for tests that stop one in the middle."""

    def config(self) -> dict[str, Any]:
        """What all nodes must agree on."""
        return {"partitions": self.partitions, "format": FORMAT_VERSION, **self.agreed}
