"""Nodes of two versions: what only the newer one can read must not become a wrong state on the older."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

import relevo
from relevo_engine.local.cluster import LocalCluster
from relevo_engine.local.node import LocalNode
from relevo_schemas.codec import MARKER
from relevo_schemas.partitioning import partition_of
from tests.support.brokers import Brokers, forget_cluster, unique_cluster_name
from tests.support.waiting import wait_until

PARTITIONS = 2
WHY = "no schema has the fingerprint 0123456789abcdef"
NEWER = MARKER + bytes.fromhex("0123456789abcdef") + b"a kind of event that this version has never heard of"


@pytest.fixture
def cluster(brokers: Brokers) -> Iterator[LocalCluster]:
    name = unique_cluster_name("mixed")
    with LocalCluster(
        2, PARTITIONS, kafka=brokers.kafka, zookeeper=brokers.zookeeper, name=name, types=["idle"],
        settings={"session_timeout_s": 2.0, "give_back_after_s": 1_000.0},
    ) as running:  # fmt: skip
        yield running
    forget_cluster(brokers, name)


def row(node: LocalNode, partition: int) -> dict[str, Any]:
    found: dict[str, Any] = node.api.get("/v1/partitions")["partitions"][partition]
    return found


def hot(node: LocalNode, partition: int) -> set[str]:
    """Who stands by for a partition, and could take over."""
    return {each["node"] for each in row(node, partition)["standbys"] if each["hot"]}


def refuses(node: LocalNode, partition: int) -> str:
    """Why the node isn't ready, as far as it concerns a partition; empty where nothing does."""
    try:
        with urllib.request.urlopen(f"http://{node.address}/readyz", timeout=10) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            said = json.load(error)
    return next((why for why in said.get("reasons", ()) if why.startswith(f"partition {partition} ")), "")


def create(cluster: LocalCluster, partition: int, count: int) -> None:
    """So many jobs in one partition, and no other."""
    keys = (f"{partition}-{number}" for number in range(10_000))
    with relevo.Client(cluster.kafka, cluster.name) as client:
        for key in [key for key in keys if partition_of(key, PARTITIONS) == partition][:count]:
            client.create("idle", key=key)


def test_an_event_of_a_newer_version_keeps_older_nodes_from_that_partition_alone(
    cluster: LocalCluster,
) -> None:
    """One that leads without having understood everything decides on a state that isn't the log's."""
    for partition in range(PARTITIONS):
        create(cluster, partition, 5)
    newer = cluster.leader_of(1)
    (older,) = [node for node in cluster.nodes if node is not newer]
    wait_until(lambda: hot(newer, 1) == {older.node_id}, "the other node stands by")
    producer = Producer({"bootstrap.servers": cluster.kafka})
    producer.produce(f"{cluster.name}.log", NEWER, partition=1)  # as a newer leader would have written
    assert producer.flush(30) == 0
    wait_until(lambda: not hot(newer, 1), "the older node stands by no longer")
    newer.kill()
    wait_until(lambda: row(older, 0)["role"] == "LEADING", "it leads the other partition", timeout_s=60)
    wait_until(lambda: row(older, 1)["leader"] is None, "and nobody leads this one", timeout_s=60)
    assert WHY in refuses(older, 1)
    assert f"{cluster.name}.log partition 1 offset" in refuses(older, 1)
    with relevo.Client(cluster.kafka, cluster.name) as client:
        key = next(key for key in map(str, range(99)) if partition_of(key, PARTITIONS) == 0)
        assert client.create("idle", key=key).key == key
    # A restart, which begins with the log and not with a standby's state, comes to the same.
    older.kill()
    older.restart(wait=False)
    older.await_alive()
    wait_until(lambda: WHY in refuses(older, 1), "refused again", timeout_s=60)
    wait_until(lambda: row(older, 0)["role"] == "LEADING", "and leads the other again", timeout_s=60)
    assert row(older, 1)["role"] is None
