"""The limit: a loop that moves records of the same number and size through the same topics, deciding nothing.

``python -m tests.benchmarks.limit BOOTSTRAP PREFIX JOBS ROLE``: the roles ``client``, ``leader`` and
``worker`` are processes of their own, as in a cluster. The leader prints how many seconds passed from the
first command to the last.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from relevo_schemas.codec import encode, encode_json, job_spec
from relevo_schemas.commands import CompleteJob, CreateJob
from relevo_schemas.delivery import Activation
from relevo_schemas.events import JobActivated, JobCompleted, JobCreated

BATCH = 1_000
VARIABLES = {"to": "ana@example.com", "subject": "hola", "template": "order-confirmed", "order": "A-1001"}
_NOW = 1_800_000_000_000


def records() -> dict[str, bytes]:
    """One record of each kind that a job causes, of the size that it has in the benchmark."""
    spec = job_spec(key="job-00000000", type="noop", variables=encode_json(VARIABLES))
    return {
        "create": encode(CreateJob(spec)),
        "created": encode(JobCreated(100_000, 1, _NOW, 100_000, spec)),
        "activated": encode(JobActivated(100_000, 1, _NOW, 100_000, spec.key, 1, 0)),
        "activation": encode(Activation(0, 1, _NOW, 1, 3, 0, spec)),
        "complete": encode(CompleteJob(spec.key, 1, b"null")),
        "completed": encode(JobCompleted(100_000, 1, _NOW, 100_000, spec.key, 1, b"null")),
    }


def consumer(bootstrap: str, topic: str) -> Consumer:
    """Reads partition 0 of ``topic`` from its beginning."""
    options = {
        "bootstrap.servers": bootstrap,
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


def producer(bootstrap: str, **options: Any) -> Producer:
    """A producer as durable as Relevo's."""
    common = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
    }
    return Producer({**common, **options})


def lead(bootstrap: str, prefix: str, jobs: int) -> None:
    """Copy: three records for a create, one for a completion, in one transaction per batch."""
    fixed = records()
    reader = consumer(bootstrap, f"{prefix}.commands")
    writer = producer(bootstrap, **{"transactional.id": prefix, "linger.ms": 0, "retry.backoff.ms": 5})
    writer.init_transactions(30)
    log, activations = f"{prefix}.log", f"{prefix}.activations.noop"
    done, began = 0, 0.0
    while done < jobs:
        messages = batch(reader)
        if not messages:
            continue
        began = began or time.monotonic()
        to_log, to_workers = [], []
        for message in messages:
            key = message.key()
            if message.value()[:10] == fixed["create"][:10]:
                to_log.append({"key": key, "value": fixed["created"], "partition": 0})
                to_log.append({"key": key, "value": fixed["activated"], "partition": 0})
                to_workers.append({"key": key, "value": fixed["activation"], "partition": 0})
            else:
                to_log.append({"key": key, "value": fixed["completed"], "partition": 0})
                done += 1
        writer.begin_transaction()
        writer.produce_batch(log, to_log)
        if to_workers:
            writer.produce_batch(activations, to_workers)
        writer.commit_transaction(30)
    print(time.monotonic() - began, flush=True)


def work(bootstrap: str, prefix: str, jobs: int) -> None:
    """Answer each activation with a completion."""
    value = records()["complete"]
    reader = consumer(bootstrap, f"{prefix}.activations.noop")
    writer = producer(bootstrap, **{"linger.ms": 2})
    seen = 0
    while seen < jobs:
        messages = batch(reader)
        seen += len(messages)
        if messages:
            answers = [{"key": m.key(), "value": value, "partition": 0} for m in messages]
            writer.produce_batch(f"{prefix}.commands", answers)
        writer.poll(0)
    writer.flush(60)


def create(bootstrap: str, prefix: str, jobs: int) -> None:
    """Send all commands as fast as Kafka takes them."""
    value = records()["create"]
    writer = producer(bootstrap, **{"linger.ms": 2})
    for first in range(0, jobs, BATCH):
        wanted = range(first, min(jobs, first + BATCH))
        commands = [{"key": f"job-{n:08d}".encode(), "value": value, "partition": 0} for n in wanted]
        writer.produce_batch(f"{prefix}.commands", commands)
        writer.poll(0)
    writer.flush(60)


if __name__ == "__main__":
    {"client": create, "leader": lead, "worker": work}[sys.argv[4]](
        sys.argv[1], sys.argv[2], int(sys.argv[3])
    )
