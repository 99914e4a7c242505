"""A batch of commands on its way to Redis, or to each node of a Redis Cluster."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final, TypeAlias

_log: Final = logging.getLogger("relevo.dedup")

Command: TypeAlias = tuple[Any, ...]
"""As it goes over the wire: ``("EVALSHA", sha, 1, key, argument…)``."""
_KEY = 3


def one_trip(client: Any, commands: Sequence[Command]) -> list[Any]:
    """The answers of one server, in one round trip. Never raises: an error is an answer.

    A server that takes no writes was the master when its connections were made, maybe, and another one has
    its name or address by now: what it refused is asked once more, on new connections.
    """
    replies = _pipelined(client, commands)
    refused = [at for at, reply in enumerate(replies) if _is_read_only(reply)]
    if refused:
        _let_go(client)
        again = _pipelined(client, [commands[at] for at in refused])
        for at, reply in zip(refused, again, strict=True):
            replies[at] = reply
    return replies


def _pipelined(client: Any, commands: Sequence[Command]) -> list[Any]:
    try:
        with client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = pipe.execute(raise_on_error=False)
    except Exception as error:  # redis-py's errors have no base in common
        return [error] * len(commands)
    if len(replies) != len(commands):
        return [ValueError(f"{len(replies)} answers to {len(commands)} calls")] * len(commands)
    return replies


def _is_read_only(reply: Any) -> bool:
    """Before Redis 7 a script's error was told as one of the script's."""
    return isinstance(reply, Exception) and (
        type(reply).__name__ == "ReadOnlyError"
        or (type(reply).__name__ == "ResponseError" and "READONLY" in str(reply))
    )


def _let_go(client: Any) -> None:
    """End the connections that nobody uses now; the others find out by themselves."""
    try:
        try:
            client.connection_pool.disconnect(inuse_connections=False)
        except TypeError:  # some kinds of pools, in older versions, can only end all
            client.connection_pool.disconnect()
    except Exception as error:  # a pool of the user's own
        _log.debug("connections to a read-only Redis could not be ended: %s", type(error).__name__)


def cluster_trip(client: Any, redis: ModuleType, commands: Sequence[Command]) -> list[Any]:
    """The answers of a cluster, in one round trip for each node that has some of the keys. Never raises.

    Args:
        client: A ``redis.RedisCluster``. Its own pipeline would repeat each command of a silent node by
            itself, and wait for each.
        redis: The module.
        commands: Each with one key.
    """
    replies: list[Any] = [None] * len(commands)
    by_node: dict[str, tuple[Any, list[int]]] = {}
    for at, command in enumerate(commands):
        try:
            node = client.get_node_from_key(command[_KEY])
        except Exception as error:
            replies[at] = error
        else:
            by_node.setdefault(node.name, (node, []))[1].append(at)
    for node, places in by_node.values():
        try:
            server = client.get_redis_connection(node)
        except Exception as error:
            found: list[Any] = [error] * len(places)
        else:
            found = one_trip(server, [commands[at] for at in places])
        for at, reply in zip(places, found, strict=True):
            replies[at] = reply
    _redirected(client, redis, commands, replies)
    return replies


def _redirected(client: Any, redis: ModuleType, commands: Sequence[Command], replies: list[Any]) -> None:
    """Ask again for keys that have moved, or whose node is gone: the client finds out who has them now."""
    kinds = redis.exceptions
    gone = (kinds.ConnectionError, kinds.TimeoutError, kinds.SlotNotCoveredError)
    elsewhere = (kinds.AskError, kinds.TryAgainError, *gone)  # MOVED is a kind of ASK
    for at, reply in enumerate(replies):
        if isinstance(reply, elsewhere):
            try:
                replies[at] = client.execute_command(*commands[at])
            except kinds.NoScriptError as error:
                replies[at] = error  # an answer: the caller tells the node its script
            except Exception as error:
                replies[at] = error
                return  # each of the others would wait as long
