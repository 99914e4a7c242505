"""Where the effects of a drill happen and are counted: a table in PostgreSQL, or a hash in Redis.

The effects are their own ledger. They stand in a database, not in what a process remembers, nothing there
forbids a second one, and whoever counts them in the end asks neither the engine nor a dedup store.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

import relevo

CALL_S: Final = 10.0
"""A store on a machine that is being hurt answers late."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,40}\Z")


class Effects(Protocol):
    """One kind of place.

    Attributes:
        exactly_once: Whether an effect and its done mark are one commit, so that no kill repeats any.
    """

    exactly_once: bool

    def prepare(self) -> None:
        """Make room for them. Called once, before anything works.

        Raises:
            StoreUnsafe: No dedup store can keep its promises there.
            StoreUnavailable: Nobody answers there.
        """

    def store(self, concurrency: int) -> relevo.DedupStore:
        """The dedup store that workers use with it; so many handlers run at once in each."""

    async def perform(self, job: relevo.Job, seconds: float) -> None:
        """One effect: a handler that takes so many seconds."""

    def counts(self) -> Counter[str]:
        """How often each job's effect has happened."""

    def remove(self) -> None:
        """Clear away what `prepare`, the workers and their store have put there."""


class PostgresEffects:
    """A row for each effect, put there in `relevo.Job.transaction`.

    Args:
        url: ``postgresql://…``.
        name: Of the table; another one for each drill.
    """

    exactly_once = True

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._table = _checked(name)
        self._insert = f"INSERT INTO {self._table} VALUES (%s, %s, clock_timestamp())"  # noqa: S608 - checked

    def prepare(self) -> None:  # noqa: D102 - as in the protocol
        _check(self.store(1))
        # No key, no constraint: a second effect shall be seen, not refused.
        self._ask(f"CREATE TABLE {self._table} (key text NOT NULL, attempt int NOT NULL, at timestamptz)")

    def store(self, concurrency: int) -> relevo.DedupStore:  # noqa: D102
        table = f"{self._table}_dedup"
        return relevo.SqlDedupStore(self._url, table=table, timeout=CALL_S, connections=concurrency)

    async def perform(self, job: relevo.Job, seconds: float) -> None:  # noqa: D102
        async with job.transaction() as connection:
            # Some are to die before their effect, some after it and before the commit.
            await asyncio.sleep(seconds / 2)
            await connection.execute(self._insert, (job.key, job.attempt))
            await asyncio.sleep(seconds / 2)
            job.done({"attempt": job.attempt})

    def counts(self) -> Counter[str]:  # noqa: D102
        per_key = f"SELECT key, count(*) FROM {self._table} GROUP BY key"  # noqa: S608 - checked
        return Counter(dict(self._ask(per_key)))

    def remove(self) -> None:  # noqa: D102
        self._ask(f"DROP TABLE IF EXISTS {self._table}, {self._table}_dedup")

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        psycopg = _module("psycopg", "sql")
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                cursor = connection.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []
        except psycopg.Error as error:
            raise relevo.StoreUnavailable(f"the table of effects, {self._table}: {error}") from error


class RedisEffects:
    """A counter for each job. The dedup store is in the same Redis, and can't know of the effect's moment.

    Args:
        url: ``redis://…``.
        name: Of the hash; another one for each drill.
    """

    exactly_once = False

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._hash = _checked(name)
        self._client: Any = None

    def prepare(self) -> None:  # noqa: D102
        _check(self.store(1))

    def store(self, concurrency: int) -> relevo.DedupStore:  # noqa: D102
        return relevo.RedisDedupStore(self._url, timeout=CALL_S, volatile_ok=True)

    async def perform(self, job: relevo.Job, seconds: float) -> None:  # noqa: D102
        if self._client is None:
            self._client = self._connect("redis.asyncio")
        await asyncio.sleep(seconds / 2)
        await self._client.hincrby(self._hash, job.key, 1)
        await asyncio.sleep(seconds / 2)

    def counts(self) -> Counter[str]:  # noqa: D102
        with self._connect() as client:
            found = client.hgetall(self._hash)
        return Counter({key.decode(): int(count) for key, count in found.items()})

    def remove(self) -> None:  # noqa: D102
        # Done marks end with their time; they bear the names of this drill's jobs only.
        with self._connect() as client:
            client.delete(self._hash)

    def _connect(self, module: str = "redis") -> Any:
        """Without the client's own retries: one that repeats a call whose answer was lost counts twice."""
        made = _module(module, "redis")
        retries = importlib.import_module("redis.asyncio.retry" if "asyncio" in module else "redis.retry")
        none = retries.Retry(importlib.import_module("redis.backoff").NoBackoff(), 0)
        return made.Redis.from_url(self._url, socket_timeout=CALL_S, retry=none)


_KINDS: Final[dict[str, Callable[[str, str], Effects]]] = {
    "postgresql": PostgresEffects,
    "postgres": PostgresEffects,
    "redis": RedisEffects,
    "rediss": RedisEffects,
}


def effects_at(url: str, name: str) -> Effects:
    """The place that an address stands for.

    Args:
        url: ``postgresql://…`` or ``redis://…``.
        name: Of the table or hash.

    Raises:
        ConfigurationError: It is neither; the address isn't shown, as it may hold a password.
    """
    scheme, found, _ = url.partition("://")
    if not found or scheme not in _KINDS:
        raise relevo.ConfigurationError(
            "effects happen at postgresql://user:password@host:port/database, in the job's transaction, or "
            "at redis://host:port/db, beside it"
        )
    return _KINDS[scheme](url, name)


def _check(store: relevo.DedupStore) -> None:
    try:
        store.check()
    finally:
        store.close()


def _checked(name: str) -> str:
    if not _NAME.match(name):
        raise relevo.ConfigurationError(f"{name!r} can't be a table: small letters, digits and _")
    return name


def _module(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise relevo.MissingExtra("a drill of effects", extra) from error
