"""Numbered batches over several partitions, and what became of each: by its writer's word, and in Kafka."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined] # its stubs re-export silently
from confluent_kafka.cimpl import NewTopic

from relevo_partitions.kafka.connection import Connection
from relevo_partitions.kafka.fence import ProducerPool, fence
from relevo_partitions.kafka.writer import TransactionalWriter
from relevo_partitions.outcomes import Aborted, Committed, Outcome
from relevo_partitions.statemachine import Write
from tests.support.counter_cluster import read_all

PARTITIONS = 2


class Batches:
    """A log and another topic, and one partition owner's way to them.

    Args:
        kafka: Address of the brokers.
        way: The address that the owner connects to: a proxy's, or the same.
        name: Of the cluster.
        placed: The brokers of each partition's replicas, the first of which leads; only the first by default.
    """

    def __init__(self, kafka: str, way: str, name: str, placed: Sequence[list[int]] = ([1], [1])) -> None:
        self.kafka, self.name = kafka, name
        self._way = way
        self.log, self.other, self.missing = f"{name}.log", f"{name}.other", f"{name}.missing"
        self.at: Callable[[str], None] = lambda _point: None
        self.admin = AdminClient({"bootstrap.servers": kafka})
        topics = [
            NewTopic(topic, PARTITIONS, replica_assignment=list(placed)) for topic in (self.log, self.other)
        ]
        for made in self.admin.create_topics(topics).values():
            made.result(30)

    def writer(self) -> TransactionalWriter:
        """Behind a fence, as after every setback of a term."""
        connection = Connection(self._way)
        producer, faults = fence(ProducerPool(connection, f"{self.name}-0", self.log), lambda: False)
        return TransactionalWriter(producer, faults, connection, self.log, lambda point: self.at(point))

    def batch(self, number: int, size: int = 20, padding: int = 0) -> list[Write]:
        """Records over all partitions that belong together."""
        return [
            Write(topic, partition, b"", b"%d/%d " % (number, nth) + os.urandom(padding))
            for nth in range(size)
            for topic in (self.log, self.other)
            for partition in range(PARTITIONS)
        ]

    def end(self) -> int:
        """Ends of all partitions, added up: records of an open transaction stand below them."""
        latest = {
            TopicPartition(topic, partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for topic in (self.log, self.other)
            for partition in range(PARTITIONS)
        }
        return sum(found.result(10).offset for found in self.admin.list_offsets(latest).values())

    def records(self) -> dict[int, int]:
        """How many committed records of each batch there are."""
        found: Counter[int] = Counter()
        for topic in (self.log, self.other):
            for partition in range(PARTITIONS):
                values = [value.split(b" ")[0] for value in read_all(self.kafka, topic, partition)]
                assert len(values) == len(set(values)), "a record stands there twice"
                found.update(int(value.split(b"/")[0]) for value in values)
        return found


class Ledger:
    """What became of each batch, as its writer was told."""

    def __init__(self, bench: Batches) -> None:
        self._bench = bench
        self._writer = bench.writer()
        self.told: dict[type[Outcome], list[int]] = defaultdict(list)

    def write(self, number: int) -> None:
        """As a term does it: after anything but a commit or a clean abort, a new producer."""
        outcome = self._writer.commit(self._bench.batch(number))
        self.told[type(outcome)].append(number)
        if not isinstance(outcome, Committed | Aborted):
            self._writer.drop()
            self._writer = self._bench.writer()

    def works_on(self, number: int) -> None:
        """What is still on its way may meet the next writes; each that it spoils leads to a new fence."""
        for last in range(number, number + 5):
            self.write(last)
            if last in self.told[Committed]:
                return
        raise AssertionError(f"nothing is committed any more: {dict(self.told)}")

    def check(self) -> None:
        """Each batch is whole or absent, as its writer was told."""
        found = self._bench.records()
        assert set(found.values()) <= {80}, "a part of a batch was committed"
        missing = [number for number in self.told[Committed] if number not in found]
        assert not missing, f"acknowledged, and not there: {missing}"
        there = [number for number in self.told[Aborted] if number in found]
        assert not there, f"rejected, and there: {there}"
