"""Dramatiq on Redis: acknowledged after the actor has returned, results in Redis."""

# mypy: ignore-errors
# What it imports is in an environment of its own.
from __future__ import annotations

import os
import sys

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from protocol import Peer, serve

URL = os.environ.get("BENCH_URL", "")


def connect(url: str) -> RedisBroker:
    """A broker whose results have a database of their own."""
    made = RedisBroker(url=f"{url}/0")
    made.add_middleware(Results(backend=RedisBackend(url=f"{url}/1"), store_results=True))
    return made


if __name__ != "__main__":  # in a worker, which imports this file
    dramatiq.set_broker(connect(URL))

    @dramatiq.actor(actor_name="noop")
    def noop(job: dict[str, object]) -> str:
        """Nothing; Dramatiq keeps no result that is None."""
        return ""


class DramatiqRedis(Peer):
    """Counts results."""

    def prepare(self) -> None:
        broker = connect(self.url)
        dramatiq.set_broker(broker)
        self._results = redis.Redis.from_url(f"{self.url}/1")

        def nothing(job: dict[str, object]) -> str:
            return ""

        self._noop = dramatiq.actor(nothing, actor_name="noop", broker=broker)

    def start(self) -> None:
        self.spawn("dramatiq", "dramatiq_redis", "--processes", str(self.workers), "--threads", "8")

    def enqueue(self, jobs: int) -> None:
        for _ in range(jobs):
            self._noop.send(self.payload)

    def finished(self) -> int:
        return int(self._results.dbsize())


if __name__ == "__main__":
    serve(DramatiqRedis, sys.argv[1:])
