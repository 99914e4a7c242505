"""How much a worker may read: pauses its partitions while its buffer is full, and resumes them in time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from relevo.consumer.offsets import OffsetTracker

_log: Final = logging.getLogger("relevo.worker")

FULL_WAIT_S: Final = 0.5
PAUSED_WAIT_S: Final = 0.1
TRACKED_PER_BUFFER: Final = 20


class Backpressure:
    """Says how many messages there is room for. Belongs to the consumer's thread.

    A partition that is paused stays the member's own. But what librdkafka had read ahead of it is thrown away
    and read again from the broker after that, so nothing is paused for less than `FULL_WAIT_S` of a full
    buffer, and nothing is resumed for a single message while handlers have enough to do.

    Args:
        tracker: Counts what is unfinished.
        buffer: How many messages may be unfinished at once.
        concurrency: How many are run at once: with so few left, reading goes on.
        meanwhile: Called where it waits for room and the tracker is told to `call`.

    Attributes:
        paused: Whether the partitions are paused.
    """

    def __init__(
        self,
        tracker: OffsetTracker,
        buffer: int,
        concurrency: int,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.paused = False
        self._tracker = tracker
        self._meanwhile = meanwhile
        self._buffer = buffer
        # A job that runs for very long holds back all behind it: what a crash would repeat is bounded too.
        self._tracked_max = TRACKED_PER_BUFFER * buffer
        self._resume_below = max(1, min(buffer, max(concurrency + 1, buffer * 3 // 4)))

    @property
    def free(self) -> int:
        """How many messages there is room for now."""
        if self._tracker.tracked >= self._tracked_max:
            return 0
        return self._buffer - self._tracker.unfinished

    def room(self, consumer: Any) -> int:
        """How many messages may be read now, after waiting a moment for room where there is none."""
        if self._wait(0.0) or self._wait(PAUSED_WAIT_S if self.paused else FULL_WAIT_S):
            self._pause(consumer, False)
            return max(0, self.free)
        self._pause(consumer, True)
        return 0

    def assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """New partitions are as paused as the others."""
        if self.paused:
            self._apply(consumer, partitions)

    def stop(self, consumer: Any) -> None:
        """Read nothing more, also of partitions that come from now on."""
        self._pause(consumer, True)

    def _wait(self, timeout: float) -> bool:
        below = self._resume_below if self.paused else self._buffer
        deadline = time.monotonic() + timeout
        while not self._tracker.wait_below(below, deadline - time.monotonic(), self._tracked_max):
            if time.monotonic() >= deadline:
                return False
            self._meanwhile()
        return True

    def _pause(self, consumer: Any, paused: bool) -> None:
        if paused != self.paused:
            self.paused = paused
            owned = self._tracker.owned()
            self._apply(consumer, [TopicPartition(each.topic, each.partition) for each in owned])

    def _apply(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        try:
            (consumer.pause if self.paused else consumer.resume)(partitions)
        except KafkaException as error:
            _log.debug("pause or resume: %s", error)
