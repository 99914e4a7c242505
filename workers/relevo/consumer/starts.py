"""Where partitions go on that a worker has just got, and how far they may have been started before."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from relevo.consumer.offsets import OffsetTracker

_log: Final = logging.getLogger("relevo.worker")

CALL_S: Final = 5.0


def starts_of(
    consumer: Any, topic: str, partitions: list[TopicPartition]
) -> list[tuple[TopicPartition, int | None, int | None]]:
    """For each partition where it goes on (None: librdkafka has to find out), and where it ends now.

    None as the end: Kafka didn't say, see `learn_ends`.
    """
    deadline = time.monotonic() + CALL_S
    found: list[tuple[TopicPartition, int | None, int | None]] = []
    try:
        for each in consumer.committed(partitions, timeout=CALL_S):
            left = max(0.1, deadline - time.monotonic())
            low, high = consumer.get_watermark_offsets(each, timeout=left)
            start = None if each.error is not None else each.offset if each.offset >= 0 else low
            found.append((each, start, high))
    except KafkaException as error:
        _log.info("positions of %s: %s", topic, error)
    known = {each.partition for each, _, _ in found}
    return found + [(each, None, None) for each in partitions if each.partition not in known]


def learn_ends(consumer: Any, tracker: OffsetTracker) -> bool:
    """Note where partitions end of which that could not be had before; whether all are known now.

    librdkafka knows it once it has read something, which is later than the assignment: what came in between
    is taken for doubtful too, and only costs a question each.
    """
    complete = True
    for owned in tracker.owned():
        if owned.doubtful_below is None:
            owned.doubtful_below = _cached_end(consumer, TopicPartition(owned.topic, owned.partition))
            complete = complete and owned.doubtful_below is not None
    return complete


def _cached_end(consumer: Any, place: TopicPartition) -> int | None:
    try:
        ends = consumer.get_watermark_offsets(place, cached=True)
    except KafkaException as error:
        _log.debug("end of %s [%d]: %s", place.topic, place.partition, error)
        return None
    return ends[1] if ends is not None and ends[1] >= 0 else None
