"""The client on a real broker: what it is told, and what it makes of silence."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import relevo
from relevo.client.core import Core, WaitFor
from relevo.client.requests import NewJob
from relevo.client.steps import run
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread
from tests.support.waiting import wait_until

TYPE = "work"
DEAD = "127.0.0.1:1"


@pytest.fixture
def engine(brokers: Brokers, cluster_name: str) -> Iterator[EngineThread]:
    with EngineThread(brokers.kafka, cluster_name, 3, [TYPE]) as engine:
        yield engine


@pytest.fixture
def client(engine: EngineThread) -> Iterator[relevo.Client]:
    with relevo.Client(engine.kafka, engine.cluster) as client:
        yield client


def created(engine: EngineThread) -> list[str]:
    with relevo.JobEvents(engine.kafka, engine.cluster, kinds=["JobCreated"], follow=False) as events:
        return [event.key for event in events]


def test_accepted_is_kafkas_word_and_decided_the_engines(client: relevo.Client) -> None:
    accepted = client.create(TYPE, {"a": 1})
    assert accepted.created is None
    decided = client.create(TYPE, {"a": 1}, wait="decided")
    assert (decided.created, decided.state) == (True, None)


def test_the_same_key_again_gives_the_same_job(engine: EngineThread, client: relevo.Client) -> None:
    client.create(TYPE, key="order-1", wait="decided")
    again = client.create(TYPE, {"other": True}, key="order-1", wait="decided")
    assert again.created is False
    assert again.state is not None
    assert created(engine) == ["order-1"]


def test_refusals_are_told_with_their_reason(client: relevo.Client) -> None:
    for call in (client.cancel, client.retry, client.update):
        with pytest.raises(relevo.Rejected, match="NOT_FOUND") as caught:
            call("nobody", wait="decided")
        assert caught.value.reason == "NOT_FOUND"


def test_a_job_is_changed_and_cancelled(client: relevo.Client) -> None:
    job = client.create(TYPE, delay=3_600, wait="decided")
    client.update(job, priority=5, retries=9, wait="decided")
    client.cancel(job, "no longer wanted", wait="decided")
    result = client.await_result(job)
    assert (result.state, result.message) == ("CANCELLED", "no longer wanted")
    with pytest.raises(relevo.JobNotCompleted, match="CANCELLED"):
        _ = result.value


def test_a_result_is_found_long_after_by_another_client(engine: EngineThread, client: relevo.Client) -> None:
    """Nobody followed the log while the job was created, ran and ended."""
    handles = [client.create(TYPE, {"n": n}) for n in range(30)]
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    app.job(TYPE)(lambda job: job.variables["n"])
    with app:
        wait_until(lambda: app.stats.done == len(handles), "all are done")
    with relevo.Client(engine.kafka, engine.cluster) as other:
        for n, handle in reversed(list(enumerate(handles))):
            assert other.await_result(handle).value == n


@pytest.mark.parametrize("skew_ms", [-86_400_000, 86_400_000, 0])
def test_a_result_is_found_whatever_the_clocks_say(
    engine: EngineThread, client: relevo.Client, skew_ms: int
) -> None:
    handles = [client.create(TYPE, {"n": n}) for n in range(20)]
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    app.job(TYPE)(lambda job: job.variables["n"])
    with app:
        for n, handle in enumerate(handles):
            skewed = relevo.JobHandle(handle.key, handle.partition, handle.offset, handle.at + skew_ms)
            assert client.await_result(skewed).value == n


def test_an_answer_survives_a_failover(engine: EngineThread, client: relevo.Client) -> None:
    """The one who decides changes between the command and the decision; the waiting client doesn't notice."""
    engine.pause()
    handles: list[relevo.JobHandle] = []
    waiting = threading.Thread(
        target=lambda: handles.append(client.create(TYPE, key="k", wait="decided", timeout=60))
    )
    waiting.start()
    wait_until(lambda: client._core.follower._views, "the client follows the log")
    with EngineThread(engine.kafka, engine.cluster, engine.partitions, [TYPE]):
        waiting.join(60)
    assert handles
    assert handles[0].created is True


