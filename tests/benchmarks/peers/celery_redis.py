"""Celery on Redis: late acknowledgement, JSON, results in Redis."""

# mypy: ignore-errors
# What it imports is in an environment of its own.
from __future__ import annotations

import os
import sys

import redis
from celery import Celery
from protocol import Peer, serve

URL = os.environ.get("BENCH_URL", "")
app = Celery("celery_redis", broker=f"{URL}/0", backend=f"{URL}/1")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=64,  # its manual: for short tasks one of 50 to 150
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(job: dict[str, object]) -> None:
    """Nothing."""


class CeleryRedis(Peer):
    """Counts results, which have a database of their own."""

    def prepare(self) -> None:
        self._results = redis.Redis.from_url(f"{self.url}/1")
        app.conf.update(broker_url=f"{self.url}/0", result_backend=f"{self.url}/1")

    def start(self) -> None:
        self.spawn(
            "celery", "--app", "celery_redis", "worker", "--pool", "prefork", "--concurrency",
            str(self.workers), "--without-gossip", "--without-mingle", "--loglevel", "WARNING",
        )  # fmt: skip

    def enqueue(self, jobs: int) -> None:
        with app.producer_pool.acquire(block=True) as producer:
            for _ in range(jobs):
                noop.apply_async((self.payload,), producer=producer)

    def finished(self) -> int:
        return int(self._results.dbsize())


if __name__ == "__main__":
    serve(CeleryRedis, sys.argv[1:])
