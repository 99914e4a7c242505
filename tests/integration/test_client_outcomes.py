"""What an error says of a request's fate must be true, whatever the network does: a proxy stands between.

An error that says "not done" of a command that is carried out later makes its caller do it twice.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import relevo
from relevo import follower
from relevo.testing.proxy import TcpProxy
from relevo_engine.local.brokers import LocalBrokers
from relevo_engine.local.kafka import admin
from relevo_engine.topics import commands_topic
from relevo_schemas.codec import decode
from relevo_schemas.commands import CreateJob
from tests.support.brokers import unique_cluster_name
from tests.support.engine_thread import EngineThread
from tests.support.waiting import wait_until

TYPE = "work"


@pytest.fixture
def proxy(behind_network: tuple[LocalBrokers, TcpProxy]) -> Iterator[TcpProxy]:
    _, proxy = behind_network
    yield proxy
    proxy.heal()


@pytest.fixture
def engine(
    behind_network: tuple[LocalBrokers, TcpProxy], request: pytest.FixtureRequest
) -> Iterator[EngineThread]:
    brokers, _ = behind_network
    cluster = unique_cluster_name(request.node.name)
    with EngineThread(brokers.kafka, cluster, 1, [TYPE]) as engine:
        yield engine


@pytest.fixture
def client(engine: EngineThread, proxy: TcpProxy) -> Iterator[relevo.Client]:
    with relevo.Client(proxy.address, engine.cluster) as client:
        yield client


def sent(engine: EngineThread) -> list[str]:
    """Keys of the creates that Kafka has, in their order; read by a way of its own."""
    reader = Consumer({"bootstrap.servers": engine.kafka, "group.id": "t", "enable.partition.eof": True})
    reader.assign([TopicPartition(commands_topic(engine.cluster), 0, 0)])
    keys = []
    while True:
        message = reader.poll(10)
        assert message is not None
        if message.error() is not None:
            break
        command = decode(message.value())
        if isinstance(command, CreateJob):
            keys.append(command.job.key)
    reader.close()
    return keys


class Call:
    """A call in a thread, and the error it ends with."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.error: relevo.RelevoError | None = None
        self.result: Any = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except relevo.RelevoError as error:
            self.error = error

    def end(self) -> relevo.RelevoError | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error


def fate(error: relevo.RelevoError | None) -> tuple[str, str]:
    assert error is not None
    return error.outcome, error.retry


def test_what_was_given_up_may_arrive_later_and_is_unknown(
    engine: EngineThread, client: relevo.Client, proxy: TcpProxy
) -> None:
    client.create(TYPE, key="before")
    proxy.cut()
    with pytest.raises(relevo.OutcomeUnknown, match="'late'") as caught:
        client.create(TYPE, key="late", timeout=0.5)
    assert fate(caught.value) == ("unknown", "same")
    assert "[outcome=unknown retry=same]" in str(caught.value)
    assert sent(engine) == ["before"]
    proxy.heal()
    wait_until(lambda: sent(engine) == ["before", "late"], "it arrives after all")


def test_what_is_purged_after_its_answer_was_lost_is_unknown(
    engine: EngineThread, client: relevo.Client, proxy: TcpProxy
) -> None:
    """Librdkafka has it in its queue again, to be sent a second time, and says "purged from the queue"."""
    client.create(TYPE, key="before")
    proxy.drop_replies(True)
    call = Call(lambda: client.create(TYPE, key="there", timeout=60))
    wait_until(lambda: "there" in sent(engine), "Kafka has it")
    proxy.refuse()
    wait_until(lambda: client._core.sender.last_error, "the connection is gone")
    assert client.close(timeout=0.2) == 1
    error = call.end()
    assert fate(error) == ("unknown", "same")
    assert "Purged in queue" in str(error), "the case that looks as if it had never been sent"
    assert sent(engine) == ["before", "there"]


