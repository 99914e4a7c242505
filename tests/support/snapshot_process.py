"""A process that takes snapshots of a counter's log, and is gone in the middle of a step.

``python -m tests.support.snapshot_process KAFKA CLUSTER STEP NTH``: grows the log and takes three snapshots;
kills itself when ``STEP`` is reached for the ``NTH`` time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from confluent_kafka import Producer

from relevo_partitions.kafka.connection import Connection
from relevo_partitions.observer import Observer
from relevo_partitions.snapshots.loading import load
from relevo_partitions.snapshots.snapshotter import SnapshotSettings, Snapshotter
from relevo_partitions.snapshots.store import KafkaSnapshots
from relevo_partitions.statemachine import Incoming, StateMachine, Term, Write
from tests.support.counter_machine import CounterMachine

EVENTS = 50


class SnapshotBench:
    """A counter's log in Kafka, and what takes snapshots of it."""

    def __init__(self, kafka: str, cluster: str) -> None:
        self.cluster = cluster
        self.connection = Connection(kafka)
        self.store = KafkaSnapshots(self.connection, cluster, 0, "n1")
        self.producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0, "log_level": 0})
        self.live = CounterMachine(0, cluster)
        self.next_offset = 0
        self.heard = Told()

    def make(self, partition: int) -> StateMachine:
        return CounterMachine(partition, self.cluster)

    def grow(self, count: int = EVENTS) -> None:
        """``count`` more events, acknowledged."""
        writes = [] if self.live.epoch else list(self.live.lead(Term("n1", "i1"), 1))
        while len(writes) < count:
            writes += step_of(self.live)
        for write in writes:
            self.producer.produce(write.topic, write.value, partition=0)
        if self.producer.flush(30):
            raise AssertionError("the log wasn't written")
        self.next_offset += len(writes)

    def snapshotter(self, checkpoint: Callable[[str], None] = lambda name: None) -> Snapshotter:
        settings = SnapshotSettings(events=EVENTS, interval_s=0.0, log_keep_s=0.0)
        return Snapshotter(0, self.store, self.make, self.heard, settings, checkpoint=checkpoint)

    def take(self, snapshotter: Snapshotter) -> None:
        """One snapshot, up to its verification and all that follows."""
        before, deadline = self.heard.over, time.monotonic() + 60
        while self.heard.over == before:
            snapshotter.turn(self.live, self.next_offset)
            if time.monotonic() > deadline:
                raise AssertionError(f"no snapshot within a minute: {self.heard.faults}")
            time.sleep(0.002)

    def recovered(self, observer: Observer | None = None) -> CounterMachine:
        """What a node that starts cold comes to, once it has read the log to its end."""
        loaded = load(0, self.make, self.store, observer or Observer())
        machine, offset = loaded.machine, loaded.log_offset
        assert isinstance(machine, CounterMachine)
        while offset < self.store.log_bounds().end:
            records = self.store.peek(offset, 10_000)
            machine.replay(records)
            offset = records[-1].offset + 1
        return machine


class Told(Observer):
    def __init__(self) -> None:
        self.over = 0
        self.verified = 0
        self.faults: list[str] = []

    def note(self, event: str, **fields: object) -> None:
        self.verified += event == "snapshot_verified"
        self.over += event == "snapshot_retired" or (event == "snapshot_verified" and self.verified == 1)

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        self.faults.append(detail)


def step_of(machine: CounterMachine) -> list[Write]:
    command = Incoming(machine.position, b"", b'{"id": "c%d", "add": %d}' % (machine.seq, machine.seq))
    return list(machine.step([command], machine.seq))


def straight(cluster: str, seq: int) -> CounterMachine:
    """The machine after ``seq`` events, without any log."""
    machine = CounterMachine(0, cluster)
    machine.lead(Term("n1", "i1"), 1)
    while machine.seq < seq:
        step_of(machine)
    return machine


def main(kafka: str, cluster: str, step: str, nth: int) -> None:
    seen = 0

    def checkpoint(name: str) -> None:
        nonlocal seen
        seen += name == step
        if seen == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    bench = SnapshotBench(kafka, cluster)
    snapshotter = bench.snapshotter(checkpoint)
    for _ in range(3):
        bench.grow()
        bench.take(snapshotter)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
