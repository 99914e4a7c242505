"""The engine's real state machine on real topics, without election: one thread that leads every partition.

For tests of clients and workers, which see nothing but topics. It fences and writes transactions as a node
does; it has no standby, and knows nothing of ZooKeeper.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from relevo_engine.core.rules import Rules
from relevo_engine.machine import PartitionMachine
from relevo_engine.topic_admin import TopicAdmin
from relevo_engine.topics import commands_topic, log_topic
from relevo_engine.types import TypeDirectory
from relevo_partitions.statemachine import Incoming, Term, Write

_IDLE_S = 0.01
_LEADER_WAIT_S = 30.0
_NO_LEADER = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
_BATCH_MAX = 1_000


class EngineThread:
    """Leads all partitions of a cluster until it is stopped. Starting another one is a failover.

    Args:
        kafka: Bootstrap servers.
        cluster: The cluster's name.
        partitions: How many it has.
        types: Job types whose topics are made at once.
        rules: `Rules` fields that differ from the defaults.
    """

    def __init__(
        self, kafka: str, cluster: str, partitions: int = 2, types: Sequence[str] = (), **rules: int
    ) -> None:
        self.kafka = kafka
        self.cluster = cluster
        self.partitions = partitions
        self._rules = rules
        self._types = types
        self._stop = threading.Event()
        self._pause = threading.Event()
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.error: BaseException | None = None

    def start(self) -> EngineThread:
        """Make the topics, take over, and return when it leads."""
        admin = TopicAdmin(self.kafka, self.cluster)
        admin.init(self.partitions, self._types, allow_unsafe=True)
        self._directory = TypeDirectory(admin, self.cluster, self.partitions, 100)
        self._directory.start()
        self._thread.start()
        while not self._running.wait(0.1):
            if self.error is not None:
                raise AssertionError("the engine thread failed") from self.error
        return self

    def pause(self) -> None:
        """Decide nothing until `resume`."""
        self._pause.set()

    def resume(self) -> None:
        """Go on."""
        self._pause.clear()

    def stop(self) -> None:
        """End it; the log stays."""
        self._stop.set()
        self._thread.join(30)
        self._directory.stop()

    def __enter__(self) -> EngineThread:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            leaders = [_Leader(self, partition) for partition in range(self.partitions)]
            self._running.set()
            while not self._stop.is_set():
                if self._pause.is_set():
                    time.sleep(_IDLE_S)
                    continue
                busy = [leader.turn() for leader in leaders]
                if not any(busy):
                    time.sleep(_IDLE_S)
            for leader in leaders:
                leader.consumer.close()
        except BaseException as error:
            self.error = error

    def machine(self, partition: int) -> PartitionMachine:
        rules = Rules(partitions=self.partitions, partition=partition, **self._rules)
        return PartitionMachine(rules, self._directory, cluster=self.cluster)


class _Leader:
    def __init__(self, engine: EngineThread, partition: int) -> None:
        self.partition = partition
        self.producer = Producer(
            {
                "bootstrap.servers": engine.kafka,
                "transactional.id": f"{engine.cluster}-{partition}",
                "partitioner": "murmur2",
                "transaction.timeout.ms": 10_000,
                "retry.backoff.ms": 10,
                "linger.ms": 0,
            }
        )
        self.producer.init_transactions(30)
        self.consumer = Consumer(
            {
                "bootstrap.servers": engine.kafka,
                "group.id": f"{engine.cluster}.test-engine",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self.machine = engine.machine(partition)
        self._replay(log_topic(engine.cluster))
        node = Term("test", secrets.token_hex(4))
        self._write(self.machine.lead(node, self._now()))
        self.consumer.assign(
            [TopicPartition(commands_topic(engine.cluster), partition, self.machine.position)]
        )

    def _now(self) -> int:
        return max(self.machine.last_at, round(time.time() * 1_000))

    def _end(self, place: TopicPartition) -> int:
        """The partition's end; a topic just made may not have a leader yet."""
        deadline = time.monotonic() + _LEADER_WAIT_S
        while True:
            try:
                return int(self.consumer.get_watermark_offsets(place, timeout=30)[1])
            except KafkaException as error:
                if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline:
                    raise
                time.sleep(_IDLE_S)

    def _replay(self, topic: str) -> None:
        place = TopicPartition(topic, self.partition, 0)
        end = self._end(place)
        self.consumer.assign([place])
        while end and self._position(place) < end:
            records = [
                _incoming(message)
                for message in self.consumer.consume(_BATCH_MAX, 0.05)
                if message.error() is None
            ]
            self.machine.replay(records)
            if not records and self._only_control_left(place, end):
                break

    def _only_control_left(self, place: TopicPartition, end: int) -> bool:
        # The last offsets of a transactional log are commit markers, which no reader gets.
        return end - max(self._position(place), 0) <= 2 or self._position(place) < 0

    def _position(self, place: TopicPartition) -> int:
        return self.consumer.position([place])[0].offset

    def turn(self) -> bool:
        """One step; whether there was anything to do."""
        first = self.consumer.poll(0)
        messages = [first, *self.consumer.consume(_BATCH_MAX - 1, 0)] if first is not None else []
        commands = [_incoming(message) for message in messages if message.error() is None]
        if not commands and self.machine.wait_ms(self._now()) != 0:
            return False
        writes = self.machine.step(commands, self._now())
        if writes:
            self._write(writes)
        return bool(commands or writes)

    def _write(self, writes: Sequence[Write]) -> None:
        self.producer.begin_transaction()
        for topic, partition, key, value in writes:
            while True:
                try:
                    self.producer.produce(topic, value, key, partition)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        try:
            self.producer.commit_transaction(30)
        except KafkaException as error:
            raise AssertionError(f"the test engine could not commit: {error}") from error


def _incoming(message: Message) -> Incoming:
    return Incoming(message.offset() or 0, message.key(), message.value())
