"""The same activations at two workers at the same moment, thousands of times, effects counted.

A barrier lets both workers ask at once, for one key or for a batch of `BATCH`. What a test's name counts is
barriers in Redis, and keys in databases: there most keys come in batches, as a barrier for each would take
minutes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psycopg
import pytest
import redis

from relevo.dedup.redis import RedisDedupStore
from relevo.dedup.sql import SqlDedupStore
from relevo.dedup.store import Answer, Claim, DedupStore, Done, Finish, Mine
from relevo.worker.transactions import Grant
from tests.integration.test_dedup_sql import execute

BATCH = 25
ROLLED_BACK_EVERY = 10
"""The first worker to get such a job fails, and the other one is to run it."""
LONG_S = 600.0


class Effects(Protocol):
    """Where effects happen, and are counted past the store."""

    def perform(self, keys: Sequence[str]) -> None:
        """Each once more."""

    def counts(self) -> Counter[str]:
        """How often each has happened."""


@dataclass
class Race:
    """Two workers on the same keys.

    Attributes:
        effects: Where they happen.
        groups: What is handed to both at each barrier.
        in_transaction: Whether a job that fails once does so inside a transaction.
        passed: How many barriers each worker has passed.
    """

    effects: Effects
    groups: list[list[str]]
    in_transaction: bool
    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=60))
    failed_once: dict[str, str] = field(default_factory=dict)
    won: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    errors: list[BaseException] = field(default_factory=list)

    def run(self, stores: Sequence[DedupStore]) -> None:
        threads = [
            threading.Thread(target=self._work, args=(store, f"worker-{n}")) for n, store in enumerate(stores)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        assert self.errors == []

    def _work(self, store: DedupStore, me: str) -> None:
        try:
            for keys in self.groups:
                self.barrier.wait()
                self.passed[me] += 1
                self._until_settled(store, me, keys)
        except BaseException as error:
            self.errors.append(error)
            self.barrier.abort()

    def _until_settled(self, store: DedupStore, me: str, keys: list[str]) -> None:
        left = keys
        while left:
            found = store.claim([Claim(key, me, LONG_S) for key in left])
            self.answers.update(type(answer).__name__ for answer in found)
            mine = [key for key, answer in zip(left, found, strict=True) if isinstance(answer, Mine)]
            to_fail = [key for key in mine if fails_once(key) and self.failed_once.setdefault(key, me) == me]
            for key in to_fail:
                self._fail(store, Claim(key, me, LONG_S))
            self._perform(store, me, [key for key in mine if key not in to_fail])
            left = [
                key for key, answer in zip(left, found, strict=True) if not isinstance(answer, Mine | Done)
            ]
            if left:
                time.sleep(0.001)

    def _fail(self, store: DedupStore, claim: Claim) -> None:
        if self.in_transaction:
            with pytest.raises(ZeroDivisionError):
                effect(store, claim, fail=True)
        until_clear(lambda: store.release([claim]))

    def _perform(self, store: DedupStore, me: str, keys: list[str]) -> None:
        if not keys:
            return
        in_transaction = [key for key in keys if self.in_transaction and fails_once(key)]
        for key in in_transaction:
            effect(store, Claim(key, me, LONG_S))
        others = [key for key in keys if key not in in_transaction]
        self.effects.perform(others)
        until_clear(lambda: store.done([Finish(key, me, b"1") for key in keys]))
        self.won[me] += len(keys)


def effect(store: DedupStore, claim: Claim, *, fail: bool = False) -> None:
    """One in the job's own transaction."""
    with Grant(store, claim, None).transaction() as connection:
        connection.execute(f"INSERT INTO effects VALUES ('{claim.key}')")
        if fail:
            raise ZeroDivisionError


def until_clear(ask: Callable[[], list[Answer]]) -> None:
    while not all(isinstance(answer, Mine | Done) for answer in ask()):
        time.sleep(0.001)