def test_what_found_no_room_is_never_done_and_all_else_is_told(engine: EngineThread, proxy: TcpProxy) -> None:
    """Of a stream that breaks off, each item that was taken has its result; the rest is never sent."""
    with relevo.Client(proxy.address, engine.cluster, queue_buffering_max_messages=20) as client:
        client.create(TYPE, key="before")
        proxy.cut()
        told: list[relevo.BulkResult] = []
        jobs = ({"type": TYPE, "key": f"k{n}"} for n in range(1_000))
        with pytest.raises(relevo.QueueFull) as caught:
            told.extend(client.create_many(jobs, timeout=0.5))
        assert fate(caught.value) == ("not_done", "same")
        assert [result.key for result in told] == [f"k{n}" for n in range(len(told))]
        assert {fate(result.error) for result in told} == {("unknown", "same")}
        with pytest.raises(relevo.QueueFull):
            client.create(TYPE, key="none", timeout=0.2)
        proxy.heal()
        assert client.close(30) == 0
    assert sent(engine) == ["before", *(str(result.key) for result in told)]


async def test_the_async_stream_breaks_off_as_the_blocking_one(engine: EngineThread, proxy: TcpProxy) -> None:
    async with relevo.AsyncClient(proxy.address, engine.cluster, queue_buffering_max_messages=20) as client:
        await client.create(TYPE, key="before")
        proxy.cut()
        jobs = ({"type": TYPE, "key": f"k{n}"} for n in range(1_000))
        told: list[relevo.BulkResult] = []

        async def take_all() -> None:
            async for result in client.create_many(jobs, timeout=0.5):
                told.append(result)

        with pytest.raises(relevo.QueueFull):
            await take_all()
        assert {fate(result.error) for result in told} == {("unknown", "same")}
        proxy.heal()
        assert await client.close(30) == 0
    assert sent(engine) == ["before", *(str(result.key) for result in told)]


def test_closed_while_waiting_for_a_decision_is_unknown(engine: EngineThread, client: relevo.Client) -> None:
    """Kafka has the command, and the engine decides it whoever listens: "not done" would be wrong."""
    engine.pause()
    call = Call(lambda: client.create(TYPE, key="k", wait="decided", timeout=60))
    wait_until(lambda: sent(engine) == ["k"], "Kafka has it")
    client.close()
    error = call.end()
    assert fate(error) == ("unknown", "same")
    assert isinstance(error, relevo.OutcomeUnknown)
    assert "Kafka has the CreateJob of job 'k'" in str(error)


def test_closed_while_waiting_for_room_is_not_done(engine: EngineThread, proxy: TcpProxy) -> None:
    """Room that a closing client makes by throwing away must not be taken by the next in line."""
    client = relevo.Client(proxy.address, engine.cluster, queue_buffering_max_messages=1)
    client.create(TYPE, key="before")
    # Acknowledged is not yet gone: librdkafka frees a record's place after its report.
    wait_until(lambda: client._core.sender.queued == 0, "there is room for the first")
    proxy.cut()
    steps = client._core.create(relevo.NewJob(type=TYPE, key="first"), "accepted", 60)
    first = next(steps)  # the queue is full
    second = Call(lambda: client.create(TYPE, key="second", timeout=60))
    wait_until(lambda: client._core.sender._room, "the second waits for room")
    assert client.close(0.2) == 1
    with pytest.raises(relevo.OutcomeUnknown) as unknown:
        first.future.result(10)
    assert fate(unknown.value) == ("unknown", "same")
    error = second.end()
    assert (type(error), *fate(error)) == (relevo.Closed, "not_done", "stop")
    proxy.heal()
    assert "second" not in sent(engine)


