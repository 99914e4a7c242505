"""What is particular to a store; what all promise is in the contract suite."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.redis import RedisDedupStore
from relevo.dedup.sql import SqlDedupStore
from relevo.dedup.store import MINE, Claim, Done, Finish, Held, Mine, Unknown
from relevo.errors import ConfigurationError, StoreUnavailable, StoreUnsafe


def test_memory_is_bounded_and_forgets_the_oldest_first() -> None:
    store = MemoryDedupStore(capacity=1_000)
    for n in range(0, 5_000, 100):
        store.done([Finish(str(i), "t", b"") for i in range(n, n + 100)])
    assert len(store) <= 2_000
    assert store.claim([Claim("4999", "other", 1)]) == [Done(b"")]
    assert store.claim([Claim("0", "other", 1)]) == [MINE]


def test_memory_forgets_what_is_out_of_date() -> None:
    now = [0.0]
    store = MemoryDedupStore(ttl=10, clock=lambda: now[0])
    store.done([Finish(str(n), "t", b"") for n in range(500)])
    now[0] = 11
    store.done([Finish(f"new{n}", "t", b"") for n in range(1_000)])
    assert len(store) == 1_000


def test_claims_outlive_a_full_memory() -> None:
    """A forgotten claim is a second run."""
    store = MemoryDedupStore(capacity=1)
    store.claim([Claim("running", "me", 1_000)])
    store.done([Finish(str(n), "t", b"") for n in range(3_000)])
    assert store.claim([Claim("running", "other", 1)]) != [MINE]


@pytest.mark.parametrize(
    "make",
    [
        MemoryDedupStore,
        lambda ttl: RedisDedupStore(ttl=ttl),
        lambda ttl: SqlDedupStore("sqlite:///d.db", ttl=ttl),
    ],
    ids=["memory", "redis", "sql"],
)
@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
def test_a_window_of_nothing_is_refused(make: Any, ttl: float) -> None:
    with pytest.raises(ConfigurationError, match="more than 0 seconds"):
        make(ttl)


SECRET = "s3cr3t-pass"


@pytest.mark.parametrize(
    "url", [f"http://u:{SECRET}@h:1", f"redis://u:{SECRET}@h:notaport/0", f"u:{SECRET}@h"]
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisDedupStore(url)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert SECRET not in str(chain)
        chain = chain.__cause__


def test_a_redis_that_is_not_there_is_no_answer_and_no_secret() -> None:
    store = RedisDedupStore(f"redis://user:{SECRET}@127.0.0.1:1/0", timeout=0.2)
    (answer,) = store.claim([Claim("k", "t", 1)])
    assert isinstance(answer, Unknown)
    assert SECRET not in answer.reason
    with pytest.raises(StoreUnavailable) as caught:
        store.check()
    assert SECRET not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)
    store.close()


class FakePipeline:
    def __init__(self, replies: Any) -> None:
        self._replies = replies
        self.calls = 0

    def __enter__(self) -> FakePipeline:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute_command(self, *args: object) -> None:
        self.calls += 1

    def execute(self, raise_on_error: bool) -> Any:
        if isinstance(self._replies, Exception):
            raise self._replies
        return self._replies


class FakeClient:
    def __init__(
        self, replies: Any = None, memory: dict[str, Any] | None = None, aof: int = 1, save: str | None = ""
    ) -> None:
        self._replies = replies
        self._memory = memory or {}
        self._aof = aof
        self._save = save

    def pipeline(self, transaction: bool) -> FakePipeline:
        assert not transaction
        return FakePipeline(self._replies)

    def info(self, section: str) -> dict[str, Any]:
        return self._memory if section == "memory" else {"aof_enabled": self._aof}

    def config_get(self, name: str) -> dict[str, str]:
        if self._save is None:
            from redis import exceptions

            raise exceptions.ResponseError("unknown command 'CONFIG'")
        return {name: self._save}


def faults() -> list[Any]:
    from redis import exceptions

    return [
        [exceptions.MovedError("1 127.0.0.1:2")],
        [exceptions.ReadOnlyError("You can't write against a read only replica.")],
        [exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")],
        [exceptions.BusyLoadingError("Redis is loading the dataset in memory")],
        [exceptions.ResponseError("NOPERM")],
        exceptions.TimeoutError("Timeout reading from socket"),
        exceptions.ConnectionError("Connection closed by server."),
        exceptions.RedisClusterException("ERROR: Calling pipelined function evalsha is blocked"),
        KeyError("not even a kind of redis-py's own"),
        OSError("broken pipe"),
        [None],
        [b"OK"],
        [[7]],
        [],
        [[1], [1]],
    ]


@pytest.mark.parametrize("fault", faults(), ids=repr)
def test_a_fault_of_redis_is_never_a_duplicate_and_never_a_claim(fault: Any) -> None:
    store = RedisDedupStore(client=FakeClient(fault))
    for answers in (
        store.claim([Claim("k", "t", 1)]),
        store.renew([Claim("k", "t", 1)]),
        store.done([Finish("k", "t", b"")]),
        store.release([Claim("k", "t", 1)]),
    ):
        assert [type(answer) for answer in answers] == [Unknown]


class Pool:
    connected = True

    def disconnect(self, inuse_connections: bool = True) -> None:
        assert not inuse_connections, "others ask on these, maybe for something else than a store"
        self.connected = False


class OldPool:
    """As some of redis-py 5."""

    connected = True

    def disconnect(self) -> None:
        self.connected = False


class DemotedClient:
    """Its connections lead to what was the master when they were made."""

    def __init__(self, refusal: Exception, pool: Pool | OldPool) -> None:
        self.connection_pool = pool
        self._refusal = refusal

    def pipeline(self, transaction: bool) -> FakePipeline:
        if self.connection_pool.connected:
            return FakePipeline([[1], self._refusal, [3, 1_000], self._refusal])
        return FakePipeline([[1], [2, b"9"]])


def refusals() -> list[Exception]:
    from redis import exceptions

    said = "You can't write against a read only replica."
    return [
        exceptions.ReadOnlyError(said),
        # Before Redis 7, from a script.
        exceptions.ResponseError(f"Error running script (call to f_1): @user_script:9: -READONLY {said}"),
    ]


@pytest.mark.parametrize("pool", [Pool, OldPool])
@pytest.mark.parametrize("refusal", refusals(), ids=["7", "6"])
def test_what_a_replica_refused_is_asked_once_more_on_new_connections(
    refusal: Exception, pool: type[Pool | OldPool]
) -> None:
    store = RedisDedupStore(client=DemotedClient(refusal, pool()))
    answers = store.claim([Claim(f"{n}", "t", 1) for n in range(4)])
    assert [type(answer) for answer in answers] == [Mine, Mine, Held, Done]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"])
def test_a_redis_that_evicts_is_refused_with_what_to_change(policy: str) -> None:
    """Our own keys have a time to live, so the volatile policies evict them first of all."""
    store = RedisDedupStore(client=FakeClient(memory={"maxmemory_policy": policy}))
    with pytest.raises(StoreUnsafe, match=f"{policy}.*Set maxmemory-policy noeviction"):
        store.check()


def test_a_redis_that_keeps_its_keys_is_taken() -> None:
    RedisDedupStore(client=FakeClient(memory={"maxmemory_policy": "noeviction"})).check()


@pytest.mark.parametrize("maxmemory", [0, 100 << 20])
def test_a_redis_that_a_restart_empties_is_refused_unless_its_user_says_so(
    caplog: pytest.LogCaptureFixture, maxmemory: int
) -> None:
    """A limit of memory says nothing of the disk. Nobody shall find out by a second payment."""
    client = FakeClient(memory={"maxmemory": maxmemory}, aof=0, save="")
    with pytest.raises(StoreUnsafe, match=r"keeps nothing on disk.*appendonly yes.*volatile_ok=True"):
        RedisDedupStore(client=client).check()
    store = RedisDedupStore(client=client, volatile_ok=True)
    for _job_type in range(3):
        store.check()
    assert caplog.text.count("keeps nothing on disk: a restart of it may forget") == 1, "once is enough"


@pytest.mark.parametrize(("aof", "save"), [(1, ""), (1, None), (0, "900 1")])
def test_a_redis_that_writes_to_disk_is_taken_without_a_word(
    caplog: pytest.LogCaptureFixture, aof: int, save: str | None
) -> None:
    RedisDedupStore(client=FakeClient(aof=aof, save=save)).check()
    assert caplog.text == ""


def test_a_redis_that_does_not_show_its_settings_is_taken_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """A managed one: it may well keep everything."""
    RedisDedupStore(client=FakeClient(aof=0, save=None)).check()
    assert "doesn't show whether it keeps anything on disk" in caplog.text


@pytest.mark.parametrize("kind", ["Redis", "RedisCluster"])
def test_a_client_for_coroutines_is_refused(kind: str) -> None:
    """Its calls would give coroutines that nobody awaits, and no job would ever start."""
    from redis import asyncio

    with pytest.raises(ConfigurationError, match=r"is one for coroutines: give it a redis\.Redis"):
        RedisDedupStore(client=getattr(asyncio, kind)(host="127.0.0.1", port=1))
