"""Somebody else's open transaction: readers of committed records stand still, and no call fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

import relevo
from relevo_engine.api.client import ApiClient, ApiError
from relevo_engine.topic_admin import TopicAdmin
from relevo_schemas.partitioning import partition_of
from tests.support.brokers import Brokers
from tests.support.counter_cluster import read_all
from tests.support.kafka_tools import transactions
from tests.support.nodes import NodeProcess
from tests.support.nodes import relevo as command
from tests.support.waiting import wait_until

PARTITIONS = 4
LOG_HELD, COMMANDS_HELD, ACTIVATIONS_HELD, FREE = range(PARTITIONS)
LIMIT_S = "11"
WAIT_S = 120.0


@pytest.fixture
def nodes(brokers: Brokers, cluster_name: str) -> Iterator[list[NodeProcess]]:
    """Two, so that each partition has a leader and a standby."""
    TopicAdmin(brokers.kafka, cluster_name).init(PARTITIONS, ["mail"], allow_unsafe=True)
    flags = (
        "--kafka", brokers.kafka, "--zookeeper", brokers.zookeeper, "--cluster", cluster_name,
        "--partitions", str(PARTITIONS), "--allow-unsafe-topics",
    )  # fmt: skip
    with ExitStack() as stack:
        started = [
            stack.enter_context(NodeProcess("--node-id", name, *flags, RELEVO_HELD_BACK_S=LIMIT_S))
            for name in ("a", "b")
        ]
        for node in started:
            node.await_ready()
        wait_until(
            lambda: all(
                row["standbys"] and row["standbys"][0]["hot"]
                for row in ApiClient(started[0].address).get("/v1/partitions")["partitions"]
            ),
            "every partition has a hot standby",
        )
        yield started


def hang(kafka: str, topic: str, partition: int) -> Producer:
    """Leave a transaction open for a quarter of an hour, as a program that hangs does."""
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "transactional.id": f"foreign-{topic}-{partition}",
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"never to be read", partition=partition)
    assert producer.flush(30) == 0
    return producer


def key_in(partition: int, name: str) -> str:
    return next(key for n in range(1_000) if partition_of(key := f"{name}-{n}", PARTITIONS) == partition)


def scrapes(nodes: list[NodeProcess]) -> str:
    return "".join(ApiClient(node.address)._ask("/metrics", None)[2].decode() for node in nodes)


def test_the_alarm_names_the_place_and_the_documented_command_ends_it(
    brokers: Brokers, cluster_name: str, nodes: list[NodeProcess]
) -> None:
    activations = f"{cluster_name}.activations.mail"
    held = {
        (f"{cluster_name}.log", LOG_HELD),
        (f"{cluster_name}.commands", COMMANDS_HELD),
        (activations, ACTIVATIONS_HELD),
    }
    foreign = [hang(brokers.kafka, topic, partition) for topic, partition in held]
    api = ApiClient(nodes[0].address)
    with relevo.Client(brokers.kafka, cluster=cluster_name) as client:
        for partition in (LOG_HELD, COMMANDS_HELD, ACTIVATIONS_HELD):
            client.create("mail", key=key_in(partition, "held"))

        def alarmed() -> bool:
            text = scrapes(nodes)
            return all(
                f'relevo_held_back_records{{partition="{partition}",topic="{topic}"}}' in text
                for topic, partition in held
            )

        wait_until(alarmed, "all are told", timeout_s=WAIT_S)
        assert scrapes(nodes).count("relevo_held_back_records{") == len(held)
        rows = api.get("/v1/partitions")["partitions"]
        assert rows[LOG_HELD]["held_back"] is None, "its leader goes on"
        assert f"{cluster_name}.log [{LOG_HELD}]: " in rows[LOG_HELD]["standbys"][0]["held_back"]
        assert f"{cluster_name}.commands [{COMMANDS_HELD}]: " in rows[COMMANDS_HELD]["held_back"]
        assert f"{activations} [{ACTIVATIONS_HELD}]: " in rows[ACTIVATIONS_HELD]["held_back"]
        assert rows[ACTIVATIONS_HELD]["standbys"][0]["held_back"] is None
        assert rows[FREE]["held_back"] is rows[FREE]["standbys"][0]["held_back"] is None
        told = command("cluster", "status", "--api", nodes[0].address, "--cluster", cluster_name).err
        assert [line.split(": ")[1] for line in told.splitlines()] == [
            f"{cluster_name}.log [{LOG_HELD}]",
            f"{cluster_name}.commands [{COMMANDS_HELD}]",
            f"{activations} [{ACTIVATIONS_HELD}]",
        ]
        created = client.create("mail", key=key_in(FREE, "free"), wait="decided")
        assert created.created, "the fourth partition has nothing to do with it"
        assert read_all(brokers.kafka, activations, FREE), "nor have its activations"
        assert api.job(key_in(ACTIVATIONS_HELD, "held"))["state"] == "ACTIVE", (
            "handed out, as the engine sees it"
        )
        assert not read_all(brokers.kafka, activations, ACTIVATIONS_HELD), "which no worker can"
        assert api.job(key_in(LOG_HELD, "held"))["type"] == "mail", "decided, although nobody can read it"
        with pytest.raises(ApiError, match="there is no job"):
            api.job(key_in(COMMANDS_HELD, "held"))

        faults = [line for node in nodes for line in node.err.splitlines() if '"held_back"' in line]
        assert len(faults) == len(held), "once each, not with every look"
        for line in faults:
            found = re.search(r"abort (--topic \S+ --partition \d --start-offset \d+)", line)
            assert found is not None, line
            topic, number, offset = found.group(1).split()[1::2]
            assert (topic, int(number)) in held
            said = transactions(brokers.kafka, "describe-producers", "--topic", topic, "--partition", number)
            producers = [row.split() for row in said.splitlines()[1:]]
            assert offset in {row[-1] for row in producers}, said
            transactions(brokers.kafka, "abort", *found.group(1).split())
        wait_until(
            lambda: "relevo_held_back_records{" not in scrapes(nodes), "the alarm is over", timeout_s=WAIT_S
        )
        again = client.create("mail", key=key_in(COMMANDS_HELD, "held"), wait="decided")
        assert again.created is False, "the first command was decided as soon as it could be read"
        assert len(read_all(brokers.kafka, activations, ACTIVATIONS_HELD)) == 1, "the worker's turn has come"
    del foreign
