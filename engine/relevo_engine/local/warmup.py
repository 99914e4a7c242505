"""Makes a fresh cluster do once what would otherwise slow down its first user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from relevo_engine.local.errors import LocalError
from relevo_engine.local.kafka import COORDINATOR_PARTITIONS, client_settings

_TIMEOUT_S = 30.0


def warm_coordinators(bootstrap: str) -> None:
    """Has the transaction and the group coordinators made and loaded.

    The first transactional producer of a fresh cluster waits about a second while the transaction topic is
    made, and then each of that topic's partitions has to be loaded. The same is true of the first consumer
    group.

    Raises:
        LocalError: The coordinators did not answer in time.
    """
    # Names that differ by one in their last letter differ by one in Kafka's hash, so they reach all
    # partitions.
    names = [f"relevo-warm-up-{number}" for number in range(COORDINATOR_PARTITIONS)]
    with ThreadPoolExecutor(max_workers=2 * len(names)) as pool:
        calls = [pool.submit(_begin_transactions, bootstrap, name) for name in names]
        calls += [pool.submit(_find_group, bootstrap, name) for name in names]
        for call in calls:
            call.result()


def _begin_transactions(bootstrap: str, transactional_id: str) -> None:
    from confluent_kafka import KafkaException, Producer

    producer = Producer(
        {**client_settings(bootstrap), "transactional.id": transactional_id, "retry.backoff.ms": 20}
    )
    try:
        producer.init_transactions(_TIMEOUT_S)
    except KafkaException as error:
        raise LocalError(
            f"Kafka at {bootstrap} has no transaction coordinator after {_TIMEOUT_S:g} s: {error}"
        ) from error


def _find_group(bootstrap: str, group: str) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer({**client_settings(bootstrap), "group.id": group, "retry.backoff.ms": 20})
    try:
        consumer.committed([TopicPartition("relevo-warm-up", 0)], timeout=_TIMEOUT_S)
    except KafkaException as error:
        raise LocalError(
            f"Kafka at {bootstrap} has no group coordinator after {_TIMEOUT_S:g} s: {error}"
        ) from error
    finally:
        consumer.close()
