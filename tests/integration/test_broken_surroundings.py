"""Kafka or ZooKeeper away, at the start or in mid-run: clear words, nothing accepted is lost, it goes on."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest

from relevo import Client, JobEvents, OutcomeUnknown, WorkerApp
from relevo_engine.api.client import ApiClient
from relevo_engine.local.brokers import LocalBrokers
from relevo_engine.local.cluster import LocalCluster
from relevo_engine.local.kafka import admin
from relevo_engine.local.ports import free_ports
from relevo_engine.topic_admin import TopicAdmin
from tests.support.brokers import unique_cluster_name
from tests.support.fixtures import StartBrokers
from tests.support.nodes import NodeProcess, relevo
from tests.support.waiting import wait_until

PARTITIONS = 2
SESSION_S = 1.5


@pytest.fixture
def servers(own_brokers: StartBrokers) -> LocalBrokers:
    """The brokers, to be killed and frozen; well again for the next test, with all that they held."""
    return own_brokers()


@pytest.fixture
def name(request: pytest.FixtureRequest, servers: LocalBrokers) -> str:
    """A cluster of the test's own, with topics."""
    made = unique_cluster_name(request.node.name)
    TopicAdmin(servers.kafka, made).init(PARTITIONS, ["work", "idle"], allow_unsafe=True)
    return made


@pytest.fixture
def flags(servers: LocalBrokers, name: str) -> tuple[str, ...]:
    """How a node joins it."""
    return (
        "--node-id", "a", "--cluster", name, "--kafka", servers.kafka, "--zookeeper", servers.zookeeper,
        "--partitions", str(PARTITIONS), "--allow-unsafe-topics", "--settle-s", "0",
    )  # fmt: skip


@pytest.fixture
def cluster(servers: LocalBrokers, name: str) -> Iterator[LocalCluster]:
    with LocalCluster(
        2,
        PARTITIONS,
        kafka=servers.kafka,
        zookeeper=servers.zookeeper,
        name=name,
        # Nothing but what a test does moves a leader; nodes that came up one after the other would do so.
        settings={"session_timeout_s": SESSION_S, "give_back_after_s": 1_000.0},
    ) as running:
        yield running


def epochs(cluster: LocalCluster) -> list[tuple[str, int]]:
    return [(row["leader"], row["epoch"]) for row in cluster.status()]


def log_of(cluster: LocalCluster) -> list[object]:
    """All events; the reader itself checks that there is neither hole nor repeat."""
    with JobEvents(cluster.kafka, cluster.name, follow=False) as events:
        return [event.event for event in events]


@pytest.mark.parametrize("missing", ["Kafka", "ZooKeeper"])
def test_a_node_waits_for_what_is_not_there_yet_and_says_so(
    servers: LocalBrokers, flags: tuple[str, ...], missing: str
) -> None:
    server = servers.kafka_servers[0] if missing == "Kafka" else servers.zookeeper_servers[0]
    (port,) = free_ports(1)
    server.stop()
    given_up = relevo("node", *flags, "--start-timeout-s", "3")
    assert given_up.code == 6, given_up
    assert f"127.0.0.1:{server.port}" in given_up.err
    assert "is the address right?" in given_up.err
    assert "Traceback" not in given_up.err
    with NodeProcess(*flags, "--api-port", str(port)) as node:
        api = ApiClient(f"127.0.0.1:{port}")
        told = "Kafka at " if missing == "Kafka" else "ZooKeeper isn't reachable at"
        wait_until(lambda: told in node.err, "the node says what it waits for")
        assert api.get("/healthz")["status"] == "alive"
        assert not api.ready()
        server.start()
        node.await_ready()
        assert api.ready()
        assert "Traceback" not in node.err


@pytest.mark.parametrize("missing", ["kafka", "zookeeper"])
def test_a_node_that_waits_at_the_start_can_be_ended(flags: tuple[str, ...], missing: str) -> None:
    (dead,) = free_ports(1)
    with NodeProcess(*flags, f"--{missing}", f"127.0.0.1:{dead}") as node:
        wait_until(lambda: f"127.0.0.1:{dead}" in node.err, "the node says what it waits for")
        node.signal(signal.SIGTERM)
        assert node.await_exit() == 0, node.err
        assert "Traceback" not in node.err


def test_a_node_ends_within_its_deadline_though_both_are_away(
    servers: LocalBrokers, flags: tuple[str, ...]
) -> None:
    """A client that waits for a dead server while it closes would keep the process for ever."""
    with NodeProcess(*flags, "--stop-timeout-s", "5") as node:
        node.await_ready()
        for server in servers.servers:
            server.freeze()
        node.signal(signal.SIGTERM)
        assert node.await_exit(30) in (0, 7), node.err


def test_a_second_signal_ends_a_node_at_once(servers: LocalBrokers, flags: tuple[str, ...]) -> None:
    with NodeProcess(*flags, "--stop-timeout-s", "60") as node:
        node.await_ready()
        for server in servers.servers:
            server.freeze()
        node.signal(signal.SIGTERM)
        wait_until(lambda: '"stopping"' in node.err, "the node begins to stop")
        node.signal(signal.SIGTERM)
        assert node.await_exit(20) == 128 + signal.SIGTERM


