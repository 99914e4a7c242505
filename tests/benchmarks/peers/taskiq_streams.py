"""taskiq on Redis streams: acknowledged after the result is stored, results in Redis."""

# mypy: ignore-errors
# What it imports is in an environment of its own.
from __future__ import annotations

import asyncio
import os
import sys

import redis
from protocol import Peer, serve
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

IN_FLIGHT = 100
URL = os.environ.get("BENCH_URL", "")


def connect(url: str) -> RedisStreamBroker:
    """A broker whose results have a database of their own."""
    return RedisStreamBroker(f"{url}/0").with_result_backend(RedisAsyncResultBackend(f"{url}/1"))


if __name__ != "__main__":  # in a worker, which imports this file
    broker = connect(URL)

    @broker.task(task_name="noop")
    async def noop(job: dict[str, object]) -> None:
        """Nothing."""


class TaskiqStreams(Peer):
    """Counts results."""

    def prepare(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._broker = connect(self.url)
        self._results = redis.Redis.from_url(f"{self.url}/1")

        async def nothing(job: dict[str, object]) -> None:
            pass

        self._noop = self._broker.register_task(nothing, task_name="noop")
        self._loop.run_until_complete(self._broker.startup())

    def start(self) -> None:
        self.spawn(
            "taskiq", "worker", "taskiq_streams:broker", "--workers", str(self.workers),
            "--max-async-tasks", str(self.concurrency), "--ack-type", "when_saved", "--log-level", "WARNING",
        )  # fmt: skip

    def enqueue(self, jobs: int) -> None:
        self._loop.run_until_complete(self._send(jobs))

    async def _send(self, jobs: int) -> None:
        async def sender(count: int) -> None:
            for _ in range(count):
                await self._noop.kiq(self.payload)

        shares = [jobs // IN_FLIGHT + (n < jobs % IN_FLIGHT) for n in range(IN_FLIGHT)]
        await asyncio.gather(*(sender(share) for share in shares))

    def finished(self) -> int:
        return int(self._results.dbsize())

    def close(self) -> None:
        self._loop.run_until_complete(self._broker.shutdown())


if __name__ == "__main__":
    serve(TaskiqStreams, sys.argv[1:])
