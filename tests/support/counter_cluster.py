"""A cluster of counters on real Kafka and ZooKeeper: its topics, its hosts, and what stands in its log."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relevo_partitions.errors import NotLeader
from relevo_partitions.host import PartitionHost
from relevo_partitions.observer import Observer
from relevo_partitions.pulse.contact import State
from relevo_partitions.settings import HostSettings
from relevo_partitions.statemachine import Incoming
from relevo_partitions.term.barrier import is_barrier
from relevo_partitions.term.roles import Role
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until

SESSION_TIMEOUT_S = 2.0


class Diary(Observer):
    """Remembers all that one host tells."""

    def __init__(self) -> None:
        self.roles: list[tuple[float, int, str, str]] = []
        self.faults: list[tuple[int | None, str, str]] = []
        self.steps: list[tuple[int, str, float]] = []
        self.handed: list[tuple[int, str, str | None]] = []
        self.leaderless_now: int | None = None

    def role_changed(self, partition: int, before: str, after: str, reason: str) -> None:
        self.roles.append((time.monotonic(), partition, after, reason))

    def takeover_step(self, partition: int, step: str, seconds: float) -> None:
        self.steps.append((partition, step, seconds))

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        self.faults.append((partition, kind, detail))

    def leaderless(self, partitions: int) -> None:
        self.leaderless_now = partitions

    def handed_over(self, partition: int, reason: str, to: str | None, seconds: float) -> None:
        self.handed.append((partition, reason, to))

    def kinds(self) -> set[str]:
        return {kind for _, kind, _ in self.faults}

    def path(self, partition: int) -> list[str]:
        return [after for _, number, after, _ in self.roles if number == partition]


class CounterCluster:
    """Use as a context manager: stops all hosts at the end."""

    def __init__(self, kafka: str, zookeeper: str, name: str, partitions: int = 1) -> None:
        self.kafka, self.zookeeper, self.name, self.partitions = kafka, zookeeper, name, partitions
        self.blocked: set[str] = set()
        self.hosts: dict[str, PartitionHost] = {}
        self._made: list[PartitionHost] = []
        self.diaries: dict[str, Diary] = {}
        self.admin = AdminClient({"bootstrap.servers": kafka})
        self.create_topics("commands", "log")
        self._producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0, "log_level": 0})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._made:
            host.stop(10)

    def create_topics(self, *names: str) -> None:
        topics = [NewTopic(self.topic(name), self.partitions, 1) for name in names]
        for made in self.admin.create_topics(topics).values():
            made.result(30)

    def topic(self, name: str) -> str:
        return f"{self.name}.{name}"

    def settings(self, node: str, **more: Any) -> HostSettings:
        given: dict[str, Any] = {
            "node": node,
            "address": f"{node}.example:1",
            "kafka": self.kafka,
            "zookeeper": self.zookeeper,
            "partitions": self.partitions,
            "cluster": self.name,
            "session_timeout_s": SESSION_TIMEOUT_S,
            "reconcile_s": 0.5,
        }
        return HostSettings(**{**given, **more})

    def machine(self, partition: int) -> CounterMachine:
        return CounterMachine(partition, self.name, lambda: self.blocked)

    def host(
        self, node: str, machine: Callable[[int], Any] | None = None, *, start: bool = True, **more: Any
    ) -> PartitionHost:
        diary = self.diaries.setdefault(node, Diary())
        host = PartitionHost(
            self.settings(node, **more),
            machine or self.machine,
            diary,
            on_topic_failure=lambda topic, _why: self.blocked.add(topic),
        )
        self.hosts[node] = host
        self._made.append(host)
        if start:
            host.start(30)
        return host

    def send(self, partition: int = 0, **command: Any) -> None:
        self._producer.produce(self.topic("commands"), json.dumps(command).encode(), partition=partition)
        if self._producer.flush(30):
            raise AssertionError("a command wasn't acknowledged")

    def send_many(self, count: int, partition: int = 0) -> None:
        """Commands that add 1 each, faster than one at a time."""
        for number in range(count):
            command = json.dumps({"id": f"many-{number}", "add": 1}).encode()
            self._producer.produce(self.topic("commands"), command, partition=partition)
            self._producer.poll(0)
        if self._producer.flush(30):
            raise AssertionError("a command wasn't acknowledged")

    def wait_applied(self, node: str, records: int, partition: int = 0) -> None:
        """The standby of ``node`` has applied so many records."""

        def applied() -> bool:
            standby = self.hosts[node]._supervisor.posts[partition].standby
            return standby is not None and standby.applied >= records

        wait_until(applied, f"{node} has applied {records} records")

    def wait_pulse(self, node: str, of: str) -> None:
        """``node`` holds a connection to the pulse of ``of``: only then can it notice its death."""

        def held() -> bool:
            pulse: Any = self.hosts[node]._supervisor._pulse
            contacts = dict(pulse._watch._contacts)
            return any(peer.node == of and contact.state is State.HELD for peer, contact in contacts.items())

        wait_until(held, f"{node} feels the pulse of {of}")

    def role(self, node: str, partition: int = 0) -> str:
        return self.hosts[node].views()[partition].role

    def leaders(self, partition: int = 0) -> list[str]:
        return [node for node in self.hosts if self.role(node, partition) == Role.LEADING]

    def wait_leader(self, *nodes: str, partition: int = 0, timeout_s: float = 30.0) -> str:
        """The one leader, among ``nodes`` where given."""

        def led() -> bool:
            found = self.leaders(partition)
            return len(found) == 1 and (not nodes or found[0] in nodes)

        wait_until(
            led, f"one of {nodes or tuple(self.hosts)} leads partition {partition}", timeout_s=timeout_s
        )
        return self.leaders(partition)[0]

    def total(self, node: str, partition: int = 0, timeout_s: float = 30.0) -> int:
        return int(self.hosts[node].read(partition, lambda machine: machine.total).result(timeout_s))

    def wait_total(self, total: int, partition: int = 0, timeout_s: float = 30.0) -> None:
        """Some leader, asked by a proven read, has summed up ``total``."""
        seen: list[int] = []

        def summed() -> bool:
            for node in self.leaders(partition):
                try:
                    seen.append(self.total(node, partition))
                except NotLeader:
                    continue
                return seen[-1] == total
            return False

        wait_until(summed, f"partition {partition} sums up {total}", timeout_s=timeout_s)

    def events(self, partition: int = 0) -> list[dict[str, Any]]:
        """All committed events of the log, as a plain consumer reads them."""
        return [json.loads(value) for value in self.log(partition) if not is_barrier(value)]

    def log(self, partition: int = 0) -> list[bytes]:
        return read_all(self.kafka, self.topic("log"), partition)

    def check_log(self, partition: int = 0) -> CounterMachine:
        """A machine that has replayed the log from its beginning: fails where the log is unsound."""
        machine = self.machine(partition)
        records = [value for value in self.log(partition) if not is_barrier(value)]
        machine.replay([Incoming(index, b"", value) for index, value in enumerate(records)])
        return machine


def read_all(kafka: str, topic: str, partition: int, isolation: str = "read_committed") -> list[bytes]:
    """Every value of one Kafka partition that a consumer of that isolation gets to see now."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "check",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return values
                raise AssertionError(str(error))
            values.append(message.value() or b"")
            deadline = time.monotonic() + 30  # as long as it moves
        raise AssertionError(f"the end of {topic} wasn't reached")
    finally:
        consumer.close()


def threads_named(prefix: str) -> list[str]:
    """Names of live threads that begin so."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


@contextmanager
def counter_cluster(brokers: Any, name: str, partitions: int = 1) -> Iterator[CounterCluster]:
    """A cluster on running brokers."""
    with CounterCluster(brokers.kafka, brokers.zookeeper, name, partitions) as cluster:
        yield cluster
