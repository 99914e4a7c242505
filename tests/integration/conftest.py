"""Real brokers for this folder's tests."""

from __future__ import annotations

from tests.support.fixtures import (
    behind_frames,
    behind_network,
    brokers,
    cluster_name,
    own_brokers,
    own_redis,
    redis_url,
    spare_brokers,
)
from tests.support.postgres import own_postgres, postgres_server_url, postgres_url

__all__ = [
    "behind_frames", "behind_network", "brokers", "cluster_name", "own_brokers", "own_postgres", "own_redis",
    "postgres_server_url", "postgres_url", "redis_url", "spare_brokers",
]  # fmt: skip
