"""A real Redis Cluster of two nodes without replicas, for tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from relevo_engine.local.ports import LOOPBACK, free_ports
from relevo_engine.local.server import Server, ServerSpec
from tests.support.redis import answers
from tests.support.waiting import wait_until

SLOTS = 16_384
_NODES = 2
_MISSING = (
    "The tests on a Redis Cluster need a redis-server (7 or newer) on PATH. Debian and Ubuntu: apt-get"
    " install redis-server; Fedora: dnf install redis; macOS: brew install redis."
)


class RedisCluster:
    """Two nodes with half of the slots each."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    @property
    def urls(self) -> list[str]:
        """A node each."""
        return [f"redis://{LOOPBACK}:{server.port}" for server in self.servers]

    def nodes(self) -> list[Any]:
        """A `redis.Redis` for each node alone."""
        return [redis.Redis.from_url(url) for url in self.urls]

    def move(self, slot: int, to: int) -> None:
        """Hand an empty slot over to another node; clients hear of it when they ask for its keys."""
        nodes = self.nodes()
        owner = nodes[to].execute_command("CLUSTER MYID").decode()
        for node in (nodes[to], *nodes):  # its new owner first
            node.execute_command("CLUSTER SETSLOT", slot, "NODE", owner)


@contextmanager
def redis_cluster() -> Iterator[RedisCluster]:
    """Starts an empty one and ends it.

    Raises:
        LookupError: There is no redis-server.
    """
    if shutil.which("redis-server") is None:
        raise LookupError(_MISSING)
    with tempfile.TemporaryDirectory(prefix="relevo-redis-") as home, ExitStack() as running:
        ports = free_ports(2 * _NODES)
        servers = []
        for number in range(_NODES):
            server = Server(
                _spec(Path(home) / str(number), number + 1, ports[number], ports[number + _NODES])
            )
            server.start(timeout_s=30)
            running.callback(server.kill)
            servers.append(server)
        cluster = RedisCluster(servers)
        _join(cluster, ports)
        yield cluster


def _spec(folder: Path, number: int, port: int, bus: int) -> ServerSpec:
    folder.mkdir()
    command = ["redis-server", "--port", str(port), "--bind", LOOPBACK, "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "yes", "--cluster-enabled", "yes", "--cluster-port", str(bus)]
    # A node that is gone takes its own slots along, and no others.
    command += ["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "1000"]
    return ServerSpec(f"redis-{number}", number, tuple(command), folder, port, lambda: answers(port))


def _join(cluster: RedisCluster, ports: list[int]) -> None:
    nodes = cluster.nodes()
    share = SLOTS // _NODES
    for number, node in enumerate(nodes):
        node.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        node.execute_command("CLUSTER ADDSLOTSRANGE", number * share, (number + 1) * share - 1)
    for node in nodes[1:]:
        node.execute_command("CLUSTER MEET", LOOPBACK, ports[0], ports[_NODES])

    def agreed() -> bool:
        found = [node.execute_command("CLUSTER INFO") for node in nodes]
        return all(
            each["cluster_state"] == "ok" and each["cluster_slots_assigned"] == str(SLOTS) for each in found
        )

    wait_until(agreed, "all nodes know who has which slot")
