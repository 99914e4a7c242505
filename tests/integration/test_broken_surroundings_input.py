"""Whatever is put on the commands topic: refused with a reason on the log, and the partition goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from relevo import Client, JobEvents, NewJob, WorkerApp
from relevo_engine.local.cluster import LocalCluster
from relevo_schemas.codec import encode, job_spec
from relevo_schemas.commands import CompleteJob, CreateJob
from relevo_schemas.events import CommandRejected
from relevo_schemas.partitioning import partition_of
from tests.support.brokers import Brokers, forget_cluster, unique_cluster_name
from tests.support.waiting import wait_until

PARTITIONS = 2
WINDOW = 100


@pytest.fixture(scope="module")
def cluster(brokers: Brokers) -> Iterator[LocalCluster]:
    name = unique_cluster_name("input")
    with LocalCluster(
        1,
        PARTITIONS,
        kafka=brokers.kafka,
        zookeeper=brokers.zookeeper,
        name=name,
        types=["work"],
        settings={"settle_s": 0, "window": WINDOW, "types_max": 3},
    ) as running:
        yield running
    forget_cluster(brokers, name)


def put(cluster: LocalCluster, partition: int, value: bytes | None, key: bytes = b"k") -> int:
    """Writes a command as it is; returns its offset."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": cluster.kafka, "acks": "all", "message.max.bytes": 1_150_000})

    def delivered(error: object, message: object) -> None:
        assert error is None, error
        offsets.append(message.offset())  # type: ignore[attr-defined]

    producer.produce(f"{cluster.name}.commands", value, key, partition, on_delivery=delivered)
    assert producer.flush(30) == 0
    return offsets[0]


def refusal(cluster: LocalCluster, partition: int, offset: int) -> CommandRejected:
    """The answer on the log to the command at this offset."""
    with JobEvents(cluster.kafka, cluster.name) as events:
        for each in events:
            if each.partition == partition and each.event.source == offset:
                assert isinstance(each.event, CommandRejected), each
                return each.event
    raise AssertionError


def key_of(partition: int) -> str:
    return next(f"key-{i}" for i in range(100) if partition_of(f"key-{i}", PARTITIONS) == partition)


def create(**fields: object) -> bytes:
    return encode(CreateJob(job_spec(**({"key": key_of(0), "type": "work"} | fields))))  # type: ignore[arg-type]


GOOD = create()
BAD = {
    "nothing": (None, "UNREADABLE", "NOT_A_RECORD"),
    "empty": (b"", "UNREADABLE", "NOT_A_RECORD"),
    "text": (b'{"type": "work"}', "UNREADABLE", "NOT_A_RECORD"),
    "a fingerprint nobody knows": (GOOD[:2] + b"\x00" * 8 + GOOD[10:], "UNREADABLE", "UNKNOWN_SCHEMA"),
    "cut short": (GOOD[:-1], "UNREADABLE", "DAMAGED"),
    "something behind it": (GOOD + b"x", "UNREADABLE", "DAMAGED"),
    "a length out of all bounds": (GOOD[:10] + b"\xff" * 9 + b"\x7f", "UNREADABLE", "DAMAGED"),
    "longer than a record": (b"\xc3\x01" + b"x" * 1_100_000, "UNREADABLE", "OVERSIZED"),
    "large variables": (create(variables=b'"' + b"x" * 950_000 + b'"'), "CreateJob", "TOO_LARGE"),
    "an illegal type": (create(type="../etc/passwd"), "CreateJob", "INVALID"),
    "an absurd priority": (create(priority=2**31 - 1), "CreateJob", "INVALID"),
    "a time of the year 300000": (create(run_at=2**53), "CreateJob", "INVALID"),
    "another partition's key": (create(key=key_of(1)), "CreateJob", "WRONG_PARTITION"),
    "a job that nobody made": (encode(CompleteJob(key_of(0), 0, 1, b"")), "CompleteJob", "NOT_FOUND"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_command_is_refused_with_a_reason(cluster: LocalCluster, name: str) -> None:
    value, command, reason = BAD[name]
    offset = put(cluster, 0, value)
    event = refusal(cluster, 0, offset)
    assert (event.command, event.reason) == (command, reason)
    assert event.expected
    assert len(event.found) < 500


def test_the_partition_goes_on_and_never_changed_its_leader(cluster: LocalCluster) -> None:
    """One record that nobody can read must not stop all those behind it."""
    for _ in range(50):
        put(cluster, 0, b"\x00garbage")
    with Client(cluster.kafka, cluster.name) as client:
        assert client.create("work", key="key-behind", wait="decided").created
    assert [row["epoch"] for row in cluster.status()] == [1, 1]


@pytest.mark.parametrize("variables", [b"no json at all \xff", b"[" * 5_000 + b"]" * 5_000])
def test_variables_that_are_no_json_or_too_deep_pass_the_engine(
    cluster: LocalCluster, variables: bytes
) -> None:
    """The engine never parses them; whoever asks for the job is shown them anyhow."""
    key = f"odd-{len(variables)}"
    value = encode(CreateJob(job_spec(key=key, type="odd", variables=variables)))
    put(cluster, partition_of(key, PARTITIONS), value, key.encode())
    found: list[dict[str, object]] = []

    def known() -> bool:
        listed = cluster.nodes[0].api.get("/v1/jobs", {"type": "odd"})["jobs"]
        return key in {job["key"] for job in listed}

    wait_until(known, "the job is there")
    found.append(cluster.nodes[0].api.job(key))
    assert str(found[0]["variables_text"]).startswith(variables[:5].decode())


def test_undeclared_types_are_made_up_to_a_bound(cluster: LocalCluster) -> None:
    """A typing error in a client must not fill the cluster with topics."""
    with Client(cluster.kafka, cluster.name) as client:
        for number in range(20):
            client.create(f"typo-{number}", key=f"typo-{number}")
        client.create("work", key="typo-end", wait="decided")
    reasons: dict[str, str] = {}
    with JobEvents(cluster.kafka, cluster.name, follow=False, kinds=["CommandRejected"]) as events:
        for event in events:
            if event.key.startswith("typo-"):
                reasons[event.key] = event.event.reason  # type: ignore[attr-defined]
    assert set(reasons.values()) == {"UNKNOWN_TYPE"}
    assert len(reasons) >= 17


def test_ten_thousand_jobs_of_a_type_without_workers_disturb_no_other_type(cluster: LocalCluster) -> None:
    """A shared bound, filled with what nobody takes, would stop everything with all lights green."""
    with Client(cluster.kafka, cluster.name) as client:
        results = client.create_many(NewJob(type="odd", key=f"idle-{n}") for n in range(10_000))
        assert all(result.ok for result in results)

        def all_there() -> bool:
            types = [row["types"].get("odd", {}) for row in cluster.status()]
            return sum(sum(counts.values()) for counts in types) >= 10_000

        wait_until(all_there, "the engine has them all", timeout_s=60)
        for row in cluster.status():
            assert row["types"]["odd"]["ACTIVE"] <= WINDOW
        app = WorkerApp(cluster.kafka, cluster.name)
        app.job("work")(lambda _job: "done")
        with app:
            for number in range(50):
                handle = client.create("work", key=f"other-{number}", wait="decided")
                assert client.await_result(handle, 30).state == "COMPLETED"
        text = cluster.nodes[0].api._ask("/metrics", None)[2].decode()
        assert 'relevo_oldest_ready_seconds{partition="0",type="odd"}' in text
