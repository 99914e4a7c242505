"""`relevo verify` on a real cluster: at work, then dead, then damaged. The tests stand in that order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

import relevo
from relevo_engine.errors import SettingsError, TopicsError, UnreachableError
from relevo_engine.local.cluster import LocalCluster
from relevo_engine.local.ports import free_ports
from relevo_engine.verify import Invariant, verify_log
from relevo_schemas.codec import encode, job_spec
from relevo_schemas.commands import CreateJob
from relevo_schemas.partitioning import partition_of
from tests.support.brokers import Brokers, forget_cluster, unique_cluster_name
from tests.support.nodes import Ran, environment
from tests.support.nodes import relevo as run_relevo

JOBS = 60
PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(brokers: Brokers) -> Iterator[LocalCluster]:
    name = unique_cluster_name("verify")
    with LocalCluster(
        1, PARTITIONS, kafka=brokers.kafka, zookeeper=brokers.zookeeper, name=name, types=["idle"]
    ) as running:
        yield running
    forget_cluster(brokers, name)


@pytest.fixture(scope="module")
def keys(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of accepted jobs, some cancelled since, in a file; the leader was killed in between."""
    keys = [f"job-{n}" for n in range(JOBS)]
    with relevo.Client(cluster.kafka, cluster.name) as client:
        for key in keys[: JOBS // 2]:
            client.create("idle", key=key)
        cluster.nodes[0].kill()
        cluster.nodes[0].restart()
        cluster.await_ready()
        for key in [*keys[JOBS // 2 :], keys[0]]:
            client.create("idle", key=key)
        for key in keys[:10]:
            client.cancel(key)
    file = tmp_path_factory.mktemp("verify") / "keys.txt"
    file.write_text("\n".join(keys) + "\n")
    return file


def verify(cluster: LocalCluster, *arguments: str) -> Ran:
    """As a user runs it, who knows nothing of ZooKeeper or the nodes."""
    where = {"RELEVO_KAFKA": cluster.kafka, "RELEVO_CLUSTER": cluster.name}
    assert not environment().keys() & {"RELEVO_ZOOKEEPER", "RELEVO_API"}
    return run_relevo("verify", *arguments, variables=where)


def test_a_cluster_at_work_is_sound(cluster: LocalCluster, keys: Path) -> None:
    ran = verify(cluster, "--json", "--expect-jobs", str(keys))
    assert ran.code == 0, ran
    told: dict[str, Any] = json.loads(ran.out)
    assert told["ok"]
    assert (told["counts"]["created"], told["counts"]["cancelled"]) == (JOBS, 10)
    assert told["counts"]["open_total"] == JOBS - 10
    assert told["counts"]["repeated_creates"] == 1
    expected = told["expected"]
    assert (expected["given"], expected["ended_otherwise"], expected["open"]) == (JOBS, 10, JOBS - 10)
    later = [each for each in told["takeovers"] if each["gap_ms"] is not None]
    assert {each["partition"] for each in later} == set(range(PARTITIONS))
    assert all(each["gap_ms"] >= 0 for each in later)


def test_it_is_told_to_people_too(cluster: LocalCluster, keys: Path) -> None:
    ran = verify(cluster, "--expect-jobs", str(keys))
    assert ran.code == 0, ran
    assert f"created    {JOBS}" in ran.out
    assert f"expected   {JOBS}: ended otherwise 10, open {JOBS - 10}" in ran.out
    assert ran.out.splitlines()[-1].startswith(f"sound: {cluster.name}.log")
    assert ran.err == "", "progress belongs on a terminal"


def test_a_dead_cluster_is_verified_from_kafka_alone(cluster: LocalCluster, keys: Path) -> None:
    """After a disaster there may be no node and no ZooKeeper; what was accepted last isn't lost, it waits."""
    cluster.nodes[0].stop()
    producer = Producer({"bootstrap.servers": cluster.kafka})
    partition = partition_of("undecided", PARTITIONS)
    create = encode(CreateJob(job_spec(key="undecided", type="idle")))
    producer.produce(f"{cluster.name}.commands", create, b"undecided", partition=partition)
    assert producer.flush(30) == 0
    report = verify_log(cluster.kafka, cluster.name, expected_keys=["job-1", "undecided"])
    assert report.ok, report.violations
    assert report.expected is not None
    assert (report.expected.ended_otherwise, report.expected.pending) == (1, 1)
    report = verify_log(cluster.kafka, cluster.name, expected_keys=["never-sent"])
    assert report.by_invariant == {Invariant.ACCEPTED: 1}


def test_one_partition_alone(cluster: LocalCluster, keys: Path) -> None:
    report = verify_log(cluster.kafka, cluster.name, partitions=[1], expected_keys=keys.read_text().split())
    assert report.ok, report.violations
    assert [each.partition for each in report.partitions] == [1]
    assert report.expected is not None
    assert report.expected.elsewhere + report.counts.created == JOBS
    with pytest.raises(SettingsError, match=r"no partition 7: there are 0 to 1"):
        verify_log(cluster.kafka, cluster.name, partitions=[7])


def test_an_open_transaction_is_told_and_not_waited_for(cluster: LocalCluster, keys: Path) -> None:
    """A leader that died within a transaction holds back all that was written behind it."""
    before = verify_log(cluster.kafka, cluster.name).partitions[0]
    producer = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": f"{cluster.name}.hanging"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(f"{cluster.name}.log", b"never committed", partition=0)
    assert producer.flush(30) == 0
    report = verify_log(cluster.kafka, cluster.name)
    assert report.ok, report.violations
    where = report.partitions[0]
    assert (where.end, where.high, where.held_back) == (before.high, before.high + 3, 3)
    producer.abort_transaction(30)
    report = verify_log(cluster.kafka, cluster.name)
    assert report.ok, "what was aborted is nobody's business"
    assert report.partitions[0].held_back == 0


def test_a_cluster_that_is_not_there(cluster: LocalCluster) -> None:
    with pytest.raises(TopicsError, match=r"has no topic nobody\.log"):
        verify_log(cluster.kafka, "nobody")
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match="isn't reachable"):
        verify_log(f"127.0.0.1:{port}", cluster.name)
    ran = run_relevo("verify", "--kafka", cluster.kafka, "--cluster", "nobody")
    assert (ran.code, "Traceback" in ran.err) == (3, False), ran


def test_garbage_on_the_log_is_found(cluster: LocalCluster, keys: Path) -> None:
    """Anybody who may write to the topic can damage it, without a transaction too."""
    offsets: list[int | None] = []

    def delivered(error: object, message: Message) -> None:
        offsets.append(None if error else message.offset())

    producer = Producer({"bootstrap.servers": cluster.kafka})
    producer.produce(f"{cluster.name}.log", b"garbage", b"job-1", partition=1, on_delivery=delivered)
    assert producer.flush(30) == 0
    ran = verify(cluster, "--json")
    assert ran.code == 8, ran
    told: dict[str, Any] = json.loads(ran.out)
    assert told["violation_count"] == 1
    first = told["partitions"][1]["first_violation"]
    assert (first["invariant"], [first["offset"]]) == ("RECORD", offsets)
    ran = verify(cluster)
    assert ran.code == 8
    assert f"first: {cluster.name}.log partition 1 offset {offsets[0]}: RECORD" in ran.out
