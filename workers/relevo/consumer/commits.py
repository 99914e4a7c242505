"""Tells Kafka how far a consumer's partitions are worked off."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from relevo.consumer.offsets import Entry, OffsetTracker, Ownership
from relevo.stats import WorkerStats

_log: Final = logging.getLogger("relevo.worker")

ANSWER_WAIT_S: Final = 10.0
AGAIN_S: Final = 0.25
"""Pause before a refused commit of what is to be run at most once is tried again."""

Granted: TypeAlias = Callable[[list[Entry]], None]
_Wish: TypeAlias = tuple[list[Entry], Granted]


class Commits:
    """Commits what an `OffsetTracker` allows, and notes what Kafka took. Belongs to the consumer's thread.

    A refused commit loses nothing: the next one says the same or more, and if the partition has gone, its new
    owner begins at the last one that was taken. What is run at most once is committed by `wish` and `grant`.

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
        self._lock = threading.Lock()
        self._wishes: list[_Wish] = []
        self._grant_at = 0.0

    def due(self) -> list[TopicPartition]:
        """What may be committed now."""
        return _places([*self._tracker.committable(), *_wished(self._wishes)])

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
        return self._take(consumer, self._tracker.committable(ownerships))

    def _take(self, consumer: Any, due: list[tuple[Ownership, int]]) -> bool:
        if not due:
            return True
        try:
            taken = consumer.commit(offsets=_places(due), asynchronous=False)
        except KafkaException as error:
            self.refused(error.args[0])
            return False
        self._note(taken, [owned for owned, _ in due])
        return all(each.error is None for each in taken)

    def wish(self, entries: list[Entry], granted: Granted) -> None:
        """Commit these before they are run. For any thread.

        ``granted`` is called from the consumer's thread, once for each of them: when Kafka has taken it as
        worked off (`Entry.committed`: it must be run now), or when it belongs to another worker
        (`Entry.gone`).
        """
        with self._lock:
            self._wishes.append((entries, granted))
        self._tracker.call()

    def grant(self, consumer: Any) -> None:
        """Commit what was wished for, wait for the answer, and tell.

        Kafka may take it for some partitions only: what it didn't take is asked for again, and isn't run
        before. If the partition goes while an answer is lost, it is not run here, and may be run nowhere.
        """
        self._tracker.heed()
        with self._lock:
            wishes, self._wishes = self._wishes, []
        if not wishes:
            return
        now = time.monotonic()
        if now >= self._grant_at and not self._take(consumer, self._due_first(wishes)):
            self._grant_at = now + AGAIN_S
        left: list[_Wish] = []
        for entries, granted in wishes:
            answered = [entry for entry in entries if _is_answered(entry)]
            if answered:
                granted(answered)
            if len(answered) < len(entries):
                left.append(([entry for entry in entries if not _is_answered(entry)], granted))
        with self._lock:
            self._wishes = left + self._wishes

    def _due_first(self, wishes: list[_Wish]) -> list[tuple[Ownership, int]]:
        due = _wished(wishes)
        for owned, offset in due:
            if owned.ended:
                # Its partition was made anew: Kafka has this message no more, and gives it to nobody.
                self._tracker.committed(owned, offset)
        return [(owned, offset) for owned, offset in due if not owned.ended]

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


def _is_answered(entry: Entry) -> bool:
    return entry.committed or entry.gone


def _wished(wishes: Iterable[_Wish]) -> list[tuple[Ownership, int]]:
    """Up to where to commit for the sake of these."""
    due: dict[Ownership, int] = {}
    for entries, _ in wishes:
        for entry in entries:
            if not _is_answered(entry):
                due[entry.ownership] = max(due.get(entry.ownership, 0), entry.offset + 1)
    return list(due.items())


def _places(due: list[tuple[Ownership, int]]) -> list[TopicPartition]:
    return [TopicPartition(owned.topic, owned.partition, offset) for owned, offset in due]
