"""A dedup store in Redis."""

from __future__ import annotations

import hashlib
import importlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

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
    round trip.

    What a failover may forget: Redis replicates after it has answered. When a replica is promoted, or Redis
    restarts without its newest writes (``appendfsync everysec`` can lose a second, no persistence loses
    all), claims and done marks of the last moments can be gone, and a job delivered again just then is run
    again. Where that matters, let the effect itself carry `relevo.Job.idempotency_key` too.

    Args:
        url: ``redis://[user:password@]host:port/db``, ``rediss://`` or ``unix://``.
        ttl: How long a done job is remembered, in seconds.
        timeout: How long a call may take before its answer is `Unknown`, in seconds.
        client: A ``redis.Redis`` to use in place of one made from ``url``.

    Raises:
        MissingExtra: redis-py is not installed.
        ConfigurationError: ``ttl``, ``timeout`` or ``url`` can't be right.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379",
        ttl: float = DEFAULT_TTL_S,
        *,
        timeout: float = 1.0,
        client: Any = None,
    ) -> None:
        check_seconds("ttl", ttl)
        check_seconds("timeout", timeout)
        try:
            self._redis = importlib.import_module("redis")
        except ImportError as error:
            raise MissingExtra("RedisDedupStore", "redis") from error
        self.ttl = ttl
        self._told = False
        self._address = _address(url) if client is None else "the given client"
        self._client = client if client is not None else self._connect(url, timeout)

    def _connect(self, url: str, timeout: float) -> Any:
        retry = importlib.import_module("redis.retry")
        backoff = importlib.import_module("redis.backoff")
        try:
            return self._redis.Redis.from_url(
                url,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
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
        """Refuse a Redis that throws keys away when memory gets short.

        Raises:
            StoreUnsafe: It does; the message says what to change.
            StoreUnavailable: It doesn't answer.
        """
        try:
            memory = self._client.info("memory")
            persistence = self._client.info("persistence")
        except self._redis.RedisError as error:
            raise StoreUnavailable(f"Redis at {self._address}: {_reason(error)}") from None
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"Redis at {self._address}: {type(error).__name__}") from None
        policy = str(memory.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction":
            raise StoreUnsafe(
                f"Redis at {self._address} has maxmemory-policy {policy}: when memory gets short it would "
                f"forget claims, and jobs run twice. Set maxmemory-policy noeviction, or use another Redis"
            )
        if self._told or persistence.get("aof_enabled") or memory.get("maxmemory"):
            return
        if self._saves_nothing():
            self._told = True  # each job type of a process has it checked
            _log.warning(
                "Redis at %s keeps nothing on disk: a restart of it forgets what was done", self._address
            )

    def _saves_nothing(self) -> bool:
        try:
            return not self._client.config_get("save").get("save")
        except self._redis.RedisError:
            return False  # managed servers refuse CONFIG, and keep their own promises

    def close(self) -> None:  # noqa: D102
        self._client.close()

    def _run(self, script: _Script, calls: Sequence[tuple[Any, ...]]) -> list[Answer]:
        """One round trip for all ``calls``; a second one where Redis doesn't know the script yet."""
        if not calls:
            return []
        replies = self._round_trip(calls, lambda pipe, key, *args: pipe.evalsha(script.sha, 1, key, *args))
        unknown = [
            at for at, reply in enumerate(replies) if isinstance(reply, self._redis.exceptions.NoScriptError)
        ]
        if unknown:
            again = self._round_trip(
                [calls[at] for at in unknown], lambda pipe, key, *args: pipe.eval(script.text, 1, key, *args)
            )
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        return [_answer(reply) for reply in replies]

    def _round_trip(self, calls: Sequence[tuple[Any, ...]], add: Callable[..., object]) -> list[Any]:
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for key, *args in calls:
                    add(pipe, "relevo:" + key, *args)
                replies: list[Any] = pipe.execute(raise_on_error=False)
        except (self._redis.RedisError, OSError, ValueError) as error:
            return [error] * len(calls)
        if len(replies) != len(calls):
            return [ValueError(f"{len(replies)} answers to {len(calls)} calls")] * len(calls)
        return replies


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
        "BusyLoadingError",
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
