"""The fixtures around real servers; a folder's conftest.py imports those it wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from relevo.testing.proxy import TcpProxy
from relevo_engine.local.brokers import LocalBrokers
from tests.support import redis
from tests.support.brokers import SHARED, Brokers, SpareBrokers, forget_cluster, unique_cluster_name
from tests.support.kafka_frames import FrameProxy


class StartBrokers(Protocol):
    """Gives brokers that the test has for itself, and may hurt."""

    def __call__(self, brokers: int = 1, zookeepers: int = 1, home: Path | None = None) -> LocalBrokers:
        """Returns when they serve clients. Names of topics and clusters have to be the test's own."""


@pytest.fixture(scope="session")
def brokers() -> Iterator[Brokers]:
    """One broker and one ZooKeeper for the whole session. Use them, don't hurt them: see `own_brokers`."""
    with SHARED as shared:
        yield shared


@pytest.fixture(scope="session")
def spare_brokers() -> Iterator[SpareBrokers]:
    """See `SpareBrokers`."""
    with SpareBrokers() as spare:
        yield spare


@pytest.fixture
def own_brokers(spare_brokers: SpareBrokers) -> Iterator[StartBrokers]:
    """For tests that kill, freeze or restart brokers: call it for some."""
    with ExitStack() as started:

        def start(brokers: int = 1, zookeepers: int = 1, home: Path | None = None) -> LocalBrokers:
            if brokers == 1 and zookeepers <= 1 and home is None:
                return started.enter_context(spare_brokers.lent())
            return started.enter_context(LocalBrokers(brokers, zookeepers, home))

        yield start


@pytest.fixture
def behind_frames(spare_brokers: SpareBrokers) -> Iterator[tuple[LocalBrokers, FrameProxy]]:
    """For tests that hold back or lose single requests: brokers as `own_brokers` gives, and the way there."""
    with spare_brokers.lent() as brokers:
        yield brokers, spare_brokers.frames


@pytest.fixture
def behind_network(spare_brokers: SpareBrokers) -> Iterator[tuple[LocalBrokers, TcpProxy]]:
    """For tests that cut, delay or refuse connections: brokers as `own_brokers` gives, and the way there."""
    with spare_brokers.lent() as brokers:
        yield brokers, spare_brokers.network


@pytest.fixture
def cluster_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A cluster name of the test's own, so that tests share brokers without seeing each other."""
    shared = request.getfixturevalue("brokers") if "brokers" in request.fixturenames else None
    name = unique_cluster_name(request.node.name)
    yield name
    if shared is not None:
        forget_cluster(shared, name)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis for the whole session. Use it, don't hurt it: see `own_redis`."""
    named = redis.redis_from_environment()
    if named is not None:
        yield named
        return
    with redis.own_redis(durable=True) as server:
        yield server.url


@pytest.fixture
def own_redis() -> Iterator[redis.Redis]:
    """For tests that kill, freeze or restart Redis."""
    with redis.own_redis() as server:
        yield server
