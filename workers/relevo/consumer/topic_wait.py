"""Waits for the topic of a job type, which is made with its first job."""

from __future__ import annotations

import logging
import threading
from typing import Final

from confluent_kafka import Consumer, KafkaException

_log: Final = logging.getLogger("relevo.worker")

CALL_S: Final = 5.0
AGAIN_S: Final = 0.5


def await_topic(consumer: Consumer, topic: str, stop: threading.Event) -> None:
    """Return once ``topic`` is there, or ``stop`` is set; says once what it waits for."""
    told = False
    while not stop.is_set():
        try:
            found = consumer.list_topics(topic, timeout=CALL_S).topics.get(topic)
            missing = found is None or found.error is not None
            problem = f"topic {topic} is not there yet" if missing else None
        except KafkaException as error:
            problem = f"Kafka doesn't answer: {error.args[0].str()}"
        if problem is None:
            return
        if not told:
            _log.warning("waiting: %s", problem)
            told = True
        stop.wait(AGAIN_S)
