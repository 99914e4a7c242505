"""A dedup store in Redis."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from relevo.dedup.redis_safety import SafetyCheck
from relevo.dedup.redis_trips import Command, cluster_trip, one_trip
from relevo.dedup.store import (
    DEFAULT_TTL_S,
    MINE,
    Answer,
    Claim,
    DedupStore,
    Done,
    Finish,
    Held,
    Unknown,
    check_seconds,
)
from relevo.errors import ConfigurationError, MissingExtra, StoreUnavailable, StoreUnsafe

_log: Final = logging.getLogger("relevo.dedup")

# A value is one letter and a text: "c" + token for a claim, "d" + result for what is done. Every script
# answers with a number: 1 mine, 2 done (and the result), 3 held by another (and the milliseconds that are
# left).
_SEE: Final = """
local value = redis.call('GET', KEYS[1])
local mine = not value or value == 'c' .. ARGV[1]
if not mine then
  if string.sub(value, 1, 1) == 'd' then return {2, string.sub(value, 2)} end
  return {3, redis.call('PTTL', KEYS[1])}
end
"""


class _Script:
    """A script and the name Redis knows it by."""

    def __init__(self, body: str) -> None:
        self.text = _SEE + body
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_CLAIM: Final = _Script("redis.call('SET', KEYS[1], 'c' .. ARGV[1], 'PX', ARGV[2])\nreturn {1}")
_DONE: Final = _Script("redis.call('SET', KEYS[1], 'd' .. ARGV[3], 'PX', ARGV[2])\nreturn {1}")
_RELEASE: Final = _Script("if value then redis.call('DEL', KEYS[1]) end\nreturn {1}")


class RedisDedupStore(DedupStore):
    """Remembers in Redis, across worker processes and their restarts.

    Every decision is one atomic script on one key (``relevo:<cluster>:dedup:<job key>``), a batch is one
    round trip. In a Redis Cluster the keys spread over all nodes, and a batch is one round trip for each node
    that has some of them; a node that is down is no answer for its own keys only.

    What a failover may forget: Redis replicates after it has answered. When a replica is promoted, or Redis
    restarts without its newest writes (``appendfsync everysec`` can lose a second, no persistence loses
    all), claims and done marks of the last moments can be gone, and a job delivered again just then is run
    again. Where that matters, let the effect itself carry `relevo.Job.idempotency_key` too. A master that has
    become a replica is left at its first answer: the address is asked for the new one.

    Args:
        url: ``redis://[user:password@]host:port/db``, ``rediss://`` or ``unix://``. Any node of a Redis
            Cluster will do: the store finds out that it is one.
        ttl: How long a done job is remembered, in seconds.
        timeout: How long a call may take before its answer is `Unknown`, in seconds; a few times as long
            where a node of a cluster is silent.
        client: A ``redis.Redis`` or ``redis.RedisCluster`` to use in place of one made from ``url``.
        volatile_ok: Take a Redis that keeps nothing on disk, too. Started again it has forgotten all claims
            and done marks; right for tests and caches, where a repeat does no harm.

    Raises:
        MissingExtra: redis-py is not installed.
        ConfigurationError: ``ttl``, ``timeout``, ``url`` or ``client`` can't be right.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379",
        ttl: float = DEFAULT_TTL_S,
        *,
        timeout: float = 1.0,
        client: Any = None,
        volatile_ok: bool = False,
    ) -> None:
        check_seconds("ttl", ttl)
        check_seconds("timeout", timeout)
        try:
            self._redis = importlib.import_module("redis")
        except ImportError as error:
            raise MissingExtra("RedisDedupStore", "redis") from error
        if inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
            raise ConfigurationError(
                "the client given to RedisDedupStore is one for coroutines: give it a redis.Redis or a "
                "redis.RedisCluster; handlers may be coroutines all the same"
            )
        self.ttl = ttl
        self._looking = threading.Lock()
        self._safety = SafetyCheck(self._redis, volatile_ok)
        self._url, self._timeout = (url, timeout) if client is None else ("", 0.0)
        self._address = _address(url) if client is None else "the given client"
        self._client = client if client is not None else self._connect(self._redis.Redis)

    def _connect(self, kind: Any) -> Any:
        retry = importlib.import_module("redis.retry")
        backoff = importlib.import_module("redis.backoff")
        url = self._url
        try:
            return kind.from_url(
                url,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                # A pooled connection may be dead: one more try on a fresh one. All scripts may be repeated.
                retry=retry.Retry(backoff.NoBackoff(), 1),
                health_check_interval=0,
            )
        except (ValueError, TypeError) as error:
            # Its text may quote the address with the password in it.
            raise ConfigurationError(
                f"the address of Redis ({self._address}) can't be used: expected redis://host:port/db"
            ) from (error if self._address == url else None)

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102 - as in the contract
        return self._run(_CLAIM, [(claim.key, claim.token, _ms(claim.seconds)) for claim in claims])

    # Taking a claim that is one's own already renews it, and one that has ended is free.
    renew = claim

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:  # noqa: D102
        return self._run(
            _DONE, [(each.key, each.token, _ms(each.ttl or self.ttl), each.result) for each in finishes]
        )

    def release(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        return self._run(_RELEASE, [(claim.key, claim.token) for claim in claims])

    def check(self) -> None:
        """Refuse a Redis that would forget what was done; in a cluster, each node that takes writes.

        Raises:
            StoreUnsafe: It throws keys away when memory gets short, or keeps nothing on disk and
                ``volatile_ok`` is False, or is a cluster and the given client is for a single server. The
                message says what to change.
            StoreUnavailable: It doesn't answer.
        """
        try:
            self._look_for_a_cluster()
            if not self._in_cluster:
                self._safety.check(self._client, self._address)
                return
            for node in self._client.get_primaries():
                self._safety.check(self._client.get_redis_connection(node), node.name)
        except (self._redis.RedisError, self._redis.exceptions.RedisClusterException) as error:
            raise StoreUnavailable(f"Redis at {self._address}: {_reason(error)}") from None
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"Redis at {self._address}: {type(error).__name__}") from None

    @property
    def _in_cluster(self) -> bool:
        return isinstance(self._client, self._redis.RedisCluster)

    def _look_for_a_cluster(self) -> None:
        """A client for a single server hears of the other nodes' keys only that they are elsewhere."""
        with self._looking:  # each job type of a process does
            if self._in_cluster or not self._client.info("cluster").get("cluster_enabled"):
                return
            if not self._url or self._url.startswith("unix:"):
                raise StoreUnsafe(
                    f"Redis at {self._address} is a Redis Cluster, and its client one for a single server: "
                    f"give RedisDedupStore a redis.RedisCluster as client, or the redis:// address of a node"
                )
            single, self._client = self._client, self._connect(self._redis.RedisCluster)
            single.close()

    def close(self) -> None:  # noqa: D102
        self._client.close()

    def _run(self, script: _Script, calls: Sequence[tuple[Any, ...]]) -> list[Answer]:
        """One round trip for all ``calls``; a second one where Redis doesn't know the script yet."""
        if not calls:
            return []
        keyed = [("relevo:" + key, *args) for key, *args in calls]
        replies = self._round_trip([("EVALSHA", script.sha, 1, *call) for call in keyed])
        unknown = [
            at for at, reply in enumerate(replies) if isinstance(reply, self._redis.exceptions.NoScriptError)
        ]
        if unknown:
            again = self._round_trip([("EVAL", script.text, 1, *keyed[at]) for at in unknown])
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        return [_answer(reply) for reply in replies]

    def _round_trip(self, commands: Sequence[Command]) -> list[Any]:
        client = self._client
        if isinstance(client, self._redis.RedisCluster):
            return cluster_trip(client, self._redis, commands)
        replies = one_trip(client, commands)
        moved = [
            at for at, reply in enumerate(replies) if isinstance(reply, self._redis.exceptions.MovedError)
        ]
        if moved:  # nobody has called check(), which finds out before the first claim
            again = self._in_cluster_after_all([commands[at] for at in moved])
            for at, reply in zip(moved, again or [replies[at] for at in moved], strict=True):
                replies[at] = reply
        return replies

    def _in_cluster_after_all(self, commands: Sequence[Command]) -> list[Any] | None:
        """The answers of the cluster that a single server turned out to be part of; None: it isn't."""
        try:
            self._look_for_a_cluster()
        except StoreUnsafe as error:
            return [error] * len(commands)
        except Exception as error:  # redis-py's errors have no base in common
            _log.debug("asking whether Redis is a cluster failed: %s", type(error).__name__)
        client = self._client
        return cluster_trip(client, self._redis, commands) if self._in_cluster else None


def _answer(reply: Any) -> Answer:
    if isinstance(reply, Exception):
        return Unknown(_reason(reply))
    match reply:
        case [1]:
            return MINE
        case [2, bytes(result)]:
            return Done(result)
        case [2, str(text)]:
            return Done(text.encode())
        case [3, int(left_ms)]:
            return Held(time.time() + max(left_ms, 0) / 1_000)
        case _:
            return Unknown(f"an answer that no script of ours gives: {type(reply).__name__}")


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1_000))


def _reason(error: Exception) -> str:
    """The kind of the error, and its text where the server wrote it: others may quote an address."""
    name = type(error).__name__
    if name in (
        "ResponseError",
        "ReadOnlyError",
        "OutOfMemoryError",
        "MovedError",
        "ClusterDownError",
        "BusyLoadingError",
        "StoreUnsafe",
        "ValueError",
    ):
        return f"{name}: {str(error)[:200]}"
    return name


def _address(url: str) -> str:
    """Where Redis is, without user and password."""
    try:
        parts = urlsplit(url)
        return (
            f"{parts.hostname or 'localhost'}:{parts.port or 6379}" if parts.scheme != "unix" else parts.path
        )
    except ValueError:
        return "unreadable address"
