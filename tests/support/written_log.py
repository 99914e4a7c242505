"""A job log that a test writes by hand, in transactions that it commits, aborts or leaves open."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from relevo_engine.local.kafka import admin
from relevo_schemas.codec import encode, job_spec
from relevo_schemas.events import JobCompleted, JobCreated, JobDue
from relevo_schemas.records import Event
from tests.support.waiting import wait_until


class WrittenLog:
    """The topic ``<cluster>.log``, and its writer. Events are numbered as a leader would.

    Args:
        kafka: Bootstrap servers.
        cluster: The cluster's name.
        partitions: How many the log has.
    """

    def __init__(self, kafka: str, cluster: str, partitions: int = 1) -> None:
        self.kafka, self.cluster, self.partitions = kafka, cluster, partitions
        self.topic = f"{cluster}.log"
        self._admin: Any = admin(kafka)
        self.seqs = dict.fromkeys(range(partitions), 0)
        self.epoch = 1
        self._producer = Producer(
            {"bootstrap.servers": kafka, "transactional.id": f"{cluster}-log", "linger.ms": 0, "log_level": 0}
        )

    def __enter__(self) -> WrittenLog:
        self.make()
        self._producer.init_transactions(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.purge()

    def make(self) -> None:
        """Make the topic; returns when it can be written."""

        def made() -> bool:
            new = NewTopic(self.topic, self.partitions, 1)
            try:
                self._admin.create_topics([new])[self.topic].result(30)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False  # one of that name is on its way out
            return True

        wait_until(made, f"{self.topic} is made")
        self.seqs = dict.fromkeys(range(self.partitions), 0)

    def delete(self) -> None:
        """Delete the topic."""
        self._admin.delete_topics([self.topic])[self.topic].result(30)

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def commit(self) -> None:
        """End it, and make what it holds readable."""
        self._producer.commit_transaction(30)

    def abort(self) -> None:
        """End it, and throw away what it holds: the numbers are given again."""
        self._producer.abort_transaction(30)

    def add(self, *keys: str, partition: int = 0, kind: str = "created", type: str = "work") -> None:
        """Write an event for each key; they are with the broker when it returns."""
        for key in keys:
            self.seqs[partition] += 1
            event = self._event(kind, self.seqs[partition], key, type)
            self._producer.produce(self.topic, encode(event), key.encode(), partition)
        assert self._producer.flush(30) == 0

    def _event(self, kind: str, seq: int, key: str, type: str) -> Event:
        head = (seq, self.epoch, round(time.time() * 1_000), -1)
        if kind == "created":
            return JobCreated(*head, job=job_spec(key=key, type=type))
        return JobCompleted(*head, key, 1, b"{}") if kind == "completed" else JobDue(*head, key)

    def put(self, partition: int, make: Callable[[int, int, int, int], Event], key: str) -> Event:
        """Write the event that ``make`` gives for the four fields that all events begin with."""
        self.seqs[partition] += 1
        event = make(self.seqs[partition], self.epoch, round(time.time() * 1_000), -1)
        self._producer.produce(self.topic, encode(event), key.encode(), partition)
        return event

    def write(self, *keys: str, partition: int = 0, kind: str = "created", type: str = "work") -> None:
        """A transaction with an event for each key."""
        self.begin()
        self.add(*keys, partition=partition, kind=kind, type=type)
        self.commit()

    def trim(self, offset: int, partition: int = 0) -> None:
        """Drop what stands before ``offset``."""
        place = TopicPartition(self.topic, partition, offset)
        for future in self._admin.delete_records([place]).values():
            future.result(30)
