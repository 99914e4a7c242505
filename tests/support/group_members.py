"""A topic and members of its group, without an engine: what a worker's reading does, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from relevo.consumer.consumer import ActivationConsumer, Arrivals
from relevo.consumer.offsets import OffsetTracker
from relevo.stats import WorkerStats
from relevo_engine.local.kafka import admin
from tests.support.waiting import wait_until

_NOT_YET = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


def set_session(kafka: str, group: str, milliseconds: int) -> None:
    """Of the newer protocol, where brokers set it: as docs/worker-guide.md says, here by an admin client."""
    values = {"session.timeout.ms": milliseconds, "heartbeat.interval.ms": 500}
    entries = [
        ConfigEntry(f"consumer.{name}", str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    client = admin(kafka)
    client.incremental_alter_configs([resource])[resource].result(10)


class Topic:
    """A topic of the test's own, and what its group has committed."""

    def __init__(self, kafka: str, name: str, partitions: int) -> None:
        self.kafka = kafka
        self.name = name
        self.partitions = partitions
        self.group = f"{name}.group"
        client = admin(kafka)
        (made,) = client.create_topics([NewTopic(name, partitions, 1)]).values()
        made.result(30)

    def make_anew(self) -> None:
        """As by an operator who deletes the topic and makes it again: offsets begin at 0."""
        client = admin(self.kafka)
        (gone,) = client.delete_topics([self.name]).values()
        gone.result(30)

        def made() -> bool:
            (future,) = client.create_topics([NewTopic(self.name, self.partitions, 1)]).values()
            return future.exception(30) is None

        wait_until(made, "the topic is there again")

    def fill(self, count: int) -> None:
        # Where a broker has just been restarted, a record sent again would else be another one.
        producer = Producer({"bootstrap.servers": self.kafka, "linger.ms": 20, "enable.idempotence": True})
        for number in range(count):
            producer.produce(self.name, str(number).encode(), partition=number % self.partitions)
        assert producer.flush(30) == 0

    def committed(self) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": self.group})
        try:
            places = [TopicPartition(self.name, each) for each in range(self.partitions)]
            return [max(each.offset, 0) for each in consumer.committed(places, timeout=10)]
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET:
                raise
            return [0] * self.partitions  # its broker was restarted, and has yet to read what it knows
        finally:
            consumer.close()


class Member:
    """An `ActivationConsumer` whose deliveries the test deals with."""

    def __init__(
        self,
        topic: Topic,
        deliver: Callable[[Member, Arrivals], None],
        *,
        buffer: int = 500,
        drain_s: float = 5.0,
        **options: Any,
    ) -> None:
        self.tracker = OffsetTracker()
        self.stats = WorkerStats()
        self.seen: list[tuple[int, int]] = []
        self.commits: list[tuple[int, int]] = []
        self.consumer = ActivationConsumer(
            topic.kafka,
            options,
            topic=topic.name,
            group=topic.group,
            tracker=self.tracker,
            deliver=lambda arrivals: self._deliver(deliver, arrivals),
            buffer=buffer,
            drain_s=drain_s,
            stats=self.stats,
        )

    def _deliver(self, deliver: Callable[[Member, Arrivals], None], arrivals: Arrivals) -> None:
        self.seen += [(entry.ownership.partition, entry.offset) for entry, _ in arrivals]
        deliver(self, arrivals)

    def owns(self) -> set[int]:
        return {owned.partition for owned in self.tracker.owned()}

    def start(self) -> Member:
        self.consumer.start()
        return self

    def stop(self) -> None:
        self.consumer.stop()
        self.consumer.thread.join(60)
        assert not self.consumer.thread.is_alive()


def finish_at_once(member: Member, arrivals: Arrivals) -> None:
    """A worker that is done with everything as it comes."""
    member.tracker.finish([entry for entry, _ in arrivals])


def main(kafka: str, name: str, *options: str) -> None:
    """A member in a process of its own, until that is killed."""
    topic = Topic.__new__(Topic)
    topic.kafka, topic.name, topic.group = kafka, name, f"{name}.group"
    chosen: dict[str, Any] = dict(each.split("=") for each in options)
    Member(topic, finish_at_once, **chosen).start().consumer.thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
