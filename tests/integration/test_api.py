"""The HTTP API of a real cluster: any node is asked, the leader answers, a takeover is survived."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relevo import Client
from relevo_engine.api.client import ApiClient, ApiError
from relevo_engine.errors import UnreachableError
from relevo_engine.local.cluster import LocalCluster
from relevo_schemas.partitioning import partition_of
from tests.support.brokers import Brokers, forget_cluster, unique_cluster_name
from tests.support.waiting import wait_until

PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(brokers: Brokers) -> Iterator[LocalCluster]:
    name = unique_cluster_name("api")
    with LocalCluster(
        2,
        PARTITIONS,
        kafka=brokers.kafka,
        zookeeper=brokers.zookeeper,
        name=name,
        types=["mail"],
        settings={"give_back_after_s": 1_000.0},  # only the test moves a leader
    ) as running:
        yield running
    forget_cluster(brokers, name)


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.kafka, cluster.name) as made:
        yield made


def keys_of(partition: int, count: int, prefix: str) -> list[str]:
    keys = (f"{prefix}-{i}" for i in range(10_000))
    return [key for key in keys if partition_of(key, PARTITIONS) == partition][:count]


def test_a_job_is_found_from_every_node(cluster: LocalCluster, client: Client) -> None:
    for partition in range(PARTITIONS):
        (key,) = keys_of(partition, 1, "found")
        client.create("mail", {"to": "ada"}, key=key, wait="decided")
        for node in cluster.nodes:
            job = ApiClient(node.address).job(key)
            assert (job["key"], job["state"], job["variables"]) == (key, "ACTIVE", {"to": "ada"})
            assert job["answered_by"] == cluster.leaders()[partition]


def test_an_unknown_job_is_not_found_from_any_node(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        with pytest.raises(ApiError) as caught:
            ApiClient(node.address).job("nobody/made this")
        assert (caught.value.status, caught.value.code) == (404, "NOT_FOUND")


def test_a_read_sees_what_was_decided_before_it(cluster: LocalCluster, client: Client) -> None:
    """An answer from a memory that is behind would show a job that was just created as missing."""
    api = ApiClient(cluster.nodes[0].address)
    for number in range(30):
        key = f"fresh-{number}"
        client.create("mail", key=key, wait="decided")
        assert api.job(key)["key"] == key
        client.cancel(key, wait="decided")
        assert api.job(key)["state"] == "CANCELLED"


def test_a_misspelt_filter_is_refused(cluster: LocalCluster) -> None:
    """An ignored filter gives all jobs for those that were asked for."""
    with pytest.raises(ApiError, match="Did you mean state") as caught:
        cluster.nodes[0].api.get("/v1/jobs", {"staet": "READY"})
    assert (caught.value.status, caught.value.code) == (400, "UNKNOWN_PARAMETER")


def test_partitions_nodes_and_metrics_are_told(cluster: LocalCluster, client: Client) -> None:
    client.create("mail", key="counted", wait="decided")
    for node in cluster.nodes:
        answer = node.api.get("/v1/partitions")
        assert answer["not_reached"] == []
        rows = answer["partitions"]
        assert [row["partition"] for row in rows] == list(range(PARTITIONS))
        for row in rows:
            assert row["role"] == "LEADING"
            assert row["epoch"] >= 1
            assert row["lag"] >= 0
        assert sum(row["jobs"].get("ACTIVE", 0) for row in rows) >= 1
        assert {each["node"] for each in node.api.get("/v1/nodes")["nodes"]} == {"node-1", "node-2"}
    listed = cluster.nodes[0].api.get("/v1/jobs", {"type": "mail", "limit": 1000})
    assert "counted" in {job["key"] for job in listed["jobs"]}
    text = "".join(node.api._ask("/metrics", None)[2].decode() for node in cluster.nodes)
    assert 'relevo_jobs{partition="0",state="ACTIVE",type="mail"}' in text
    assert "relevo_partitions_without_leader 0.0" in text
    assert "relevo_takeover_step_seconds_count" in text


def test_after_a_leader_is_killed_the_other_node_answers_for_its_jobs(
    cluster: LocalCluster, client: Client
) -> None:
    (key,) = keys_of(0, 1, "moved")
    client.create("mail", {"n": 1}, key=key, wait="decided")
    leader = cluster.leader_of(0)
    other = next(node for node in cluster.nodes if node is not leader)
    epoch = other.api.get("/v1/partitions")["partitions"][0]["epoch"]
    leader.kill()
    seen: list[tuple[int, bool, str]] = []

    def answered() -> bool:
        try:
            return bool(ApiClient(other.address).job(key)["answered_by"] == other.node_id)
        except ApiError as error:
            seen.append((error.status, error.retry_after_s is not None, error.code))
            return False

    wait_until(answered, "the surviving node answers")
    assert {(status, has_retry_after) for status, has_retry_after, _ in seen} <= {(503, True)}
    assert {code for *_, code in seen} <= {"NO_LEADER", "NOT_LEADER", "LEADER_UNREACHABLE", "NOT_PROVEN"}
    with pytest.raises(UnreachableError):
        leader.api.get("/healthz")
    cluster.await_ready(without=[leader])
    assert other.api.get("/v1/partitions")["partitions"][0]["epoch"] > epoch
    leader.restart()
    assert leader.api.job(key)["answered_by"] == other.node_id
