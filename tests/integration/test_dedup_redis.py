"""The dedup contract on a real Redis, and what happens to it when Redis is hurt."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from relevo.dedup.redis import RedisDedupStore
from relevo.dedup.store import MINE, Answer, Claim, DedupStore, Done, Finish, Unknown
from relevo.errors import StoreUnavailable, StoreUnsafe
from relevo.testing.proxy import TcpProxy
from tests.contract.test_dedup_contract import DedupContract, Elapse
from tests.support.redis import Redis
from tests.support.redis import own_redis as another_redis
from tests.support.waiting import wait_until


@pytest.fixture
def namespace() -> str:
    return f"test-{uuid.uuid4().hex}:"


class TestRedisDedupStore(DedupContract):
    @pytest.fixture
    def store(self, redis_url: str) -> Iterator[DedupStore]:
        client = redis.Redis.from_url(redis_url)
        client.flushdb()
        store = RedisDedupStore(redis_url, timeout=10)
        yield store
        store.close()
        client.close()

    @pytest.fixture
    def elapse(self) -> Elapse:
        # Redis has a clock of its own: this is its time, not a wait for something to happen.
        return time.sleep


def test_keys_stand_where_the_documentation_says(redis_url: str, namespace: str) -> None:
    store = RedisDedupStore(redis_url)
    store.claim([Claim(f"{namespace}dedup:order-1", "me", 60)])
    with redis.Redis.from_url(redis_url) as client:
        assert client.get(f"relevo:{namespace}dedup:order-1") == b"cme"
        assert 0 < client.pttl(f"relevo:{namespace}dedup:order-1") <= 60_000
    store.close()


def test_a_batch_is_one_round_trip(redis_url: str, namespace: str) -> None:
    store = RedisDedupStore(redis_url)
    store.claim([Claim(namespace + "warm", "me", 60)])
    with redis.Redis.from_url(redis_url) as client:
        before = client.info("stats")["total_reads_processed"]
        store.claim([Claim(f"{namespace}{n}", "me", 60) for n in range(100)])
        after = client.info("stats")["total_reads_processed"]
    # The last question itself is among them; a batch may come in several reads, never one per key.
    assert after - before < 20
    store.close()


def test_a_redis_that_forgot_the_scripts_is_told_them_again(redis_url: str, namespace: str) -> None:
    store = RedisDedupStore(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        client.script_flush()
    assert store.claim([Claim(f"{namespace}{n}", "me", 60) for n in range(3)]) == [MINE] * 3
    store.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_redis_that_evicts_is_refused(own_redis: Redis, policy: str) -> None:
    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("maxmemory-policy", policy)
    store = RedisDedupStore(own_redis.url)
    with pytest.raises(StoreUnsafe, match=f"maxmemory-policy {policy}"):
        store.check()
    store.close()


def test_a_redis_that_keeps_nothing_on_disk_is_refused(own_redis: Redis) -> None:
    """The usual setting of a cache: a limit of memory, and no disk."""
    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("maxmemory", "100mb")
        store = RedisDedupStore(own_redis.url)
        with pytest.raises(StoreUnsafe, match=r"keeps nothing on disk.*volatile_ok=True"):
            store.check()
        RedisDedupStore(own_redis.url, volatile_ok=True).check()
        client.config_set("save", "60 1")
        store.check()
    store.close()


def test_a_store_error_is_not_taken_for_a_duplicate(own_redis: Redis) -> None:
    """Full, read-only, frozen, dead: each is no answer, and the same token gets the claim afterwards."""
    store = RedisDedupStore(own_redis.url, timeout=0.3)
    mine = [Claim("k", "me", 60)]
    with redis.Redis.from_url(own_redis.url) as client:
        assert store.claim(mine) == [MINE]
        client.config_set("maxmemory", "1")
        assert isinstance(store.claim([Claim("other", "me", 60)])[0], Unknown)
        client.config_set("maxmemory", "0")
        client.replicaof("127.0.0.1", "1")
        assert isinstance(store.done([Finish("k", "me", b"1")])[0], Unknown)
        client.replicaof("NO", "ONE")
    own_redis.freeze()
    assert isinstance(store.claim(mine)[0], Unknown)
    own_redis.thaw()
    assert store.claim(mine) == [MINE]
    assert store.done([Finish("k", "me", b"1")]) == [MINE]
    assert store.claim(mine) == [Done(b"1")]
    own_redis.kill()
    assert isinstance(store.claim(mine)[0], Unknown)
    with pytest.raises(StoreUnavailable):
        store.check()
    own_redis.restart()
    assert store.claim(mine) == [MINE], "this Redis keeps nothing on disk: a restart forgets, as the docs say"
    store.close()


def all_at_once(store: RedisDedupStore, name: str) -> set[Answer]:
    """What eight threads are answered, of which each needs a connection of its own."""
    barrier, answers = threading.Barrier(8, timeout=30), []

    def ask(number: int) -> None:
        for turn in range(20):
            barrier.wait()
            answers.extend(store.claim([Claim(f"{name}-{number}-{turn}-{n}", "me", 60) for n in range(10)]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 8 * 20 * 10
    return set(answers)


@pytest.mark.parametrize("pool", [None, redis.ConnectionPool, redis.BlockingConnectionPool])
def test_a_master_that_has_become_a_replica_is_left(own_redis: Redis, pool: Any) -> None:
    """It keeps the connections of before: behind a name, its worker would be told "read only" for ever."""
    with another_redis() as promoted, TcpProxy(own_redis.url.split("/")[2]) as name:
        url = f"redis://{name.address}/0"
        client = redis.Redis(connection_pool=pool.from_url(url)) if pool else None
        store = RedisDedupStore(url, timeout=10, client=client)
        old, new = redis.Redis.from_url(own_redis.url), redis.Redis.from_url(promoted.url)
        for server in (old, new):
            server.config_set("repl-diskless-sync-delay", "0")
        new.replicaof(*own_redis.url.split("/")[2].split(":"))
        assert all_at_once(store, "before") == {MINE}
        assert store.claim([Claim("running", "me", 60)]) == [MINE]
        wait_until(lambda: old.wait(1, 100) == 1, "the replica has all of it")
        new.replicaof("NO", "ONE")
        old.replicaof(*promoted.url.split("/")[2].split(":"))
        name.aim(promoted.url.split("/")[2])
        wait_until(lambda: old.info("replication")["master_link_status"] == "up", "it is a replica")
        assert store.claim([Claim("next", "me", 60)]) == [MINE], "the first call finds the new master"
        assert store.done([Finish("running", "me", b"1")]) == [MINE]
        assert store.claim([Claim("running", "you", 60)]) == [Done(b"1")]
        answers = all_at_once(store, "after")
        assert MINE in answers
        assert all_at_once(store, "later") == {MINE}, "no connection to the old one is left"
        store.close()
        for each in (client, old, new):
            if each is not None:
                each.connection_pool.disconnect()
