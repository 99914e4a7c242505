"""Servers of the benchmarks: brokers, Redis, PostgreSQL. Each is ended with its ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from relevo_engine.local.brokers import LocalBrokers
from relevo_engine.local.cluster import LocalCluster
from tests.benchmarks.knobs import Knobs
from tests.support.postgres import own_postgres_server
from tests.support.redis import own_redis

_KEPT: Final = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB"}
"""A PostgreSQL that keeps what it commits, as in production."""


@contextmanager
def brokers(knobs: Knobs, count: int = 1) -> Iterator[LocalBrokers]:
    """Kafka with a JIT that is allowed to do its work, and a ZooKeeper."""
    with LocalBrokers(count, 1, for_tests=False, report=knobs.say) as started:
        yield started


@contextmanager
def cluster(
    at: LocalBrokers, knobs: Knobs, name: str, *, nodes: int = 1, partitions: int = 1, **settings: Any
) -> Iterator[LocalCluster]:
    """Nodes on brokers that run, with topics of their own."""
    made = LocalCluster(
        nodes, partitions, kafka=at.kafka, zookeeper=at.zookeeper, name=name, types=["noop"],
        settings=settings, for_tests=False,
    )  # fmt: skip
    knobs.say(f"{nodes} node(s), {partitions} partition(s)")
    with made as started:
        yield started


@contextmanager
def redis() -> Iterator[str]:
    """An empty Redis that keeps nothing on disk: its address."""
    with own_redis() as server:
        yield server.url


@contextmanager
def postgres() -> Iterator[str]:
    """An empty PostgreSQL that keeps what it commits: its address."""
    with own_postgres_server(_KEPT) as server:
        yield server.url
