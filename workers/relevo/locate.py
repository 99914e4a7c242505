"""Finds a command's consequences in the log without reading all of it."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from relevo_schemas.codec import decode
from relevo_schemas.errors import RecordError
from relevo_schemas.records import Event

CALL_S: Final = 5.0
BATCH_MAX: Final = 500


def search(consumer: Consumer, topic: str, partition: int, source: int, at_ms: int) -> int:
    """A position from which on the events caused by the command at ``source`` can be read.

    Starts a little before the command by the clocks, and further back while what stands there comes after it.

    Every event caused by a command names its offset, rising within a partition: where the first such event
    names ``source`` or a smaller one, nothing that ``source`` caused lies before it.
    """
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CALL_S)
    if low >= high:
        return int(low)
    for margin_ms in (1_000, 30_000, 600_000):
        moment = TopicPartition(topic, partition, max(0, at_ms - margin_ms))
        found = consumer.offsets_for_times([moment], timeout=CALL_S)[0].offset
        if found < 0 or found <= low:
            continue
        first = _first_source(consumer, topic, partition, found, high)
        consumer.unassign()
        if first is not None and first <= source:
            return int(found)
    return int(low)


def _first_source(consumer: Consumer, topic: str, partition: int, start: int, end: int) -> int | None:
    """The first command named by an event from ``start`` on; None: none before ``end``."""
    consumer.assign([TopicPartition(topic, partition, start)])
    deadline = time.monotonic() + CALL_S
    while time.monotonic() < deadline:
        for message in consumer.consume(BATCH_MAX, 0.05):
            if message.error() is not None:
                continue
            try:
                event = decode(message.value())
            except RecordError:
                continue
            if isinstance(event, Event) and event.source >= 0:
                return event.source
            if (message.offset() or 0) >= end - 1:
                return None
        position = consumer.position([TopicPartition(topic, partition)])[0].offset
        if position >= end:
            return None
    return None
