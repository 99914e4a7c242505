"""How often a job has its effect: duplicates, long queues, stores that fail, partitions that move."""

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
from tests.support.jobs import activations, committed, kinds_of
from tests.support.redis import Redis
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


def test_redis_gone_no_effect_without_a_claim_and_no_commit(
    engine: EngineThread, client: relevo.Client, own_redis: Redis
) -> None:
    app = relevo.WorkerApp(
        engine.kafka,
        engine.cluster,
        dedup=relevo.RedisDedupStore(own_redis.url, timeout=0.3, volatile_ok=True),
    )
    effects: Counter[str] = Counter()

    @app.job(TYPE)
    async def handler(job: relevo.Job) -> None:
        effects[job.key] += 1

    with app:
        first = client.create(TYPE)
        client.await_result(first)
        own_redis.kill()
        before = committed(engine, TYPE)
        jobs = [client.create(TYPE) for _ in range(50)]
        wait_until(lambda: app.stats.unknown_claims >= 3, "it shows")
        assert set(effects) == {first.key}
        own_redis.restart()
        for job in jobs:
            assert client.await_result(job).state == "COMPLETED"
        wait_until(
            lambda: sum(committed(engine, TYPE).values()) > sum(before.values()), "the commit moves on"
        )
    assert set(effects.values()) == {1}


def test_a_job_activated_twice_has_its_effect_once(engine: EngineThread, client: relevo.Client) -> None:
    """The same activation again, as after a lost commit: it is not run, its result is sent again."""
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    effects: Counter[str] = Counter()

    @app.job(TYPE)
    async def handler(job: relevo.Job) -> str:
        effects[job.key] += 1
        return "once"

    with app:
        job = client.create(TYPE)
        assert client.await_result(job).value == "once"
        again = activations(engine, TYPE)
        producer = Producer({"bootstrap.servers": engine.kafka})
        for value in again * 3:
            producer.produce(f"{engine.cluster}.activations.{TYPE}", value, job.key.encode(), 0)
        producer.flush(10)
        wait_until(lambda: app.stats.duplicates_suppressed == 3 * len(again), "all repeats were noticed")
    assert effects == {job.key: 1}


def test_a_lease_shorter_than_the_queue_makes_no_copies(engine: EngineThread, client: relevo.Client) -> None:
    """Jobs wait in Kafka for longer than their lease before anybody works: each has its effect once."""
    count = 200
    jobs = list(client.create_many({"type": TYPE, "lease": 1.0} for _ in range(count)))
    assert all(job.ok for job in jobs)
    # Longer than their lease, by the engine's own clock.
    time.sleep(1.5)
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    effects: Counter[str] = Counter()

    @app.job(TYPE, concurrency=1)
    async def handler(job: relevo.Job) -> None:
        effects[job.key] += 1
        await asyncio.sleep(0.01)

    with app:
        wait_until(lambda: app.stats.done >= count, "all are done", timeout_s=60)
    assert effects == {str(job.key): 1 for job in jobs}
    with relevo.JobEvents(
        engine.kafka, engine.cluster, kinds=["JobActivated", "JobTimedOut"], follow=False
    ) as events:
        assert Counter(event.kind for event in events) == {"JobActivated": count}


def test_at_most_once_commits_first_and_tries_nothing_again(
    engine: EngineThread, client: relevo.Client
) -> None:
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    seen: dict[str, int] = {}

    @app.job(TYPE, delivery="at-most-once")
    def handler(job: relevo.Job) -> None:
        seen[job.key] = sum(max(each, 0) for each in committed(engine, TYPE).values())
        if job.key == "raises":
            raise ValueError("no second try")

    with app:
        good = client.create(TYPE)
        assert client.await_result(good).state == "COMPLETED"
        assert seen[good.key] > 0
        client.create(TYPE, key="raises", retries=5, backoff=0.05)
        wait_until(lambda: "JobIncident" in kinds_of(engine, "raises"), "it is an incident")
    assert kinds_of(engine, "raises").count("JobActivated") == 1


@pytest.mark.timeout(180)
def test_deployments_cost_no_job_that_runs_at_most_once(engine: EngineThread, client: relevo.Client) -> None:
    """Workers come and go in the middle of their work: each job has its effect, and has it once."""
    effects: Counter[str] = Counter()
    lock = threading.Lock()

    def start() -> relevo.WorkerApp:
        app = relevo.WorkerApp(engine.kafka, engine.cluster)

        @app.job(TYPE, delivery="at-most-once", concurrency=4)
        def handler(job: relevo.Job) -> None:
            time.sleep(0.005)
            with lock:
                effects[job.key] += 1

        app.start()
        return app

    apps = [start()]
    keys = {str(result.key) for result in client.create_many({"type": TYPE} for _ in range(1_200))}
    for part in (200, 400, 600, 800):
        wait_until(lambda part=part: len(effects) >= part, "the work goes on", timeout_s=60)  # type: ignore[misc]
        apps.append(start())
        if len(apps) > 2:
            apps.pop(0).stop()
    wait_until(lambda: set(effects) == keys, "none is lost", timeout_s=60)
    for app in apps:
        app.stop()
    assert max(effects.values()) == 1


def test_a_type_that_has_no_topic_yet_is_waited_for(engine: EngineThread, client: relevo.Client) -> None:
    app = relevo.WorkerApp(engine.kafka, engine.cluster)
    app.job("brand-new")(lambda job: "hello")
    with app:
        assert client.await_result(client.create("brand-new")).value == "hello"


def test_a_worker_without_a_broker_waits_and_stops_when_told(caplog: pytest.LogCaptureFixture) -> None:
    app = relevo.WorkerApp("127.0.0.1:1")
    app.job(TYPE)(lambda job: None)
    app.start()
    wait_until(lambda: "Kafka doesn't answer" in caplog.text, "it says so")
    app.stop(drain=1)
    assert "Traceback" not in caplog.text


# With the newer protocol a member hears of a change with its next heartbeat, every five seconds.
@pytest.mark.parametrize(("protocol", "more"), [("classic", 3), ("consumer", 1)])
def test_workers_are_added_and_taken_away_while_they_work(
    engine: EngineThread, client: relevo.Client, protocol: str, more: int
) -> None:
    """In-flight work at revoke is drained and committed; what is repeated, a shared store catches."""
    store = relevo.MemoryDedupStore()
    effects: Counter[str] = Counter()
    lock = threading.Lock()

    options: dict[str, Any] = {"group.protocol": protocol}

    def start() -> relevo.WorkerApp:
        app = relevo.WorkerApp(engine.kafka, engine.cluster, dedup=store, **options)

        @app.job(TYPE, concurrency=10)
        async def handler(job: relevo.Job) -> None:
            await asyncio.sleep(0.005)
            with lock:
                effects[job.key] += 1

        app.start()
        return app

    def go_on() -> None:
        target = min(len(effects) + 300, len(keys))
        wait_until(lambda: len(effects) >= target, "the work goes on", timeout_s=60)

    apps = [start()]
    keys = {str(result.key) for result in client.create_many({"type": TYPE} for _ in range(3_000))}
    for _ in range(more):
        go_on()
        apps.append(start())
    while len(apps) > 1:
        go_on()
        apps.pop(0).stop()
    wait_until(lambda: set(effects) == keys, "all have run", timeout_s=60)
    apps.pop().stop()
    assert max(effects.values()) == 1
