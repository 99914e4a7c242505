"""Real brokers for this folder's tests."""

from __future__ import annotations

from tests.support.fixtures import brokers, cluster_name, own_brokers, own_redis, redis_url

__all__ = ["brokers", "cluster_name", "own_brokers", "own_redis", "redis_url"]
