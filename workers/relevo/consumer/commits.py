"""Tells Kafka how far a consumer's partitions are worked off."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from relevo.consumer.offsets import OffsetTracker, Ownership
from relevo.stats import WorkerStats

_log: Final = logging.getLogger("relevo.worker")

ANSWER_WAIT_S: Final = 10.0


class Commits:
    """Commits what an `OffsetTracker` allows, and notes what Kafka took. Belongs to the consumer's thread.

    A refused commit loses nothing: the next one says the same or more, and if the partition has gone, its new
    owner begins at the last one that was taken.

    Args:
        topic: The topic, for logs.
        tracker: Says what may be committed.
        stats: Counters.
        on_fatal: Called with an error after which the consumer is of no more use.
    """

    def __init__(
        self, topic: str, tracker: OffsetTracker, stats: WorkerStats, on_fatal: Callable[[KafkaError], None]
    ) -> None:
        self._topic = topic
        self._tracker = tracker
        self._stats = stats
        self._on_fatal = on_fatal
        self._asked_at: float | None = None
        self._asked: list[Ownership] = []

    def due(self) -> list[TopicPartition]:
        """What may be committed now."""
        return _places(self._tracker.committable())

    def ask(self, consumer: Any) -> None:
        """Commit without waiting for the answer, unless the last one is still to come.

        librdkafka keeps every commit while it looks for the coordinator: four a second would pile up, and all
        but the last say too little.
        """
        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at < ANSWER_WAIT_S:
            return
        due = self._tracker.committable()
        if not due:
            return
        self._asked_at = now
        self._asked = [owned for owned, _ in due]
        try:
            consumer.commit(offsets=_places(due), asynchronous=True)
        except KafkaException as error:
            self._asked_at = None
            self.refused(error.args[0])

    def now(self, consumer: Any, ownerships: list[Ownership]) -> bool:
        """Commit these and wait for the answer; whether Kafka took all of it."""
        due = self._tracker.committable(ownerships)
        if not due:
            return True
        try:
            taken = consumer.commit(offsets=_places(due), asynchronous=False)
        except KafkaException as error:
            self.refused(error.args[0])
            return False
        self._note(taken, ownerships)
        return all(each.error is None for each in taken)

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Called by librdkafka with the answer to `ask`."""
        self._asked_at = None
        if error is not None:
            self.refused(error)
        else:
            self._note(partitions, self._asked)

    def refused(self, error: KafkaError) -> None:
        """Count and tell a refusal."""
        if error.code() == KafkaError._NO_OFFSET:
            return
        self._stats.add("commit_errors")
        _log.info("commit for %s refused: %s", self._topic, error.str())
        if error.code() == KafkaError._FATAL:
            self._on_fatal(error)

    def _note(self, partitions: list[TopicPartition], asked: list[Ownership]) -> None:
        # An answer is for the ownership that asked: the partition may have gone and come back meanwhile.
        owned = {(each.topic, each.partition): each for each in asked}
        for each in partitions:
            if each.error is not None:
                self.refused(each.error)
            elif each.offset >= 0 and (each.topic, each.partition) in owned:
                self._tracker.committed(owned[each.topic, each.partition], each.offset)
                self._stats.add("commits")


def _places(due: list[tuple[Ownership, int]]) -> list[TopicPartition]:
    return [TopicPartition(owned.topic, owned.partition, offset) for owned, offset in due]
