"""What tests of workers look at: the log of a job, the group's offsets, what was handed out."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

import relevo
from tests.support.engine_thread import EngineThread


def kinds_of(engine: EngineThread, key: str) -> list[str]:
    with relevo.JobEvents(engine.kafka, engine.cluster, keys=[key], follow=False) as events:
        return [event.kind for event in events]


def committed(engine: EngineThread, job_type: str) -> dict[int, int]:
    """Per partition of the activation topic, how much the group has committed."""
    consumer = Consumer(
        {"bootstrap.servers": engine.kafka, "group.id": f"{engine.cluster}.workers.{job_type}"}
    )
    try:
        places = [
            TopicPartition(f"{engine.cluster}.activations.{job_type}", each)
            for each in range(engine.partitions)
        ]
        return {each.partition: each.offset for each in consumer.committed(places, timeout=10)}
    finally:
        consumer.close()


def activations(engine: EngineThread, job_type: str) -> list[bytes]:
    """All that stands on the activation topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": engine.kafka,
            "group.id": "test",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    topic = f"{engine.cluster}.activations.{job_type}"
    consumer.assign([TopicPartition(topic, each, 0) for each in range(engine.partitions)])
    found, ends = [], 0
    while ends < engine.partitions:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is not None:
            ends += 1
        else:
            found.append(message.value() or b"")
    consumer.close()
    return found
