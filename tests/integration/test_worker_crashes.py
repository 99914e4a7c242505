"""Workers that die: at each step, by their own handler, by a signal. Effects are counted outside of them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
import redis

import relevo
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread
from tests.support.waiting import wait_until
from tests.support.worker_process import STEPS, Orders, effects, perform, spawn

LEASE_S = 3.0


@pytest.fixture
def client(brokers: Brokers, cluster_name: str) -> Iterator[relevo.Client]:
    with relevo.Client(brokers.kafka, cluster_name) as client:
        yield client


@pytest.fixture
def counters(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as counters:
        yield counters


def completed(brokers: Brokers, cluster: str) -> set[str]:
    with relevo.JobEvents(brokers.kafka, cluster, kinds=["JobCompleted"], follow=False) as events:
        return {event.key for event in events}


@pytest.mark.timeout(180)
def test_a_claim_left_behind_by_a_crash_at_any_step(
    brokers: Brokers, cluster_name: str, client: relevo.Client, counters: redis.Redis, redis_url: str
) -> None:
    """Freed too early, the effect happens twice; never freed, the job waits for ever."""
    types = {step: f"t{number}" for number, step in enumerate(STEPS)}
    with EngineThread(brokers.kafka, cluster_name, 2, list(types.values())):
        keys = {step: client.create(name, lease=LEASE_S).key for step, name in types.items()}
        for step, name in types.items():
            dying = spawn(Orders(brokers.kafka, cluster_name, name, redis_url, die=step))
            assert dying.wait(60) == -signal.SIGKILL
        app = relevo.WorkerApp(brokers.kafka, cluster_name, dedup=relevo.RedisDedupStore(redis_url))
        for name in types.values():

            @app.job(name)
            def handler(job: relevo.Job) -> str:
                perform(counters, cluster_name, job.key)
                return job.key

        with app:
            wait_until(
                lambda: completed(brokers, cluster_name) == set(keys.values()),
                "all are completed",
                timeout_s=90,
            )
    found = {step: effects(counters, cluster_name, key) for step, key in keys.items()}
    # Between effect and mark nothing can know that it has happened: that is what the idempotency key is for.
    assert found == {
        "before claim": 1,
        "after claim": 1,
        "after effect": 2,
        "after done": 1,
        "before commit": 1,
    }


@pytest.mark.timeout(240)
def test_a_job_that_kills_its_worker_ends_before_a_person_and_its_neighbours_end_well(
    brokers: Brokers, cluster_name: str, client: relevo.Client, counters: redis.Redis, redis_url: str
) -> None:
    """Else it circulates, and takes all that run beside it down each time."""
    with EngineThread(brokers.kafka, cluster_name, 1, ["deadly"], lease_expiries_max=2):
        jobs = [
            client.create("deadly", key="poison" if number == 5 else f"good-{number}", lease=LEASE_S)
            for number in range(12)
        ]
        # A member with a name of its own gets its partitions back at once, not when its session has ended.
        orders = Orders(
            brokers.kafka,
            cluster_name,
            "deadly",
            redis_url,
            die_for=["poison"],
            options={"group_instance_id": "one"},
        )
        deaths = 0
        worker = spawn(orders)
        try:
            with relevo.JobEvents(brokers.kafka, cluster_name, kinds=["JobIncident"]) as incidents:
                found: list[relevo.JobEvent] = []
                while not found:
                    found = incidents.read(0.2)
                    if worker.poll() is not None:
                        deaths += 1
                        worker = spawn(orders)
            good = {job.key for job in jobs} - {"poison"}
            wait_until(
                lambda: completed(brokers, cluster_name) == good, "the neighbours are completed", timeout_s=90
            )
        finally:
            worker.kill()
            worker.wait(30)
    assert (found[0].key, found[0].event.cause) == ("poison", "LEASES_EXHAUSTED")  # type: ignore[attr-defined]
    assert 2 <= deaths <= 8
    # One that ran beside it when the process died may have had its effect and no mark.
    assert all(1 <= effects(counters, cluster_name, key) <= deaths + 1 for key in good)


def test_sigterm_lets_running_jobs_finish(
    brokers: Brokers, cluster_name: str, client: relevo.Client, counters: redis.Redis, redis_url: str
) -> None:
    with EngineThread(brokers.kafka, cluster_name, 1, ["slow"]):
        job = client.create("slow")
        worker = spawn(Orders(brokers.kafka, cluster_name, "slow", redis_url, seconds=1.0))
        wait_until(lambda: counters.get(f"running:{cluster_name}:{job.key}"), "the job runs")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        assert client.await_result(job).value == job.key
    assert effects(counters, cluster_name, job.key) == 1


def test_a_second_signal_ends_the_worker_at_once(
    brokers: Brokers, cluster_name: str, client: relevo.Client, counters: redis.Redis, redis_url: str
) -> None:
    """A handler that hangs must not keep a deployment waiting."""
    with EngineThread(brokers.kafka, cluster_name, 1, ["hangs"]):
        job = client.create("hangs")
        worker = spawn(Orders(brokers.kafka, cluster_name, "hangs", redis_url, seconds=3_600))
        wait_until(lambda: counters.get(f"running:{cluster_name}:{job.key}"), "the job runs")
        try:
            worker.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(1.5)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(15) == 0
        finally:
            worker.kill()
            worker.wait(30)
