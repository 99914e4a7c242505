"""What a reader should know of each peer: how it is run here, and what it doesn't do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True)
class PeerFacts:
    """One peer.

    Attributes:
        name: In the report.
        title: For people.
        program: Its file beside this one.
        server: What it needs.
        form: How it is run.
        log: Whether every step of every job can be read afterwards, in order.
        replicated: Whether a job that was accepted is on several machines before the client hears of it.
        replay: Whether the state can be built again from what is kept.
        failover: What happens to jobs when the server dies.
        queue: Whether it keeps each job's state: who has it, whether it is done, what came of it.
    """

    name: str
    title: str
    program: str
    server: Literal["redis", "postgres", "kafka"]
    form: str
    log: str
    replicated: str
    replay: str
    failover: str
    queue: bool = True

    @property
    def path(self) -> Path:
        """Of its program."""
        return FOLDER / self.program

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {
            "title": self.title, "form": self.form, "log": self.log, "replicated": self.replicated,
            "replay": self.replay, "failover": self.failover, "queue": self.queue,
        }  # fmt: skip


_REDIS: Final[dict[str, Any]] = {
    "log": "no",
    "replicated": "no: Redis replicates after it has answered",
    "replay": "no",
    "failover": "by Redis Sentinel or Cluster; jobs of the last moments can be lost",
}

PEERS: Final = (
    PeerFacts(
        "celery_redis",
        "Celery, Redis",
        "celery_redis.py",
        "redis",
        "prefork, one job at a time in each process, acks_late, prefetch 64, JSON, results kept for a day",
        **_REDIS,
    ),
    PeerFacts(
        "dramatiq_redis",
        "Dramatiq, Redis",
        "dramatiq_redis.py",
        "redis",
        "8 threads in each process (its default), acknowledged after the actor, results kept for ten minutes",
        **_REDIS,
    ),
    PeerFacts(
        "taskiq_redis",
        "taskiq, Redis streams",
        "taskiq_streams.py",
        "redis",
        "coroutines, acknowledged once the result is saved, results kept",
        **_REDIS,
    ),
    PeerFacts(
        "procrastinate_postgres",
        "Procrastinate, PostgreSQL",
        "procrastinate_postgres.py",
        "postgres",
        "coroutines, rows kept, created 1,000 at a time, fsync on",
        "partly: a table of status changes",
        "only with synchronous replication",
        "no: the rows are the state",
        "PostgreSQL's own, by other tools",
    ),
    PeerFacts(
        "plain_aiokafka",
        "aiokafka alone",
        "plain_aiokafka.py",
        "kafka",
        "one topic of jobs, one of answers, committed behind the answers; no claims, retries, leases, timers",
        "jobs and answers only",
        "yes, on three brokers",
        "no state to build",
        "Kafka's; a job whose worker hangs holds up its partition",
        queue=False,
    ),
)