def fails_once(key: str) -> bool:
    return int(key.rpartition("-")[2]) % ROLLED_BACK_EVERY == 0


def groups(singles: int, total: int) -> list[list[str]]:
    """So many keys one by one, the others in batches."""
    keys = [f"job-{number}" for number in range(total)]
    return [[key] for key in keys[:singles]] + [keys[at : at + BATCH] for at in range(singles, total, BATCH)]


def check(race: Race, total: int) -> None:
    counts = race.effects.counts()
    assert {key: count for key, count in counts.items() if count != 1} == {}
    assert len(counts) == total
    assert len(race.failed_once) == total // ROLLED_BACK_EVERY
    assert sum(race.won.values()) == total
    assert min(race.won.values()) > 0, "both were there"
    assert race.answers["Held"] > 0, "and met"


class SqlEffects:
    def __init__(self, url: str) -> None:
        self._url = url
        execute(url, "CREATE TABLE effects (key text)")

    def perform(self, keys: Sequence[str]) -> None:
        if keys:
            execute(self._url, "INSERT INTO effects VALUES " + ", ".join(f"('{key}')" for key in keys))

    def counts(self) -> Counter[str]:
        return Counter(dict(execute(self._url, "SELECT key, count(*) FROM effects GROUP BY key")))


class PostgresEffects(SqlEffects):
    """On one connection for each worker: making one costs more than the race."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._local = threading.local()
        self._opened: list[psycopg.Connection] = []

    def perform(self, keys: Sequence[str]) -> None:
        if not hasattr(self._local, "connection"):
            self._local.connection = psycopg.connect(self._url, autocommit=True)
            self._opened.append(self._local.connection)
        self._local.connection.execute("INSERT INTO effects SELECT unnest(%s::text[])", (list(keys),))

    def close(self) -> None:
        for connection in self._opened:
            connection.close()


class RedisEffects:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def perform(self, keys: Sequence[str]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hincrby("effects", key, 1)
            pipe.execute()

    def counts(self) -> Counter[str]:
        found = self._client.hgetall("effects")
        return Counter({bytes(key).decode(): int(count) for key, count in found.items()})  # type: ignore[arg-type]


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        yield client


@pytest.mark.timeout(600)
def test_ten_thousand_barriers_in_redis(redis_url: str, redis_client: redis.Redis) -> None:
    total = 11_000
    stores = [RedisDedupStore(redis_url, timeout=10) for _ in range(2)]
    race = Race(RedisEffects(redis_client), groups(10_000, total), in_transaction=False)
    race.run(stores)
    assert race.passed == {"worker-0": 10_040, "worker-1": 10_040}
    check(race, total)
    for store in stores:
        store.close()


@pytest.mark.timeout(600)
def test_ten_thousand_keys_in_postgres(postgres_url: str) -> None:
    """At 1,360 barriers: 1,000 keys one by one, 9,000 in batches."""
    total = 10_000
    stores = [SqlDedupStore(postgres_url, timeout=10) for _ in range(2)]
    effects = PostgresEffects(postgres_url)
    race = Race(effects, groups(1_000, total), in_transaction=True)
    race.run(stores)
    assert race.passed == {"worker-0": 1_360, "worker-1": 1_360}
    check(race, total)
    effects.close()
    for store in stores:
        store.close()


@pytest.mark.timeout(600)
def test_two_thousand_keys_in_sqlite(tmp_path: Path) -> None:
    """At 272 barriers: 200 keys one by one, 1,800 in batches."""
    total = 2_000
    url = f"sqlite:///{tmp_path}/dedup.db"
    stores = [SqlDedupStore(url, timeout=30) for _ in range(2)]
    race = Race(SqlEffects(url), groups(200, total), in_transaction=True)
    race.run(stores)
    assert race.passed == {"worker-0": 272, "worker-1": 272}
    check(race, total)
    for store in stores:
        store.close()
