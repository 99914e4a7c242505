"""The engine's part: the real state machine of every partition, its records in lists."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from relevo import names
from relevo.errors import MissingExtra
from relevo.testing.inmemory.clock import VirtualClock
from relevo.testing.inmemory.kafka import MemoryKafka
from relevo_schemas.codec import encode
from relevo_schemas.delivery import Barrier
from relevo_schemas.partitioning import partition_of

if TYPE_CHECKING:
    from relevo_engine.core.channels import Channel
    from relevo_engine.machine import PartitionMachine
    from relevo_partitions.statemachine import Write

_BATCH = 500


class TypeChannels:
    """Activation topics: those of the types that are known are there."""

    def __init__(self, types: set[str], slots: int) -> None:
        self._types = types
        self._slots = slots

    def channel(self, job_type: str) -> Channel:
        """As `relevo_engine.core.channels.Channels`."""
        from relevo_engine.core.channels import MISSING, Channel, ChannelState

        return Channel(ChannelState.OPEN, self._slots) if job_type in self._types else MISSING

    def may_create(self, job_type: str) -> bool:
        """As `relevo_engine.core.channels.Channels`."""
        return False


class Leaders:
    """The leaders of all partitions, one process' worth. Safe to use from several threads.

    Args:
        kafka: The lists.
        clock: The time.
        cluster: Name of the cluster.
        partitions: How many there are.
        types: Job types that there are; may grow.

    Raises:
        MissingExtra: The engine is not installed.
    """

    def __init__(
        self, kafka: MemoryKafka, clock: VirtualClock, cluster: str, partitions: int, types: set[str]
    ) -> None:
        self._kafka = kafka
        self._clock = clock
        self._cluster = cluster
        self._lock = threading.RLock()
        self._channels = TypeChannels(types, partitions)
        self._commands = names.commands_topic(cluster)
        self._log = names.log_topic(cluster)
        self._bugs: list[Exception] = []
        self._terms = 0
        self._read = [0] * partitions
        try:
            self._machines = [self._machine(number) for number in range(partitions)]
        except ImportError as error:
            raise MissingExtra("relevo.testing.Engine", "engine") from error
        for number in range(partitions):
            self._lead(number)

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return len(self._read)

    def _machine(self, partition: int) -> PartitionMachine:
        from relevo_engine.core.rules import Rules
        from relevo_engine.machine import PartitionMachine

        rules = Rules(partitions=self.partitions, partition=partition)
        return PartitionMachine(
            rules,
            self._channels,
            cluster=self._cluster,
            report_bug=lambda number, offset, error: self._bugs.append(error),
        )

    def _lead(self, partition: int) -> None:
        from relevo_partitions.statemachine import Term

        self._terms += 1
        term = Term(node=f"node-{self._terms}", incarnation=f"{self._terms:08x}")
        self._write(self._machines[partition].lead(term, self._clock.now_ms))

    def _write(self, writes: Any) -> None:
        write: Write
        for write in writes:
            self._kafka.append(write.topic, write.partition, write.key, write.value)

    def step(self, only: int | None = None) -> bool:
        """Decide all commands, work off what is due, hand out what can be; whether there was any.

        Args:
            only: A partition; None: all of them.
        """
        numbers = range(self.partitions) if only is None else (only,)
        with self._lock:
            moved = [self._step(number) for number in numbers]
        if self._bugs:
            raise self._bugs[0]
        return any(moved)

    def _step(self, partition: int) -> bool:
        from relevo_partitions.statemachine import Incoming

        machine, moved = self._machines[partition], False
        while True:
            found = self._kafka.read(self._commands, partition, self._read[partition], _BATCH)
            if not found and machine.wait_ms(self._clock.now_ms) != 0:
                return moved
            writes = machine.step(
                [Incoming(each.offset(), each.key(), each.value()) for each in found], self._clock.now_ms
            )
            self._read[partition] += len(found)
            self._write(writes)
            if not found and not writes:
                return moved
            moved = True

    def next_ms(self) -> int | None:
        """When time alone leads to something, in milliseconds since the Unix epoch; None: never."""
        now = self._clock.now_ms
        with self._lock:
            waits = [machine.wait_ms(now) for machine in self._machines]
        return min((now + wait for wait in waits if wait is not None), default=None)

    def view(self, key: str) -> dict[str, Any] | None:
        """What the leader of the job's partition knows of it."""
        with self._lock:
            return self._machines[partition_of(key, self.partitions)].view(key)

    def failover(self) -> None:
        """Throw every leader away; others rebuild the state from the log, announce themselves, and lead.

        Raises:
            InvariantBroken: The rebuilt state differs: a bug of the engine.
        """
        from relevo_engine.core.errors import InvariantBroken
        from relevo_partitions.statemachine import Incoming

        with self._lock:
            for number, former in enumerate(self._machines):
                barrier = encode(Barrier(f"node-{self._terms + 1}", "", f"{self._terms}"))
                self._kafka.append(self._log, number, b"", barrier)
                machine = self._machine(number)
                end = self._kafka.end(self._log, number)
                machine.replay(
                    [
                        Incoming(each.offset(), each.key(), each.value())
                        for each in self._kafka.read(self._log, number, 0, end)
                    ]
                )
                if machine.state_hash() != former.state_hash():
                    raise InvariantBroken(
                        f"partition {number}: replay of the log leads to another state than its leader had"
                    )
                self._machines[number] = machine
                # What its log speaks of is decided; what isn't there is read again, as after a real failover.
                self._read[number] = machine.position
                self._lead(number)
