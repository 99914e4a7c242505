"""Clients that live for long get their answers from Kafka after a broker's restart, too."""

from __future__ import annotations

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs re-export without saying so
    AdminClient,
    OffsetSpec,
)

from relevo_engine.topic_admin import TopicAdmin
from relevo_partitions.kafka.connection import Connection
from relevo_partitions.kafka.ends import PartitionEnds
from relevo_partitions.kafka.log_care import LogCare
from relevo_partitions.kafka.offsets import ask_offsets
from tests.support.fixtures import StartBrokers


def test_after_a_brokers_restart(own_brokers: StartBrokers, cluster_name: str) -> None:
    """It raises each leader's epoch. An admin client goes on with the former one, and is refused."""
    brokers = own_brokers()
    connection = Connection(brokers.kafka)
    topics = TopicAdmin(brokers.kafka, cluster_name)
    topics.init(1, [], allow_unsafe=True)
    log = f"{cluster_name}.log"
    ends, care, admin = (
        PartitionEnds(connection),
        LogCare(connection, cluster_name, 0),
        AdminClient({"bootstrap.servers": brokers.kafka}),
    )
    earliest = {TopicPartition(log, 0): OffsetSpec.earliest()}  # type: ignore[no-untyped-call]

    def ask() -> None:
        """Each of them twice: what the first question costs is over then."""
        for _ in range(2):
            assert ends.end(log, 0) == 0
            assert care.bounds().end == 0
            assert topics.stability([(log, 0)]).keys() == {(log, 0)}
            found = ask_offsets(admin, earliest, 10.0, IsolationLevel.READ_COMMITTED)
            assert list(found.values()) == [0]

    ask()
    brokers.kafka_servers[0].kill()
    brokers.kafka_servers[0].restart()
    brokers.await_brokers()
    ask()
    care.close()
