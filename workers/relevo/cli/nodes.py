"""Finds a node's HTTP API: named by the user, or looked up in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from relevo.cli.output import addresses
from relevo.errors import ConfigurationError, Unreachable

if TYPE_CHECKING:
    from relevo_engine.api.client import ApiClient

C = TypeVar("C", bound=Callable[..., Any])
_CONNECT_S = 5.0
_SESSION_S = 6.0
_PROBE_S = 3.0
"""A node that is alive says so at once; one that is frozen must not hold up the way to another."""


def node_options(function: C) -> C:
    """Adds ``--api`` and ``--zookeeper``: how to reach a node of the cluster that another option names."""
    decorators = (
        click.option("--api", envvar="RELEVO_API", default=None, metavar="HOST:PORT", callback=_api_address,
                     help="HTTP API of any node. Default: looked up in ZooKeeper.  [env RELEVO_API]"),
        click.option("--zookeeper", envvar="RELEVO_ZOOKEEPER", default="localhost:2181", show_default=True,
                     metavar="HOST:PORT", callback=addresses,
                     help="Where nodes are looked up.  [env RELEVO_ZOOKEEPER]"),
    )  # fmt: skip
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def api_options(function: C) -> C:
    """Adds ``--api``, ``--zookeeper`` and ``--cluster``: how to reach a node."""
    cluster = click.option("--cluster", envvar="RELEVO_CLUSTER", default="relevo", show_default=True,
                           metavar="NAME", help="Name of the cluster.  [env RELEVO_CLUSTER]")  # fmt: skip
    return node_options(cluster(function))


def find_api(api: str | None, zookeeper: str, cluster: str) -> ApiClient:
    """The API that the user named, else that of a node that answers.

    Where the environment names a node that is away, and ZooKeeper's address was given too, another node is
    looked up. A node that a flag names is the one that was meant.

    Raises:
        Unreachable: ZooKeeper doesn't answer, or no node does.
        ConfigurationError: The node that was named belongs to another cluster than was named.
    """
    from relevo_engine.api.client import ApiClient
    from relevo_engine.errors import UnreachableError

    if api:
        try:
            found = ApiClient(api, _PROBE_S).get("/healthz")
        except UnreachableError as error:
            if _given("api") is not ParameterSource.ENVIRONMENT or not _was_given("zookeeper"):
                raise
            click.echo(f"note: {error} (RELEVO_API); asking another node, found by ZooKeeper", err=True)
        else:
            if _was_given("cluster"):
                require_same_cluster(found, api, cluster)
            return ApiClient(api)
    return _find_by_zookeeper(zookeeper, cluster)


def require_same_cluster(found: dict[str, Any], api: str, cluster: str) -> None:
    """Refuses a node of another cluster, whose jobs and partitions would be shown as this one's.

    Raises:
        ConfigurationError: It belongs to another.
    """
    name = found.get("cluster")
    if name is not None and name != cluster:
        raise ConfigurationError(
            f"the node at {api} belongs to cluster {name}, not {cluster}: name a node of {cluster} by --api,"
            f" or leave --api and RELEVO_API away, so that one is looked up in ZooKeeper"
        )


def _find_by_zookeeper(zookeeper: str, cluster: str) -> ApiClient:
    from relevo_engine.api.client import ApiClient

    known = _look_up(zookeeper, cluster)
    for address in known:
        if _answers(ApiClient(address, _PROBE_S)):
            return ApiClient(address)
    found = f"none of {', '.join(known)} answers" if known else "none is registered"
    raise Unreachable(
        f"cluster {cluster} has no node to ask: {found} (ZooKeeper at {zookeeper})."
        " Is one running, and is the cluster's name right?"
    )


def _given(name: str) -> ParameterSource | None:
    context = click.get_current_context(silent=True)
    return context.get_parameter_source(name) if context is not None else None


def _was_given(name: str) -> bool:
    return _given(name) not in (None, ParameterSource.DEFAULT)


def _api_address(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    return addresses(context, parameter, given.removeprefix("http://").rstrip("/") if given else None)


def _answers(client: ApiClient) -> bool:
    from relevo_engine.errors import EngineError

    try:
        client.get("/healthz")
    except EngineError:
        return False
    return True


def _look_up(zookeeper: str, cluster: str) -> list[str]:
    from relevo_partitions.election.membership import Membership, NodeInfo
    from relevo_partitions.election.zookeeper import ZooKeeper
    from relevo_partitions.errors import ZooKeeperUnavailable

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
