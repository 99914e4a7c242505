"""Clients of one ZooKeeper, as the tests of claims and of nodes use them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from relevo.testing.proxy import TcpProxy
from relevo_partitions.election.election import Election
from relevo_partitions.election.membership import Membership, NodeInfo
from relevo_partitions.election.zookeeper import ZooKeeper
from relevo_partitions.statemachine import Term

SESSION_TIMEOUT_S: Final = 1.5


class Site:
    """Clients of one ZooKeeper, each closed at the end."""

    def __init__(self, zookeeper: str, cluster: str) -> None:
        self.address, self.cluster = zookeeper, cluster
        self.stack = ExitStack()

    def client(
        self,
        address: str | None = None,
        on_state: Callable[[str], None] = lambda _: None,
        on_watch: Callable[[str], None] = lambda _: None,
    ) -> ZooKeeper:
        client = ZooKeeper(address or self.address, SESSION_TIMEOUT_S, on_state, on_watch)
        client.start()
        assert client.wait_connected(20)
        self.stack.callback(client.close, 5)
        return client

    def proxy(self) -> TcpProxy:
        return self.stack.enter_context(TcpProxy(self.address))

    def election(self, client: ZooKeeper, node: str = "n1") -> Election:
        election = Election(client, f"/{self.cluster}", Term(node, f"{node}-1"))
        election.prepare(0)
        return election

    def membership(self, client: ZooKeeper, node: str = "n1", incarnation: str = "1") -> Membership:
        return Membership(client, self.cluster, NodeInfo(node, f"{node}:80", incarnation))
