"""How a consumer gets on, for whoever watches the worker: when it last came round, how far behind it is."""

from __future__ import annotations

import logging
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from relevo.consumer.offsets import OffsetTracker

_log: Final = logging.getLogger("relevo.worker")

LOOK_EVERY_S: Final = 1.0


class Reading:
    """Kept by the thread that owns the consumer; anybody may look at it.

    Attributes:
        turned_at: When that thread last came round, in monotonic seconds; 0: not yet.
        member: Whether the group knows it as a member, with or without partitions.
        paused: Whether reading is paused, as the worker is full.
        lag: Offsets that lie in Kafka unread, by partition that is ours. The marks of Kafka's transactions
            count too, until they are passed.
    """

    def __init__(self, tracker: OffsetTracker) -> None:
        self._tracker = tracker
        self._look_at = 0.0
        self.turned_at = 0.0
        self.member = False
        self.paused = False
        self.lag: dict[int, int] = {}

    def came_round(self, consumer: Any, paused: bool, now: float) -> None:
        """The thread has come round at ``now`` (monotonic seconds). Asks nobody outside of this process."""
        self.turned_at = now
        self.paused = paused
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        try:
            self.member = bool(consumer.memberid())
            self.lag = self._measure(consumer)
        except (KafkaException, RuntimeError) as error:
            # An older librdkafka, or a partition that has just gone: the next look tells.
            _log.debug("lag: %s", error)

    def _measure(self, consumer: Any) -> dict[int, int]:
        owned = self._tracker.owned()
        if not owned:
            return {}
        positions = consumer.position([TopicPartition(each.topic, each.partition) for each in owned])
        read = {(each.topic, each.partition): each.offset for each in positions if each.error is None}
        found = {}
        for each in owned:
            place = TopicPartition(each.topic, each.partition)
            ends = consumer.get_watermark_offsets(place, cached=True)
            position = max(
                each.next if each.next is not None else -1, read.get((each.topic, each.partition), -1)
            )
            # Nothing was fetched yet: not known, which is not the same as none.
            if ends is not None and ends[1] >= 0 and position >= 0:
                found[each.partition] = max(0, ends[1] - position)
        return found


__all__ = ["Reading"]
