"""Workers on a real broker, with the engine's real state machine behind the topics."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

import relevo
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread
from tests.support.jobs import committed, kinds_of
from tests.support.waiting import wait_until

TYPE = "work"


@pytest.fixture
def engine(brokers: Brokers, cluster_name: str) -> Iterator[EngineThread]:
    with EngineThread(brokers.kafka, cluster_name, 2, [TYPE]) as engine:
        yield engine


@pytest.fixture
def client(engine: EngineThread) -> Iterator[relevo.Client]:
    with relevo.Client(engine.kafka, engine.cluster) as client:
        yield client


def test_jobs_run_and_their_results_come_back(engine: EngineThread, client: relevo.Client) -> None:
    app = relevo.WorkerApp(engine.kafka, engine.cluster)

    @app.job(TYPE)
    async def handler(job: relevo.Job) -> dict[str, Any]:
        return {"doubled": job.variables["n"] * 2, "key": job.idempotency_key, "header": job.headers["h"]}

    with app:
        job = client.create(TYPE, {"n": 21}, headers={"h": "v"})
        assert client.await_result(job).value == {"doubled": 42, "key": f"workflow-{job.key}", "header": "v"}


def test_the_object_form_does_the_same(engine: EngineThread, client: relevo.Client) -> None:
    store = relevo.MemoryDedupStore()
    worker = relevo.JobWorker(
        client=client, job_type=TYPE, dedup_store=store, ttl=3_600, handler=lambda job: job.variables["n"] + 1
    )
    with worker:
        assert client.await_result(client.create(TYPE, {"n": 1})).value == 2
    assert worker.stats.done == 1


def test_every_end_of_a_handler_and_neighbours_that_finish(
    engine: EngineThread, client: relevo.Client
) -> None:
    """A handler that raises, exits, or returns what is not JSON takes nobody with it."""
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    attempts: Counter[str] = Counter()

    @app.job(TYPE)
    def handler(job: relevo.Job) -> Any:
        attempts[job.key] += 1
        match job.key:
            case "raises-once":
                if job.attempt == 1:
                    raise ValueError("first time")
            case "raises":
                raise ValueError("always")
            case "exits":
                raise SystemExit(1)
            case "not-json":
                return object()
            case "business":
                raise relevo.JobError("NO_FUNDS", "declined")
            case "fails-for-good":
                raise relevo.Fail("no such account", retriable=False)
        return job.key

    with app:
        quick: dict[str, Any] = {"retries": 1, "backoff": 0.05}
        jobs = {
            key: client.create(TYPE, key=key, **quick)
            for key in (
                "raises-once",
                "raises",
                "exits",
                "not-json",
                "business",
                "fails-for-good",
                "good-1",
                "good-2",
            )
        }
        for key in ("raises-once", "good-1", "good-2"):
            assert client.await_result(jobs[key]).value == key
        business = client.await_result(jobs["business"])
        assert (business.state, business.code, business.message) == ("ERRORED", "NO_FUNDS", "declined")
        for key in ("raises", "exits", "not-json", "fails-for-good"):
            wait_until(lambda key=key: "JobIncident" in kinds_of(engine, key), f"{key} is an incident")  # type: ignore[misc]
        wait_until(lambda: app.stats.done + app.stats.failed + app.stats.errored == 11, "all is acknowledged")
    assert attempts == {
        "raises-once": 2,
        "raises": 2,
        "exits": 2,
        "not-json": 1,
        "business": 1,
        "fails-for-good": 1,
        "good-1": 1,
        "good-2": 1,
    }


def test_variables_that_are_not_json_become_an_incident_and_the_partition_goes_on(
    engine: EngineThread, client: relevo.Client
) -> None:
    from relevo_schemas.codec import encode, job_spec
    from relevo_schemas.commands import CreateJob

    app = relevo.WorkerApp(engine.kafka, engine.cluster)

    @app.job(TYPE)
    async def handler(job: relevo.Job) -> Any:
        return job.variables

    producer = Producer({"bootstrap.servers": engine.kafka, "partitioner": "murmur2"})
    deep = b"[" * 5_000 + b"]" * 5_000
    for key, variables in (("broken", b"{"), ("deep", deep)):
        value = encode(CreateJob(job_spec(key=key, type=TYPE, variables=variables)))
        producer.produce(f"{engine.cluster}.commands", value, key)
    producer.flush(10)
    with app:
        assert client.await_result(client.create(TYPE, [1])).value == [1]
        for key in ("broken", "deep"):
            wait_until(lambda key=key: "JobIncident" in kinds_of(engine, key), f"{key} is an incident")  # type: ignore[misc]
    with relevo.JobEvents(
        engine.kafka, engine.cluster, keys=["broken"], kinds=["JobFailed"], follow=False
    ) as events:
        (failed,) = events
    assert "can't be read as JSON" in failed.event.error  # type: ignore[attr-defined]


def test_garbage_on_the_activation_topic_is_skipped_and_counted(
    engine: EngineThread, client: relevo.Client
) -> None:
    producer = Producer({"bootstrap.servers": engine.kafka})
    for partition in range(engine.partitions):
        producer.produce(f"{engine.cluster}.activations.{TYPE}", b"garbage", b"k", partition)
    producer.flush(10)
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    app.job(TYPE)(lambda job: job.key)
    with app:
        job = client.create(TYPE)
        assert client.await_result(job).value == job.key
        wait_until(lambda: app.stats.damaged == engine.partitions, "the garbage is counted")
        wait_until(
            lambda: sum(max(each, 0) for each in committed(engine, TYPE).values()) >= 3, "all is committed"
        )


def test_a_long_job_keeps_its_lease_while_its_handler_blocks(
    engine: EngineThread, client: relevo.Client
) -> None:
    """Without signs of life from outside the handler, a second attempt would start beside the first."""
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    runs: Counter[str] = Counter()

    @app.job(TYPE)
    async def handler(job: relevo.Job) -> str:
        runs[job.key] += 1
        time.sleep(3.0)  # noqa: ASYNC251 - a handler that blocks its event loop is the point
        return "late"

    with app:
        job = client.create(TYPE, lease=1.0)
        assert client.await_result(job).value == "late"
    assert runs == {job.key: 1}
    assert "JobTimedOut" not in kinds_of(engine, job.key)


def test_a_cancelled_job_tells_its_handler(engine: EngineThread, client: relevo.Client) -> None:
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    started, told = threading.Event(), threading.Event()
    reasons: list[str | None] = []

    @app.job(TYPE)
    def handler(job: relevo.Job) -> None:
        started.set()
        if job.wait_lost(60):
            reasons.append(job.lost_reason)
            told.set()

    with app:
        job = client.create(TYPE, lease=1.0)
        assert started.wait(30)
        # The job is followed from its first renewal on.
        wait_until(lambda: app.stats.extended > 0, "its lease was renewed")
        client.cancel(job, "no longer wanted", wait="decided")
        assert told.wait(60)
    assert "CANCELLED" in str(reasons[0])


def test_a_handler_that_hangs_costs_a_slot_and_nothing_else(
    engine: EngineThread, client: relevo.Client
) -> None:
    """Its lease runs out, the job goes elsewhere, the neighbours finish, and the commit moves on."""
    release = threading.Event()
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    attempts: list[int] = []

    @app.job(TYPE, timeout=0.5, concurrency=2)
    def handler(job: relevo.Job) -> str:
        if job.key == "hangs":
            attempts.append(job.attempt)
            release.wait(100)
        return job.key

    app.start()
    try:
        client.create(TYPE, key="hangs", lease=1.0)
        good = [client.create(TYPE) for _ in range(20)]
        for job in good:
            assert client.await_result(job).value == job.key
        wait_until(lambda: "JobTimedOut" in kinds_of(engine, "hangs"), "its lease has run out")
        wait_until(lambda: app.stats.lost == 1, "its worker knows that")
    finally:
        release.set()
        app.stop()
    assert attempts == [1]


def test_a_coroutine_that_hangs_is_cancelled_and_tried_again(
    engine: EngineThread, client: relevo.Client
) -> None:
    app = relevo.WorkerApp(engine.kafka, engine.cluster)

    @app.job(TYPE, timeout=0.3)
    async def handler(job: relevo.Job) -> int:
        if job.attempt == 1:
            await asyncio.sleep(3_600)
        return job.attempt

    with app:
        assert client.await_result(client.create(TYPE, backoff=0.05)).value == 2
