"""What happened in the demo, by two witnesses: the receiver's database and the job log, not the engine."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from relevo_engine.verify import LogCheck
from relevo_schemas.events import JobCompleted, JobCreated, LeaderElected


class LogReader:
    """Reads a cluster's whole job log as any consumer may, and checks it on the way.

    Attributes:
        check: What is wrong with the log.
        created: JobCreated events by key: more than one is a job made twice.
        completed: The same of JobCompleted.
        elections: Every LeaderElected with its partition.
    """

    def __init__(self, consumer: Consumer, topic: str, partitions: int) -> None:
        self.check = LogCheck(topic)
        self.created: Counter[str] = Counter()
        self.completed: Counter[str] = Counter()
        self.elections: list[tuple[int, LeaderElected]] = []
        self._consumer = consumer
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])

    def read(self, seconds: float) -> None:
        """Take in what has been committed since the last call, for at most ``seconds``."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            first = self._consumer.poll(left)
            for message in [first, *self._consumer.consume(1000, 0)] if first is not None else ():
                if message.error():
                    raise KafkaException(message.error())
                partition = message.partition() or 0  # a message that was read has one
                event = self.check.take(partition, message.offset() or 0, message.value())
                if isinstance(event, JobCreated):
                    self.created[event.job.key] += 1
                elif isinstance(event, JobCompleted):
                    self.completed[event.key] += 1
                elif isinstance(event, LeaderElected):
                    self.elections.append((partition, event))

    def close(self) -> None:
        """Let the consumer go."""
        self._consumer.close()


@dataclass
class Report:
    """`build/demo-report.json`. Times in the unit that ends their name."""

    jobs_created: int
    jobs_completed: int
    jobs_lost: int
    effects_total: int
    effects_unique: int
    effects_repeated: int
    killed_node: str
    partitions_moved: int
    takeover_ms: int | None
    log_contiguous: bool
    epochs_rising: bool
    duration_s: float
    jobs_per_s: float

    @property
    def sound(self) -> bool:
        """Nothing lost, a leader was replaced, and the log is as it must be."""
        return (
            self.jobs_lost == 0
            and self.partitions_moved > 0
            and self.takeover_ms is not None
            and self.log_contiguous
            and self.epochs_rising
        )

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def effects(database: Path) -> Counter[str]:
    """Requests by idempotency key."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return Counter(dict(connection.execute("SELECT idempotency_key, count(*) FROM effects GROUP BY 1")))


def make_report(
    log: LogReader,
    done: Counter[str],
    accepted: set[str],
    killed_node: str,
    killed_at_ms: int,
    moved: set[int],
    duration_s: float,
) -> Report:
    """Put the witnesses' words together.

    Args:
        log: The job log, read to its end.
        done: Requests by idempotency key, as the receiver counted them.
        accepted: Keys that Kafka acknowledged to the client: each must be completed and have its effect.
        killed_node: Id of the node that was killed.
        killed_at_ms: When, in milliseconds since the Unix epoch.
        moved: Partitions that node led.
        duration_s: From the first create to the last completion.
    """
    missing = {key for key in accepted if key not in log.completed or f"workflow-{key}" not in done}
    successors: dict[int, int] = {}
    for partition, elected in log.elections:
        if partition in moved and elected.at >= killed_at_ms and elected.node != killed_node:
            successors.setdefault(partition, elected.at - killed_at_ms)
    doubled = [key for counts in (log.created, log.completed) for key, count in counts.items() if count > 1]
    for key in doubled[:10]:
        log.check.fault(f"job {key} was created or completed twice")
    return Report(
        jobs_created=len(log.created),
        jobs_completed=len(log.completed),
        jobs_lost=len(missing),
        effects_total=done.total(),
        effects_unique=len(done),
        effects_repeated=done.total() - len(done),
        killed_node=killed_node,
        partitions_moved=len(successors),
        takeover_ms=max(successors.values()) if successors and len(successors) == len(moved) else None,
        log_contiguous=log.check.contiguous and not doubled,
        epochs_rising=log.check.epochs_rising,
        duration_s=round(duration_s, 2),
        jobs_per_s=round(len(log.completed) / duration_s, 1),
    )
