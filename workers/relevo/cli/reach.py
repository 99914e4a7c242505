"""Looks whether Kafka and the cluster are there at all, before a command waits for what can't come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from relevo.errors import ClusterNotFound, Refused
from relevo.kafka_options import no_topic, options_for_producer, unreachable
from relevo.names import check_cluster, commands_topic

_TIMEOUT_S: Final = 10.0
"""Nobody waits longer for this, however long they would wait for the answer to a job."""


def require_cluster(kafka: str, cluster: str, options: Mapping[str, str], timeout_s: float) -> None:
    """Asks Kafka for the cluster's topic of commands, for ``timeout_s`` seconds and no longer than 10.

    Raises:
        Unreachable: Kafka doesn't answer.
        ClusterNotFound: It does, and has no such cluster.
        ConfigurationError: An option contradicts what delivery rests on.
    """
    topic = commands_topic(check_cluster(cluster))
    client = AdminClient(options_for_producer(kafka, options))
    try:
        found = client.list_topics(topic, timeout=min(timeout_s, _TIMEOUT_S)).topics.get(topic)
    except KafkaException as error:
        raise unreachable(kafka, error) from error
    if found is not None and found.error is not None:
        refusal = no_topic(kafka, topic, found.error)
        if isinstance(refusal, Refused):
            raise refusal
    if found is None or found.error is not None:
        raise ClusterNotFound(
            f"Kafka at {kafka} has no topic {topic}: is its name right? `relevo topics init` makes it"
        )
