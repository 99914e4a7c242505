"""What a worker does when the next message of a partition is gone: deleted, or its topic made anew."""

from __future__ import annotations

import logging
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from relevo.consumer.offsets import OffsetTracker

_log: Final = logging.getLogger("relevo.worker")

GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


def begin_anew(consumer: Consumer, tracker: OffsetTracker, message: Message) -> list[TopicPartition]:
    """Read the partition named by the error in ``message`` from where it begins now.

    Returns what was assigned anew, which isn't paused.

    librdkafka would do that by itself and say nothing, and its new offsets would be taken for old ones.
    """
    topic, partition = message.topic(), message.partition()
    if topic is None or partition is None:
        return []
    if not any((each.topic, each.partition) == (topic, partition) for each in consumer.assignment()):
        return []  # it went to somebody else meanwhile
    # Where no position was known the group has none yet, and a new topic's beginning is nothing to tell of.
    if tracker.replace(topic, partition):
        _log.warning(
            "%s [%d]: the next message is gone (deleted, or the topic was made anew): reading what there is",
            topic,
            partition,
        )
    place = TopicPartition(topic, partition, OFFSET_BEGINNING)
    try:
        consumer.incremental_unassign([TopicPartition(topic, partition)])
        consumer.incremental_assign([place])
    except KafkaException as error:
        _log.warning("%s [%d]: can't be read on: %s", topic, partition, error.args[0].str())
        return []
    return [place]
