"""A worker in a process of its own, which can be told to kill itself at any step of an activation.

Run as ``python -m tests.support.worker_process`` with a JSON object of `Orders` as its argument. Effects are
counted where they can't be lost: in Redis, by job key.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import redis

import relevo
from relevo.dedup.store import Answer, Claim, Finish
from relevo.gate import Gate

STEPS = ("before claim", "after claim", "after effect", "after done", "before commit")


DIES_AFTER_S: Final = 0.5
"""How long a handler that kills its process takes until it does."""


@dataclass
class Orders:
    """What the process is to do.

    Attributes:
        kafka: Bootstrap servers.
        cluster: The cluster's name.
        type: The job type.
        redis: Where effects are counted, and claims kept.
        die: The step at which it kills itself for the first job it meets; empty: never.
        die_for: Keys whose handler kills the process.
        seconds: How long each handler runs.
        options: librdkafka options.
    """

    kafka: str
    cluster: str
    type: str
    redis: str
    die: str = ""
    die_for: list[str] = field(default_factory=list)
    seconds: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)


def spawn(orders: Orders) -> subprocess.Popen[bytes]:
    """Start one; end it with `Popen.kill` or by a signal."""
    return subprocess.Popen([sys.executable, "-m", __name__, json.dumps(asdict(orders))])


def effects(client: redis.Redis, cluster: str, key: str) -> int:
    """How often the effect of a job has happened."""
    return int(client.get(f"effects:{cluster}:{key}") or 0)


def perform(client: redis.Redis, cluster: str, key: str) -> None:
    """The effect."""
    client.incr(f"effects:{cluster}:{key}")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _DyingStore(relevo.RedisDedupStore):
    die = ""

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:
        if self.die == "before claim":
            _die()
        answers = super().claim(claims)
        if self.die == "after claim":
            _die()
        return answers

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:
        if self.die == "after effect":
            _die()
        answers = super().done(finishes)
        if self.die == "after done":
            _die()
        return answers


def _dying_before(method: Callable[..., Any]) -> Callable[..., Any]:
    def die(*args: Any) -> None:
        _die()

    return die


def main(orders: Orders) -> None:
    client = redis.Redis.from_url(orders.redis)
    store = _DyingStore(orders.redis)
    store.die = orders.die
    if orders.die == "before commit":
        # All acknowledgements are in; nothing has been committed yet.
        Gate._acknowledged = _dying_before(Gate._acknowledged)  # type: ignore[method-assign]
    app = relevo.WorkerApp(orders.kafka, orders.cluster, dedup=store, **orders.options)

    @app.job(orders.type, concurrency=4)
    def handler(job: relevo.Job) -> str:
        if job.key in orders.die_for:
            client.incr(f"deaths:{orders.cluster}:{job.key}")
            # Whoever is at work each time it dies is as suspect as its killer: let the others get through.
            time.sleep(DIES_AFTER_S)
            _die()
        if orders.seconds:
            client.set(f"running:{orders.cluster}:{job.key}", "1")
            time.sleep(orders.seconds)
        perform(client, orders.cluster, job.key)
        return job.key

    app.run(drain=20)


if __name__ == "__main__":
    main(Orders(**json.loads(sys.argv[1])))