def test_create_timed_out_and_tried_again_makes_one_job(engine: EngineThread, client: relevo.Client) -> None:
    """The engine is away, another takes over between the tries."""
    engine.pause()
    with pytest.raises(relevo.DecisionTimeout) as caught:
        client.create(TYPE, key="order-7", wait="decided", timeout=0.5)
    assert (caught.value.outcome, caught.value.retry) == ("unknown", "same")
    with EngineThread(engine.kafka, engine.cluster, engine.partitions, [TYPE]):
        again = client.create(TYPE, key="order-7", wait="decided", timeout=60)
    assert again.created is False
    assert created(engine) == ["order-7"]


def test_a_job_that_does_not_end_in_time_says_what_was_heard_last(client: relevo.Client) -> None:
    job = client.create(TYPE, wait="decided")
    with pytest.raises(relevo.ResultTimeout, match=r"JobCreated|JobActivated") as caught:
        client.await_result(job, timeout=1.0)
    assert caught.value.outcome == "done"


def test_many_are_created_and_each_is_answered(engine: EngineThread, client: relevo.Client) -> None:
    jobs: list[Any] = [{"type": TYPE, "key": f"k{n}"} for n in range(500)]
    jobs[7] = {"type": "bad type"}
    jobs[8] = {"typ": TYPE}
    jobs[9] = NewJob(type=TYPE, variables=object())
    results = list(client.create_many(jobs, in_flight=100))
    assert [result.index for result in results] == list(range(500))
    assert [result.index for result in results if not result.ok] == [7, 8, 9]
    assert all(isinstance(results[n].error, relevo.InvalidRequest) for n in (7, 8, 9))
    wait_until(lambda: len(created(engine)) == 497, "all good ones are there")


def test_an_endless_stream_is_read_no_further_than_needed(client: relevo.Client) -> None:
    read = itertools.count()
    stream = client.create_many(
        ({"type": TYPE, "variables": next(read)} for _ in itertools.count()), in_flight=50
    )
    assert all(result.ok for result in itertools.islice(stream, 200))
    assert next(read) <= 200 + 50 + 50


async def test_the_async_client_does_the_same(engine: EngineThread) -> None:
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    app.job(TYPE)(lambda job: job.variables)
    with app:
        async with relevo.AsyncClient(engine.kafka, engine.cluster) as client:
            handles = await asyncio.gather(*(client.create(TYPE, n, wait="decided") for n in range(20)))
            results = await asyncio.gather(*(client.await_result(handle) for handle in handles))
            assert [result.value for result in results] == list(range(20))
            with pytest.raises(relevo.Rejected):
                await client.cancel("nobody", wait="decided")
            many = [
                result
                async for result in client.create_many(({"type": TYPE} for _ in range(300)), in_flight=20)
            ]
            assert all(result.ok for result in many)


def test_a_broker_that_does_not_answer() -> None:
    """An error, in time, that says where it looked; nothing was sent."""
    with relevo.Client(DEAD) as client:
        with pytest.raises(relevo.OutcomeUnknown, match=DEAD):
            client.create(TYPE, timeout=0.3)
        with pytest.raises(relevo.Unreachable, match=DEAD) as caught:
            client.create(TYPE, wait="decided", timeout=20)
        assert (caught.value.outcome, caught.value.retry) == ("not_done", "elsewhere")
        client.close(timeout=0.1)


def test_a_cluster_that_is_not_there(brokers: Brokers) -> None:
    with relevo.Client(brokers.kafka, "nosuch") as client:
        with pytest.raises(relevo.ClusterNotFound, match=r"nosuch\.commands"):
            client.create(TYPE)
        with pytest.raises(relevo.ClusterNotFound, match=r"nosuch\.commands"):
            client.create(TYPE, wait="decided")


