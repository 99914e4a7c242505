"""The log as a test reads it: decoded events in the order in which they were written."""

from __future__ import annotations

import threading

from relevo.events.events import JobEvent
from relevo.testing.inmemory.kafka import MemoryKafka, Stored
from relevo_schemas.codec import decode
from relevo_schemas.records import Event


class Logbook:
    """Everything that was written to the log topic. Decodes when it is read."""

    def __init__(self, kafka: MemoryKafka, topic: str) -> None:
        self._lock = threading.Lock()
        self._written: list[tuple[int, int, Stored]] = []
        self._events: list[JobEvent] = []
        self._by_key: dict[str, list[JobEvent]] = {}
        self._read = 0
        kafka.listen(topic, self._told)

    def _told(self, partition: int, offset: int, record: Stored) -> None:
        self._written.append((partition, offset, record))

    def events(self) -> list[JobEvent]:
        """All events."""
        with self._lock:
            self._catch_up()
            return list(self._events)

    def history(self, key: str) -> list[JobEvent]:
        """All events about one job."""
        with self._lock:
            self._catch_up()
            return list(self._by_key.get(key, ()))

    def keys(self) -> list[str]:
        """Keys of all jobs that there are events of."""
        with self._lock:
            self._catch_up()
            return list(self._by_key)

    def _catch_up(self) -> None:
        new = self._written[self._read :]
        self._read += len(new)
        for partition, offset, record in new:
            event = decode(record.value)
            if not isinstance(event, Event):
                continue  # a barrier
            found = JobEvent(partition, offset, type(event).__name__, record.key.decode(), event)
            self._events.append(found)
            if found.key:
                self._by_key.setdefault(found.key, []).append(found)