def test_kafka_down_in_mid_run_loses_nothing_that_was_accepted(
    cluster: LocalCluster, servers: LocalBrokers
) -> None:
    with Client(cluster.kafka, cluster.name) as client:
        accepted = [client.create("work", {"n": n}, key=f"before-{n}").key for n in range(200)]
        servers.kafka_servers[0].kill()
        with pytest.raises(OutcomeUnknown):
            client.create("work", key="in-between", timeout=3)
        for node in cluster.nodes:
            assert node.api.get("/healthz")["status"] == "alive"
        servers.kafka_servers[0].start()
        servers.await_brokers()
        cluster.await_ready()
        done: set[str] = set()
        app = WorkerApp(cluster.kafka, cluster.name)

        @app.job("work")
        def work(job: object) -> None:
            done.add(job.key)  # type: ignore[attr-defined]

        with app:
            accepted.append(client.create("work", key="after", wait="decided").key)
            wait_until(lambda: done >= set(accepted), "all accepted jobs are done", timeout_s=60)
    events = log_of(cluster)
    created = [event.job.key for event in events if type(event).__name__ == "JobCreated"]  # type: ignore[attr-defined]
    assert sorted(set(created)) == sorted(created)
    assert set(accepted) <= set(created)
    assert all(node.running for node in cluster.nodes)


def test_zookeeper_down_in_mid_run_stops_no_job_and_moves_no_leader(
    cluster: LocalCluster, servers: LocalBrokers
) -> None:
    """Only takeovers need ZooKeeper: whoever leads goes on while Kafka takes its commits."""
    before = epochs(cluster)
    app = WorkerApp(cluster.kafka, cluster.name)
    done: set[str] = set()

    @app.job("work")
    def work(job: object) -> str:
        done.add(job.key)  # type: ignore[attr-defined]
        return "done"

    with app, Client(cluster.kafka, cluster.name) as client:
        client.await_result(client.create("work", key="first"), 30)
        servers.zookeeper_servers[0].kill()
        # As long as many sessions last, job after job.
        rounds = 0
        back_at = time.monotonic() + 8 * SESSION_S
        while time.monotonic() < back_at:
            handle = client.create("work", key=f"away-{rounds}", wait="decided")
            assert client.await_result(handle, 30).state == "COMPLETED"
            rounds += 1
        assert rounds > 3
        wait_until(
            lambda: any("ZooKeeper" in reason for node in cluster.nodes for reason in reasons(node.api)),
            "the nodes say that ZooKeeper is away",
        )
        assert epochs_of_leaders(cluster) == dict(before)
        servers.zookeeper_servers[0].start()
        wait_until(lambda: all(node.api.ready() for node in cluster.nodes), "all nodes are ready again")
        client.await_result(client.create("work", key="last"), 30)
        assert epochs(cluster) == before
    assert {f"away-{n}" for n in range(rounds)} <= done
    assert sum(type(event).__name__ == "LeaderElected" for event in log_of(cluster)) == PARTITIONS


def reasons(api: ApiClient) -> list[str]:
    """Why a node isn't ready."""
    status, _, body = api._ask("/readyz", None)
    found: list[str] = json.loads(body).get("reasons", []) if status == 503 else []
    return found


def epochs_of_leaders(cluster: LocalCluster) -> dict[str, int]:
    """As each node says of itself, asking nobody."""
    found: dict[str, int] = {}
    for node in cluster.nodes:
        for row in node.api.get("/v1/partitions", {"scope": "local"})["partitions"]:
            found[row["leader"]] = row["epoch"]
    return found


def test_a_leader_killed_while_zookeeper_is_away_is_replaced_when_it_is_back(
    cluster: LocalCluster, servers: LocalBrokers
) -> None:
    servers.zookeeper_servers[0].kill()
    leader = cluster.nodes[0]
    led = [p for p, name in enumerate(row["leader"] for row in cluster.status()) if name == leader.node_id]
    leader.kill()
    servers.zookeeper_servers[0].start()
    leaders = cluster.await_ready(without=[leader])
    assert set(leaders.values()) == {cluster.nodes[1].node_id}
    with Client(cluster.kafka, cluster.name) as client:
        for number in range(10):
            client.create("idle", key=f"after-{number}", wait="decided")
    assert len(led) <= PARTITIONS


def test_a_deleted_activation_topic_holds_up_its_own_type_only(
    cluster: LocalCluster, servers: LocalBrokers
) -> None:
    app = WorkerApp(cluster.kafka, cluster.name)
    app.job("work")(lambda _job: None)
    with app, Client(cluster.kafka, cluster.name) as client:
        client.create("idle", key="idle-0", wait="decided")
        kafka = admin(servers.kafka)
        name = f"{cluster.name}.activations.idle"
        kafka.delete_topics([name], operation_timeout=30)[name].result(30)
        idle = [client.create("idle", key=f"idle-{n}", wait="decided").key for n in range(1, 6)]
        for number in range(20):
            handle = client.create("work", key=f"work-{number}", wait="decided")
            assert client.await_result(handle, 60).state == "COMPLETED"
        # It is made again, and its jobs are handed out.
        wait_until(
            lambda: all(cluster.nodes[0].api.job(key)["state"] == "ACTIVE" for key in idle),
            "the other type's jobs are handed out again",
            timeout_s=60,
        )
