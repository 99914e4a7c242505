"""The dedup contract on a real Redis Cluster of two nodes: keys on both, keys that move, a node that dies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from relevo.dedup.redis import RedisDedupStore
from relevo.dedup.store import MINE, Answer, Claim, DedupStore, Done, Finish, Held, Mine, Unknown
from relevo.errors import StoreUnavailable, StoreUnsafe
from tests.contract.test_dedup_contract import DedupContract, Elapse
from tests.support.redis_cluster import SLOTS, RedisCluster, redis_cluster
from tests.support.waiting import wait_until

KEYS = [f"order-{number}" for number in range(200)]


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisCluster]:
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: RedisCluster) -> RedisCluster:
    """Empty."""
    for node in shared.nodes():
        node.flushall()
        node.script_flush()
    return shared


@pytest.fixture
def store(cluster: RedisCluster) -> Iterator[DedupStore]:
    store = RedisDedupStore(client=redis.RedisCluster.from_url(cluster.urls[0]))
    yield store
    store.close()


class TestRedisClusterDedupStore(DedupContract):
    @pytest.fixture
    def elapse(self) -> Elapse:
        # Redis has a clock of its own: this is its time, not a wait for something to happen.
        return time.sleep


def claims(token: str) -> list[Claim]:
    return [Claim(key, token, 60) for key in KEYS]


def kinds(answers: list[Answer]) -> Counter[type]:
    return Counter(type(answer) for answer in answers)


def test_a_batch_spreads_over_the_nodes_and_is_answered_in_its_order(
    cluster: RedisCluster, store: DedupStore
) -> None:
    store.done([Finish(key, "me", key.encode()) for key in KEYS])
    assert store.claim(claims("you")) == [Done(key.encode()) for key in KEYS]
    sizes = [node.dbsize() for node in cluster.nodes()]
    assert sum(sizes) == len(KEYS)
    assert min(sizes) > len(KEYS) // 4, "no hash tag puts all of them into one slot"


def test_the_address_of_any_node_will_do(cluster: RedisCluster) -> None:
    for url in cluster.urls:
        store = RedisDedupStore(url, timeout=10)
        store.check()  # as a worker does before its first claim
        assert store.claim(claims("me")) == [MINE] * len(KEYS)
        store.close()


def test_a_store_that_nobody_checked_finds_out_that_its_address_is_a_clusters(cluster: RedisCluster) -> None:
    """A store of one's own, without a worker: half of its keys would never get an answer."""
    store = RedisDedupStore(cluster.urls[0], timeout=10)
    assert store.claim(claims("me")) == [MINE] * len(KEYS)
    assert store.done([Finish(key, "me", b"1") for key in KEYS]) == [MINE] * len(KEYS)
    store.close()


def test_keys_that_have_moved_to_another_node(cluster: RedisCluster) -> None:
    """A cluster that is made larger moves slots under its clients."""
    client: Any = redis.RedisCluster.from_url(cluster.urls[0])
    store = RedisDedupStore(client=client)
    slots = {client.keyslot("relevo:" + key) for key in KEYS}
    assert store.claim(claims("warm")) == [MINE] * len(KEYS)
    assert store.release(claims("warm")) == [MINE] * len(KEYS)
    moved = [slot for slot in sorted(slots) if slot < SLOTS // 2][:10]
    for slot in moved:
        cluster.move(slot, to=1)
    try:
        assert store.claim(claims("me")) == [MINE] * len(KEYS)
        assert kinds(store.claim(claims("you"))) == {Held: len(KEYS)}
    finally:
        store.release(claims("me"))
        for slot in moved:
            cluster.move(slot, to=0)
        store.close()


def test_a_client_for_a_single_server_is_refused(cluster: RedisCluster) -> None:
    """It would be told "elsewhere" for half of its keys, for ever, and these jobs would never start."""
    with redis.Redis.from_url(cluster.urls[0]) as client:
        store = RedisDedupStore(client=client)
        with pytest.raises(StoreUnsafe, match=r"give RedisDedupStore a redis\.RedisCluster"):
            store.check()
        answers = store.claim(claims("me"))
        assert set(kinds(answers)) == {Mine, Unknown}
        assert all(
            "give RedisDedupStore a redis.RedisCluster" in answer.reason
            for answer in answers
            if isinstance(answer, Unknown)
        )


@pytest.mark.parametrize(
    ("setting", "wrong", "right"),
    [("maxmemory-policy", "volatile-lru", "noeviction"), ("appendonly", "no", "yes")],
)
def test_each_node_has_to_keep_its_keys(cluster: RedisCluster, setting: str, wrong: str, right: str) -> None:
    store = RedisDedupStore(cluster.urls[0])
    second = cluster.nodes()[1]
    second.config_set(setting, wrong)
    try:
        with pytest.raises(StoreUnsafe, match=cluster.urls[1].removeprefix("redis://")):
            store.check()
    finally:
        second.config_set(setting, right)
        store.close()


def test_a_node_that_is_gone_is_no_answer_for_its_own_keys_only() -> None:
    with redis_cluster() as cluster:
        store = RedisDedupStore(cluster.urls[0], timeout=0.5)
        store.check()
        assert store.claim(claims("me")) == [MINE] * len(KEYS)
        cluster.servers[1].kill()
        answers = store.claim(claims("you"))
        assert set(kinds(answers)) == {Held, Unknown}
        assert kinds(answers)[Held] > len(KEYS) // 4
        cluster.servers[1].start()
        wait_until(lambda: store.claim(claims("me")) == [MINE] * len(KEYS), "its claims are there again")
        for server in cluster.servers:
            server.kill()
        assert kinds(store.claim(claims("me"))) == {Unknown: len(KEYS)}
        with pytest.raises(StoreUnavailable):
            store.check()
        store.close()