def test_a_full_queue_pushes_back_and_drops_nothing() -> None:
    """The broker stalls: memory stays bounded, and nobody is told that an unsent job was accepted."""
    limit = 100
    with relevo.Client(DEAD, queue_buffering_max_messages=limit) as client:
        stream = client.create_many(
            ({"type": TYPE} for _ in range(10 * limit)), in_flight=10 * limit, timeout=0.3
        )
        with pytest.raises(relevo.QueueFull, match="records wait for Kafka") as caught:
            list(stream)
        assert (caught.value.outcome, caught.value.retry) == ("not_done", "same")
        assert client._core.sender.queued <= limit
        with pytest.raises(relevo.QueueFull):
            client.create(TYPE, timeout=0.2)
        assert client.close(timeout=0.1) == limit, "what was not delivered is told"


def test_what_is_purged_at_the_end_is_reported() -> None:
    core = Core(DEAD, "relevo", {})
    steps = core.create(NewJob(type=TYPE), "accepted", 60)
    queued = next(steps)
    assert core.close(0.1) == 1
    # librdkafka doesn't say whether it was sent before, lost its answer and was waiting for another try.
    with pytest.raises(relevo.OutcomeUnknown):
        queued.future.result(10)


@pytest.mark.parametrize("wait", ["accepted", "decided"])
def test_a_call_that_is_overtaken_by_the_end_is_told(wait: WaitFor) -> None:
    """It had looked whether the client is open; its record came when nobody served the queue any more."""
    core = Core(DEAD, "relevo", {})
    steps = core.create(NewJob(type=TYPE), wait, 60)
    core.close(0.1)
    with pytest.raises(relevo.Closed):
        run(steps)


def test_every_call_under_way_at_the_end_is_answered() -> None:
    """Sixteen threads create while the client is closed: none of them waits for its time to run out."""
    core = Core(DEAD, "relevo", {})
    errors: list[relevo.RelevoError] = []
    begun = threading.Barrier(17)

    def create() -> None:
        begun.wait(30)
        while True:
            try:
                next(core.create(NewJob(type=TYPE), "accepted", 600)).future.result(60)
            except relevo.Closed as error:
                errors.append(error)
                return
            except relevo.OutcomeUnknown:
                pass

    threads = [threading.Thread(target=create) for _ in range(16)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    core.close(0.1)
    for thread in threads:
        thread.join(30)
    assert len(errors) == 16


def test_a_closed_client_says_so() -> None:
    client = relevo.Client(DEAD)
    client.close(0.1)
    with pytest.raises(relevo.Closed):
        client.create(TYPE)
    with pytest.raises(relevo.Closed):
        list(client.create_many([{"type": TYPE}]))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_client_used_after_a_fork_says_so() -> None:
    """Librdkafka's threads are not in the child: records would be accepted and never sent."""
    client = relevo.Client(DEAD)
    app = relevo.WorkerApp(DEAD)
    app.job(TYPE)(print)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (lambda: client.create(TYPE), lambda: client.create(TYPE, wait="decided"), app.start):
            try:
                call()
            except relevo.UsedAfterFork:
                said.append("forked")
            except BaseException as error:
                said.append(repr(error))
        client.close()
        os.write(writer, ",".join(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "forked,forked,forked"
    assert os.waitpid(child, 0)[1] == 0
    client.close(0.1)


def test_secrets_are_in_no_error_and_no_repr() -> None:
    with relevo.Client(DEAD, sasl_password="s3cr3t", sasl_username="u", sasl_mechanism="PLAIN") as client:
        with pytest.raises(relevo.RelevoError) as caught:
            client.create(TYPE, wait="decided", timeout=0.5)
        assert "s3cr3t" not in f"{caught.value} {caught.value.__cause__} {client!r}"
        client.close(0.1)
