"""A cluster on this machine: its nodes go by what they are told, and by nothing that was meant for others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relevo_engine.local.cluster import LocalCluster
from relevo_engine.local.server import Server, ServerSpec
from tests.support.brokers import Brokers
from tests.support.waiting import wait_until

SHOW_ENVIRONMENT = "import json, os; print(json.dumps(sorted(os.environ)))"


@pytest.fixture(autouse=True)
def of_another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the README tells clients to export, as somebody has it who works with a cluster elsewhere."""
    for name, value in {
        "RELEVO_KAFKA": "127.0.0.1:1",
        "RELEVO_KAFKA_OPTIONS": '{"security.protocol": "SASL_SSL", "sasl.password": "s3cret"}',
        "RELEVO_CLUSTER": "production",
        "RELEVO_NODE_ID": "theirs",
        "relevo_zookeeper": "127.0.0.1:1",
        "RELEVO_PARTITIONS": "7",
    }.items():
        monkeypatch.setenv(name, value)


def test_a_node_obeys_its_settings_file_and_no_variable(brokers: Brokers, cluster_name: str) -> None:
    """Nodes of a drill would join the Kafka that was exported for clients, and fence its leaders."""
    cluster = LocalCluster(
        1, 2, kafka=brokers.kafka, zookeeper=brokers.zookeeper, name=cluster_name, types=["work"]
    )
    with cluster:
        assert cluster.leaders() == {0: "node-1", 1: "node-1"}
        assert cluster.nodes[0].api.get("/v1/nodes")["cluster"] == cluster_name


def test_no_server_gets_a_variable_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of the demo would send a password to brokers that know nothing of it."""
    monkeypatch.setenv("OTHERS", "stay")
    command = (sys.executable, "-c", SHOW_ENVIRONMENT)
    server = Server(ServerSpec("shows", 1, command, tmp_path, 0, lambda: True))
    server.spawn()
    wait_until(lambda: not server.running, "it has ended")
    names = server.log_path.read_text()
    assert '"OTHERS"' in names
    assert "RELEVO_" not in names.upper()
    server.kill()