def test_a_decision_is_waited_for_as_long_as_was_asked_also_while_kafka_is_away(
    engine: EngineThread, client: relevo.Client, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker's restart takes longer than one question to it: who gives 60 s gets them."""
    monkeypatch.setattr(follower, "CALL_S", 0.3)
    asked: list[str] = []
    follow = client._core.follower.follow

    def counted(key: str, *rest: Any, **more: Any) -> Any:
        asked.append(key)
        return follow(key, *rest, **more)

    monkeypatch.setattr(client._core.follower, "follow", counted)
    proxy.refuse()
    call = Call(lambda: client.create(TYPE, key="k", wait="decided", timeout=60))
    wait_until(lambda: len(asked) >= 3, "it has been asked in vain")
    proxy.heal()
    assert call.end() is None
    assert call.result.created is True


def test_kafka_away_before_anything_was_sent_is_not_done(
    engine: EngineThread, client: relevo.Client, proxy: TcpProxy
) -> None:
    proxy.refuse()
    with pytest.raises(relevo.Unreachable, match="nothing was sent") as caught:
        client.create(TYPE, key="k", wait="decided", timeout=0.5)
    assert fate(caught.value) == ("not_done", "elsewhere")
    proxy.heal()
    client.create(TYPE, key="next")
    assert sent(engine) == ["next"]


def test_a_result_that_can_not_be_heard_is_of_a_job_that_is_there(
    engine: EngineThread, client: relevo.Client, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller who takes it for "not done" creates the job anew, under another key."""
    monkeypatch.setattr(follower, "CALL_S", 0.3)
    handle = client.create(TYPE, key="k")
    proxy.refuse()
    with pytest.raises(relevo.ResultTimeout, match="doesn't answer") as caught:
        client.await_result(handle, timeout=1.0)
    assert fate(caught.value) == ("done", "same")
    proxy.heal()


def test_a_record_that_the_broker_finds_too_large_is_refused(
    engine: EngineThread, client: relevo.Client
) -> None:
    topic = ConfigResource(ResourceType.TOPIC, commands_topic(engine.cluster))
    topic.add_incremental_config(
        ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    )
    kafka = admin(engine.kafka)
    for changed in kafka.incremental_alter_configs([topic]).values():
        changed.result(10)
    incompressible = random.Random(1).randbytes(5_000).hex()  # what counts for the broker is what arrives
    with pytest.raises(relevo.Refused, match=r"large.*send where") as caught:
        client.create(TYPE, variables=incompressible)
    # Where the connection broke meanwhile, as on a machine at its limits, an earlier try is not ruled out.
    trouble = client._core.sender.last_error
    assert fate(caught.value) in [("not_done", "stop"), *[("unknown", "same")] * bool(trouble)]
    assert sent(engine) == []


def test_many_incidents_are_retried_and_each_is_answered(engine: EngineThread, client: relevo.Client) -> None:
    """One that is refused must not hold up the others; done again, nothing is disturbed."""
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    broken = threading.Event()
    broken.set()

    @app.job(TYPE)
    def handle(job: relevo.Job) -> None:
        if broken.is_set():
            raise relevo.Fail("no route", retriable=False)

    keys = [str(result.key) for result in client.create_many({"type": TYPE} for _ in range(60))]
    with app:
        wait_until(lambda: app.stats.failed == 60, "all are incidents")
        wanted = [*keys[:30], "nobody", "", *keys[30:]]
        broken.clear()

        def all_refused() -> bool:
            return not any(result.ok for result in client.retry_many(keys))

        results = list(client.retry_many(wanted, in_flight=7))
        assert [result.index for result in results] == list(range(62))
        assert [result.key for result in results if not result.ok] == ["nobody", ""]
        refused, bad = (result.error for result in results if not result.ok)
        assert isinstance(refused, relevo.Rejected)
        assert (refused.reason, *fate(refused)) == ("NOT_FOUND", "not_done", "stop")
        assert isinstance(bad, relevo.InvalidRequest)
        wait_until(lambda: app.stats.done == 60, "all are done")
        wait_until(all_refused, "nothing of it is repeated")
    assert app.stats.done == 60


async def test_many_are_retried_by_the_async_client(engine: EngineThread, proxy: TcpProxy) -> None:
    async with relevo.AsyncClient(proxy.address, engine.cluster) as client:
        for n in range(20):
            await client.create(TYPE, key=f"k{n}", delay=3_600)
        keys = [f"k{n}" for n in range(20)] + ["nobody"]
        results = [result async for result in client.retry_many(keys, in_flight=5)]
    assert [result.key for result in results] == keys
    assert all(isinstance(result.error, relevo.Rejected) for result in results), "none has failed yet"


def test_retries_while_kafka_is_away_each_say_so_in_time(
    engine: EngineThread, client: relevo.Client, proxy: TcpProxy
) -> None:
    client.create(TYPE, key="k0", wait="decided")
    proxy.cut()
    results = list(client.retry_many([f"k{n}" for n in range(50)], timeout=0.5, in_flight=50))
    assert {fate(result.error) for result in results} == {("unknown", "same")}
    assert len(results) == 50
    proxy.heal()
