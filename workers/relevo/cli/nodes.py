"""Finds a node's HTTP API: named by the user, or looked up in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relevo.errors import Unreachable

if TYPE_CHECKING:
    from relevo_engine.api.client import ApiClient

C = TypeVar("C", bound=Callable[..., Any])
_CONNECT_S = 5.0
_SESSION_S = 6.0


def api_options(function: C) -> C:
    """Adds ``--api``, ``--zookeeper`` and ``--cluster``: how to reach a node."""
    decorators = (
        click.option("--api", envvar="RELEVO_API", default=None, metavar="HOST:PORT",
                     help="HTTP API of any node. Default: looked up in ZooKeeper.  [env RELEVO_API]"),
        click.option("--zookeeper", envvar="RELEVO_ZOOKEEPER", default="localhost:2181", show_default=True,
                     metavar="HOST:PORT", help="Where nodes are looked up.  [env RELEVO_ZOOKEEPER]"),
        click.option("--cluster", envvar="RELEVO_CLUSTER", default="relevo", show_default=True,
                     metavar="NAME", help="Name of the cluster.  [env RELEVO_CLUSTER]"),
    )  # fmt: skip
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def find_api(api: str | None, zookeeper: str, cluster: str) -> ApiClient:
    """The API that the user named, else that of a node that answers.

    Raises:
        Unreachable: ZooKeeper doesn't answer, or no node does.
    """
    from relevo_engine.api.client import ApiClient

    if api:
        return ApiClient(api)
    addresses = _look_up(zookeeper, cluster)
    for address in addresses:
        client = ApiClient(address)
        if _answers(client):
            return client
    found = f"none of {', '.join(addresses)} answers" if addresses else "none is registered"
    raise Unreachable(
        f"cluster {cluster} has no node to ask: {found} (ZooKeeper at {zookeeper})."
        " Is one running, and is the cluster's name right?"
    )


def _answers(client: ApiClient) -> bool:
    from relevo_engine.errors import UnreachableError

    try:
        client.get("/healthz")
    except UnreachableError:
        return False
    return True


def _look_up(zookeeper: str, cluster: str) -> list[str]:
    from relevo_partitions.errors import ZooKeeperUnavailable
    from relevo_partitions.membership import Membership, NodeInfo
    from relevo_partitions.zookeeper import ZooKeeper

    client = ZooKeeper(zookeeper, _SESSION_S, lambda _state: None, lambda _path: None)
    try:
        client.start()
        if not client.wait_connected(_CONNECT_S):
            raise Unreachable(
                f"no ZooKeeper answers at {zookeeper}. Is it running, and is the address right?"
                " A node can be named instead: --api HOST:PORT, or RELEVO_API."
            )
        nodes = Membership(client, cluster, NodeInfo("", "", "")).nodes()
        return [each.address for each in nodes if each.address]
    except ZooKeeperUnavailable as error:
        raise Unreachable(f"{error}. A node can be named instead: --api HOST:PORT, or RELEVO_API.") from error
    finally:
        client.close(1.0)
