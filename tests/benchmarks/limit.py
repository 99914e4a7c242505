"""The limit: a loop that moves records of the same number and size through the same topics, deciding nothing.

``python -m tests.benchmarks.limit ORDERS ROLE``: ``client``, ``leader`` and ``worker`` are processes of their
own, as in a cluster, with batches, transactions and durability as the engine's. The records are
encoded once, before anything is timed: 256 of each kind, of the bytes that the measured jobs have, so that
they compress as those do. The leader tells how many seconds passed from the first command to the last.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from relevo.testing.bench.child import Child
from relevo.testing.bench.roles import PAYLOADS, payload
from relevo_engine.topic_admin import TopicAdmin
from relevo_schemas.codec import encode, encode_json, job_spec
from relevo_schemas.commands import CompleteJob, CreateJob
from relevo_schemas.delivery import Activation
from relevo_schemas.events import JobActivated, JobCompleted, JobCreated

BATCH: Final = 1_000
"""Commands per transaction: the engine's own bound."""
_NOW: Final = 1_800_000_000_000
_END_S: Final = 300.0


@dataclass(frozen=True)
class Orders:
    """One run.

    Attributes:
        kafka: Bootstrap servers.
        prefix: Of its topics.
        jobs: How many.
        bytes: Of each job's variables.
    """

    kafka: str
    prefix: str
    jobs: int
    bytes: int


def records(size: int) -> dict[str, list[bytes]]:
    """The records of each kind that jobs cause, of the size that they have in the benchmark."""
    made: dict[str, list[bytes]] = {}
    for number in range(PAYLOADS):
        key = f"bench-0123456789ab-{number:05d}"
        spec = job_spec(key=key, type="noop", variables=encode_json(payload(number, size)))
        for kind, record in (
            ("create", encode(CreateJob(spec))),
            ("created", encode(JobCreated(100_000, 1, _NOW, 100_000, spec))),
            ("activated", encode(JobActivated(100_000, 1, _NOW, 100_000, key, 1, 0))),
            ("activation", encode(Activation(0, 1, _NOW, 100_000, 1, 3, 0, b"", spec))),
            ("complete", encode(CompleteJob(key, 100_000, 1, b"null"))),
            ("completed", encode(JobCompleted(100_000, 1, _NOW, 100_000, key, 1, b"null"))),
        ):
            made.setdefault(kind, []).append(record)
    return made


def consumer(kafka: str, topic: str) -> Consumer:
    """Reads partition 0 of ``topic`` from its beginning."""
    options: dict[str, Any] = {
        "bootstrap.servers": kafka,
        "group.id": "limit",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    reader = Consumer(options)
    reader.assign([TopicPartition(topic, 0, 0)])
    return reader


def batch(reader: Consumer) -> list[Any]:
    """The next records."""
    first = reader.poll(0.05)
    return [] if first is None else [first, *reader.consume(BATCH - 1, 0)]


def producer(kafka: str, **options: Any) -> Producer:
    """A producer as durable as Relevo's."""
    common = {
        "bootstrap.servers": kafka,
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
    }
    return Producer({**common, **options})


def lead(orders: Orders) -> None:
    """Copy: three records for a create, one for a completion, in one transaction per batch."""
    fixed = records(orders.bytes)
    first = fixed["create"][0][:10]
    created, activated, completed = fixed["created"], fixed["activated"], fixed["completed"]
    activation = fixed["activation"]
    reader = consumer(orders.kafka, f"{orders.prefix}.commands")
    writer = producer(
        orders.kafka, **{"transactional.id": orders.prefix, "linger.ms": 0, "retry.backoff.ms": 5}
    )
    writer.init_transactions(30)
    log, activations = f"{orders.prefix}.log", f"{orders.prefix}.activations.noop"
    say(ready=True)
    done, began = 0, 0.0
    while done < orders.jobs:
        messages = batch(reader)
        if not messages:
            continue
        began = began or time.monotonic()
        to_log, to_workers = [], []
        for message in messages:
            key, n = message.key(), message.offset() % PAYLOADS
            if message.value()[:10] == first:
                to_log.append({"key": key, "value": created[n]})
                to_log.append({"key": key, "value": activated[n]})
                to_workers.append({"key": key, "value": activation[n]})
            else:
                to_log.append({"key": key, "value": completed[n]})
                done += 1
        writer.begin_transaction()
        writer.produce_batch(log, to_log, partition=0)
        if to_workers:
            writer.produce_batch(activations, to_workers, partition=0)
        writer.commit_transaction(30)
    say(seconds=time.monotonic() - began)
    sys.stdin.read()


def work(orders: Orders) -> None:
    """Answer each activation with a completion."""
    values = records(orders.bytes)["complete"]
    reader = consumer(orders.kafka, f"{orders.prefix}.activations.noop")
    writer = producer(orders.kafka, **{"linger.ms": 2})
    say(ready=True)
    seen = 0
    while seen < orders.jobs:
        messages = batch(reader)
        seen += len(messages)
        if messages:
            answers = [{"key": m.key(), "value": values[m.offset() % PAYLOADS]} for m in messages]
            writer.produce_batch(f"{orders.prefix}.commands", answers, partition=0)
        writer.poll(0)
    writer.flush(60)
    sys.stdin.read()


def create(orders: Orders) -> None:
    """Send all commands as fast as Kafka takes them, once told to."""
    values = records(orders.bytes)["create"]
    writer = producer(orders.kafka, **{"linger.ms": 2})
    say(ready=True)
    sys.stdin.readline()
    for first in range(0, orders.jobs, BATCH):
        commands = [
            {"key": f"bench-0123456789ab-{n:05d}".encode(), "value": values[n % PAYLOADS]}
            for n in range(first, min(orders.jobs, first + BATCH))
        ]
        writer.produce_batch(f"{orders.prefix}.commands", commands, partition=0)
        writer.poll(0)
    writer.flush(60)
    sys.stdin.read()


def say(**answer: Any) -> None:
    """One line to whoever started this process."""
    print(json.dumps(answer), flush=True)


@contextmanager
def _role(path: Path, role: str, folder: Path) -> Iterator[Child]:
    command = (sys.executable, "-m", "tests.benchmarks.limit", str(path), role)
    with Child(f"limit-{role}", command, folder) as child:
        child.answer("ready", 60)
        yield child


def limit_rate(orders: Orders, folder: Path) -> float:
    """Jobs per second of the loop that decides nothing, one partition."""
    TopicAdmin(orders.kafka, orders.prefix).init(1, ["noop"], allow_unsafe=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{orders.prefix}.json"
    path.write_text(json.dumps(asdict(orders)), encoding="utf-8")
    with (
        _role(path, "worker", folder),
        _role(path, "leader", folder) as leader,
        _role(path, "client", folder) as client,
    ):
        client.order(begin=True)
        seconds = float(leader.answer("seconds", _END_S)["seconds"])
    return orders.jobs / seconds


if __name__ == "__main__":
    {"client": create, "leader": lead, "worker": work}[sys.argv[2]](
        Orders(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    )
