"""aiokafka alone doing the same flow: a job is read, run, answered in a second topic, then committed.

With a worker as an argument it is one: ``plain_aiokafka.py work``.
"""

# mypy: ignore-errors
# What it imports is in an environment of its own.
from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from protocol import Peer, serve

BATCH = 1_000
JOBS, RESULTS = "plain.jobs", "plain.results"


async def producer(url: str) -> AIOKafkaProducer:
    """One that is as durable as Relevo's."""
    made = AIOKafkaProducer(
        bootstrap_servers=url, acks="all", enable_idempotence=True, compression_type="lz4", linger_ms=2
    )
    await made.start()
    return made


async def handle(job: dict[str, object]) -> None:
    """Nothing."""


async def work(url: str) -> None:
    """Late acknowledgement: offsets are committed behind answers that Kafka has."""
    consumer = AIOKafkaConsumer(
        JOBS, bootstrap_servers=url, group_id="plain", enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    answers = await producer(url)
    while True:
        found = await consumer.getmany(timeout_ms=200, max_records=BATCH)
        messages = [message for batch in found.values() for message in batch]
        await asyncio.gather(*(handle(json.loads(message.value)) for message in messages))
        sent = [await answers.send(RESULTS, key=message.key, value=b"null") for message in messages]
        await asyncio.gather(*sent)
        if messages:
            await consumer.commit()


class PlainAiokafka(Peer):
    """Counts the records of the topic with the answers."""

    def prepare(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._run(self._prepare())

    async def _prepare(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.url)
        await admin.start()
        topics = [NewTopic(name, self.workers, 1) for name in (JOBS, RESULTS)]
        await admin.create_topics(topics)
        await admin.close()
        self._producer = await producer(self.url)
        self._consumer = AIOKafkaConsumer(bootstrap_servers=self.url)
        await self._consumer.start()

    def start(self) -> None:
        for _ in range(self.workers):
            self.spawn(sys.executable, "-P", __file__, "work")

    def enqueue(self, jobs: int) -> None:
        self._run(self._send(jobs))

    async def _send(self, jobs: int) -> None:
        pending = []
        for number in range(jobs):
            value = json.dumps(self.payload).encode()
            pending.append(await self._producer.send(JOBS, key=b"job-%d" % number, value=value))
            if len(pending) >= 20 * BATCH:
                await asyncio.gather(*pending)
                pending.clear()
        await asyncio.gather(*pending)

    def finished(self) -> int:
        places = [TopicPartition(RESULTS, number) for number in range(self.workers)]
        return sum(self._run(self._consumer.end_offsets(places)).values())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._run(self._consumer.stop())

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(call)


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        asyncio.run(work(os.environ["BENCH_URL"]))
    else:
        serve(PlainAiokafka, sys.argv[1:])
