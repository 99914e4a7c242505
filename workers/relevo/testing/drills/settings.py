"""What can be chosen about drills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

JOB_TYPE: Final = "relevo-drill"
GROUP_SESSION_S: Final = 6.0
"""Seconds of silence after which Kafka gives a dead worker's partitions to another."""
BROKER_SESSION_S: Final = 2.0
"""The same of a broker that `relevo drill` started."""
OF_THE_CLUSTER: Final = ("brokers", "zookeepers", "nodes", "partitions", "session_timeout_s")
"""What a given cluster has of its own."""


@dataclass(frozen=True)
class DrillSettings:
    """With what the drills run.

    Of a given cluster the number of its servers, and how its nodes are set, are its own: 0 where that isn't
    known.

    Attributes:
        repeat: How often each drill is repeated.
        brokers: Kafka brokers that are started, 1 or 3.
        zookeepers: ZooKeeper servers that are started, 1 or 3.
        nodes: Engine nodes that are started.
        partitions: Of the cluster.
        workers: Worker processes.
        rate: Jobs per second over all partitions.
        seed: Of everything that is left to chance.
        warm_up_s: How long a started cluster works at ten times the rate before the first drill, in seconds.
        down_s: How long ZooKeeper stays away in zookeeper-down, in seconds.
        duration_s: How long a soak takes, in seconds.
        session_timeout_s: The nodes' ZooKeeper session, in seconds.
        lease_s: Lease of each job, in seconds.
        work_s: How long each effect takes, in seconds; this is over before it would be reported as started.
        long_every: One of so many jobs of a partition takes `long_s` instead, so that its lease has begun; 0:
            none. Fewer do where they would take more than a quarter of what the workers can do at once.
        long_s: How long such a job's effect takes, in seconds.
        calls_per_s: Creations and reads per second, taken together, that somebody waits for, in the drills
            that look at them.
        redis: Address of a dedup store for all workers; empty: see `relevo.testing.drills.store`.
        effects: Where effects happen and are counted, see `relevo.testing.effects`; empty: nowhere.
        jobs: How many jobs the drill of effects creates.
        every_s: Seconds between two kills of its workers, on average.
        kafka: A cluster that runs already: its Kafka. None: one is started.
        zookeeper: Its ZooKeeper.
        cluster: Its name, or that of the one that is started.
        finished_window_s: For how long a given cluster remembers ended jobs, in seconds.
        finished_count_max: How many of them.
        kafka_options: More librdkafka options.
        keep_logs: Where logs and ledgers are kept; None: nowhere.
    """

    repeat: int = 5
    brokers: int = 1
    zookeepers: int = 1
    nodes: int = 3
    partitions: int = 4
    workers: int = 2
    rate: float = 100.0
    seed: int = 1
    warm_up_s: float = 45.0
    down_s: float = 60.0
    duration_s: float = 600.0
    session_timeout_s: float = 2.0
    lease_s: float = 3.0
    work_s: float = 0.03
    long_every: int = 12
    long_s: float = 0.6
    calls_per_s: float = 4.0
    redis: str = ""
    effects: str = ""
    jobs: int = 10_000
    every_s: float = 3.0
    kafka: str | None = None
    zookeeper: str | None = None
    cluster: str = "drill"
    finished_window_s: int = 24 * 3600
    finished_count_max: int = 200_000
    kafka_options: Mapping[str, Any] = field(default_factory=dict)
    keep_logs: Path | None = None

    @property
    def given(self) -> bool:
        """Whether the cluster runs already."""
        return self.kafka is not None

    def as_dict(self) -> dict[str, Any]:
        """For the report, without addresses and options, which may hold passwords; None: not known."""
        hidden = ("kafka", "zookeeper", "kafka_options", "keep_logs", "redis", "effects")
        shown = {name: value for name, value in asdict(self).items() if name not in hidden}
        unknown = {name: None for name in OF_THE_CLUSTER if not shown[name]}
        return (
            shown
            | unknown
            | {
                "dedup": "one store in Redis" if self.redis else "a store in the memory of each worker",
                "effects": self.effects.partition("://")[0],
                "given_cluster": self.given,
            }
        )
