"""Makes a fresh cluster do once what would otherwise slow down its first user."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from relevo_engine.local.errors import LocalError
from relevo_engine.local.kafka import COORDINATOR_PARTITIONS, client_settings

_TIMEOUT_S = 60.0
_CALL_TIMEOUT_S = 10.0
_PAUSE_S = 0.05


def warm_coordinators(bootstrap: str) -> None:
    """Has the transaction and the group coordinators made and loaded.

    The first transactional producer of a fresh cluster waits about a second while the transaction topic is
    made, and then each of its partitions has to be loaded. The same is true of the first consumer group.

    Raises:
        LocalError: The coordinators did not answer in time.
    """
    # Names that differ by one in their last letter differ by one in Kafka's hash: they reach all partitions.
    names = [f"relevo-warm-up-{number}" for number in range(COORDINATOR_PARTITIONS)]
    with ThreadPoolExecutor(max_workers=2 * len(names)) as pool:
        calls = [pool.submit(_begin_transactions, bootstrap, name) for name in names]
        calls += [pool.submit(_find_group, bootstrap, name) for name in names]
        for call in calls:
            call.result()


def _begin_transactions(bootstrap: str, transactional_id: str) -> None:
    from confluent_kafka import Producer

    settings = client_settings(bootstrap) | {"transactional.id": transactional_id, "retry.backoff.ms": 20}
    producer = Producer(settings)
    _until_it_works(bootstrap, "transaction", lambda: producer.init_transactions(_CALL_TIMEOUT_S))


def _find_group(bootstrap: str, group: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(client_settings(bootstrap) | {"group.id": group, "retry.backoff.ms": 20})
    some = [TopicPartition("relevo-warm-up", 0)]
    try:
        _until_it_works(bootstrap, "group", lambda: consumer.committed(some, timeout=_CALL_TIMEOUT_S))
    finally:
        consumer.close()


def _until_it_works(bootstrap: str, kind: str, call: Callable[[], object]) -> None:
    """Calls again while the coordinators are still on their way from broker to broker."""
    from confluent_kafka import KafkaError, KafkaException

    passing = {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
    }
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            call()
            return
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if time.monotonic() > deadline or not (error.retriable() or error.code() in passing):
                raise LocalError(
                    f"Kafka at {bootstrap} has brokers, but no {kind} coordinator: {error.str()}"
                ) from failure
        time.sleep(_PAUSE_S)
