"""A node as a process: what it says, when it refuses, how it ends."""

from __future__ import annotations

import signal

import pytest

from relevo_engine.api.client import ApiClient
from relevo_engine.topic_admin import TopicAdmin
from tests.support.brokers import Brokers
from tests.support.nodes import NodeProcess, relevo
from tests.support.waiting import wait_until


@pytest.fixture
def flags(brokers: Brokers, cluster_name: str) -> tuple[str, ...]:
    """A cluster with topics, and how a node joins it."""
    TopicAdmin(brokers.kafka, cluster_name).init(2, allow_unsafe=True)
    return (
        "--kafka", brokers.kafka, "--zookeeper", brokers.zookeeper, "--cluster", cluster_name,
        "--partitions", "2", "--allow-unsafe-topics", "--settle-s", "0",
    )  # fmt: skip


def test_a_node_says_that_it_is_ready_in_one_line_and_ends_in_order(flags: tuple[str, ...]) -> None:
    with NodeProcess("--node-id", "a", *flags) as node:
        node.await_ready()
        assert node.out.count("\n") == 1
        assert node.out.startswith("relevo node a is ready: cluster ")
        api = ApiClient(node.address)
        assert api.ready()
        assert [row["leader"] for row in api.get("/v1/partitions")["partitions"]] == ["a", "a"]
        wait_until(lambda: "UNSAFE TOPIC" in node.err, "it warns of unsafe topics")
        node.signal(signal.SIGTERM)
        assert node.await_exit() == 0
        assert "Traceback" not in node.err


def test_sigint_ends_a_node_in_order_too(flags: tuple[str, ...]) -> None:
    with NodeProcess("--node-id", "a", *flags) as node:
        node.await_ready()
        node.signal(signal.SIGINT)
        assert node.await_exit() == 0


def test_the_second_node_of_one_id_refuses_to_start(flags: tuple[str, ...]) -> None:
    """Two processes that take themselves for the same node would take each other's claims for their own."""
    with NodeProcess("--node-id", "twin", *flags) as first:
        first.await_ready()
        second = relevo("node", "--node-id", "twin", *flags)
        assert second.code == 4, second
        assert "node id 'twin' is in use by a live node at 127.0.0.1:" in second.err
        assert "Traceback" not in second.err
        assert ApiClient(first.address).ready()


def test_a_node_killed_and_started_again_at_once_gets_its_id_back(flags: tuple[str, ...]) -> None:
    with NodeProcess("--node-id", "a", *flags) as node:
        node.await_ready()
        node.signal(signal.SIGKILL)
        assert node.await_exit() == -signal.SIGKILL
    with NodeProcess("--node-id", "a", *flags) as node:
        node.await_ready()


def test_a_node_with_other_settings_than_the_cluster_refuses_to_start(flags: tuple[str, ...]) -> None:
    with NodeProcess("--node-id", "a", *flags) as first:
        first.await_ready()
        other = relevo("node", "--node-id", "b", *flags, variables={"RELEVO_FINISHED_WINDOW_S": "17"})
        assert other.code == 5, other
        assert "finished_window_s: the cluster has 86400, this node 17" in other.err
        assert "Traceback" not in other.err


def test_a_wrong_setting_is_told_without_traceback() -> None:
    ran = relevo("node", "--partitions", "none", variables={"RELEVO_WINDOW": "0"})
    assert ran.code == 2, ran
    assert "partitions (--partitions)" in ran.err
    assert "window (RELEVO_WINDOW)" in ran.err
    assert "Traceback" not in ran.err


def test_a_port_that_is_taken_is_told(flags: tuple[str, ...]) -> None:
    with NodeProcess("--node-id", "a", *flags) as first:
        first.await_ready()
        port = first.address.rpartition(":")[2]
        second = relevo("node", "--node-id", "b", "--api-port", port, *flags)
        assert second.code == 1, second
        assert f"the HTTP API can't listen on 127.0.0.1:{port}" in second.err
        assert "Traceback" not in second.err


def test_a_misspelt_variable_is_warned_of(flags: tuple[str, ...]) -> None:
    with NodeProcess("--node-id", "a", *flags, RELEVO_WINDWO="3") as node:
        node.await_ready()
        wait_until(lambda: "RELEVO_WINDWO; did you mean RELEVO_WINDOW?" in node.err, "it warns of the name")
