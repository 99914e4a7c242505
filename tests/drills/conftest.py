"""A cluster of real node processes, for tests that hurt them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relevo_engine.local.cluster import LocalCluster
from tests.support.brokers import Brokers
from tests.support.fixtures import brokers, cluster_name
from tests.support.load import Load
from tests.support.postgres import postgres_server_url, postgres_url

__all__ = ["brokers", "cluster_name", "postgres_server_url", "postgres_url"]

TYPE = "drill"


@pytest.fixture
def cluster(brokers: Brokers, cluster_name: str) -> Iterator[LocalCluster]:
    """Three nodes, four partitions. What these tests hurt is nodes: the brokers are everybody's."""
    with LocalCluster(
        3,
        4,
        kafka=brokers.kafka,
        zookeeper=brokers.zookeeper,
        name=cluster_name,
        types=[TYPE],
        settings={"session_timeout_s": 2.0},
    ) as running:
        yield running


@pytest.fixture
def load(cluster: LocalCluster) -> Iterator[Load]:
    """Jobs at a steady rate, and a worker whose effects are counted."""
    with Load(cluster, TYPE) as running:
        yield running
