"""Kafka's part, as lists: partitions of records, and the offsets of groups."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple


class Stored(NamedTuple):
    """One record as it stands in a partition."""

    key: bytes
    value: bytes


class MemoryMessage:
    """A record as a consumer or a delivery report gives it."""

    __slots__ = ("_offset", "_partition", "_record", "_topic")

    def __init__(self, topic: str, partition: int, offset: int, record: Stored) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._record = record

    def topic(self) -> str:
        """Its topic."""
        return self._topic

    def partition(self) -> int:
        """Its partition."""
        return self._partition

    def offset(self) -> int:
        """Its offset."""
        return self._offset

    def key(self) -> bytes:
        """Its key."""
        return self._record.key

    def value(self) -> bytes:
        """Its value."""
        return self._record.value

    def error(self) -> None:
        """No error: lists have none."""


Told = Callable[[int, int, Stored], None]


class MemoryKafka:
    """Topics of a cluster. Safe to use from several threads.

    Attributes:
        committed: Offsets by group, topic and partition.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[tuple[str, int], list[Stored]] = defaultdict(list)
        self._listeners: dict[str, list[Told]] = defaultdict(list)
        self.committed: dict[tuple[str, str, int], int] = {}

    def append(self, topic: str, partition: int, key: bytes, value: bytes) -> int:
        """Add a record; returns its offset."""
        record = Stored(key, value)
        with self._lock:
            records = self._partitions[topic, partition]
            records.append(record)
            offset = len(records) - 1
            listeners = list(self._listeners[topic])
        for told in listeners:
            told(partition, offset, record)
        return offset

    def listen(self, topic: str, told: Told) -> None:
        """Call ``told`` with every record of a topic from now on."""
        with self._lock:
            self._listeners[topic].append(told)

    def unlisten(self, topic: str, told: Told) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners[topic].remove(told)

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[MemoryMessage]:
        """At most ``limit`` records from ``offset`` on."""
        with self._lock:
            found = self._partitions[topic, partition][offset : offset + limit]
        return [MemoryMessage(topic, partition, offset + at, each) for at, each in enumerate(found)]

    def end(self, topic: str, partition: int) -> int:
        """The offset of the next record."""
        with self._lock:
            return len(self._partitions[topic, partition])
