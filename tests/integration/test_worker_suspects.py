"""A job that kills its worker's process each time it runs, among others that run beside it."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest
import redis
from confluent_kafka import Consumer, TopicPartition

import relevo
from relevo.names import activations_topic, workers_group
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread
from tests.support.waiting import wait_until
from tests.support.worker_process import Orders, effects, spawn

KILLER = "killer"
NEIGHBOURS = {f"good-{number}" for number in range(20)}
EXPIRIES_MAX = 3
DEATHS_MAX = 8
"""Bounds the supervisor: some more than the killer should have."""
ENDINGS = ("JobCompleted", "JobIncident")


def supervise(
    orders: Orders, brokers: Brokers, cluster: str, until_s: float
) -> dict[str, list[relevo.JobEvent]]:
    """Keep one worker process running until every job has ended in some way; its events, by key."""
    history: dict[str, list[relevo.JobEvent]] = defaultdict(list)
    ended: set[str] = set()
    deaths = 0
    deadline = time.monotonic() + until_s
    worker = spawn(orders)
    try:
        with relevo.JobEvents(brokers.kafka, cluster) as events:
            while not ended >= NEIGHBOURS | {KILLER}:
                for event in events.read(0.2):
                    history[event.key].append(event)
                    if event.kind in ENDINGS:
                        ended.add(event.key)
                if worker.poll() is not None:
                    deaths += 1
                    assert deaths <= DEATHS_MAX, "it circulates"
                    worker = spawn(orders)
                assert time.monotonic() < deadline, f"open: {sorted((NEIGHBOURS | {KILLER}) - ended)}"
        wait_until(lambda: is_settled(brokers, cluster), "all offsets are committed", timeout_s=60)
    finally:
        worker.kill()
        worker.wait(30)
    return history


def is_settled(brokers: Brokers, cluster: str) -> bool:
    """Whether the group has committed a position behind the last activation."""
    reader = Consumer(
        {
            "bootstrap.servers": brokers.kafka,
            "group.id": workers_group(cluster, "deadly"),
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        place = TopicPartition(activations_topic(cluster, "deadly"), 0, 0)
        committed = reader.committed([place], timeout=30)[0].offset
        reader.assign([place])
        last = -1
        while (message := reader.poll(30)) is not None and message.error() is None:
            last = max(last, message.offset() or 0)
        return last >= 0 and committed > last
    finally:
        reader.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("lease_s", "store", "options", "cause"),
    [
        # A member with a name of its own gets its partitions back at once.
        pytest.param(60.0, "memory", {"group_instance_id": "one"}, "TAKEN_OVER", id="redelivered before"),
        # The dead member is noticed after 6 s.
        pytest.param(2.0, "redis", {}, "LEASE", id="lease ends before"),
    ],
)
def test_a_job_that_kills_its_worker_takes_none_along(
    brokers: Brokers,
    cluster_name: str,
    redis_url: str,
    lease_s: float,
    store: str,
    options: dict[str, str],
    cause: str,
) -> None:
    """Those that run beside it die with it each time; they must not end as incidents for that."""
    with (
        EngineThread(brokers.kafka, cluster_name, 1, ["deadly"], lease_expiries_max=EXPIRIES_MAX),
        relevo.Client(brokers.kafka, cluster_name) as client,
        redis.Redis.from_url(redis_url) as counters,
    ):
        for key in sorted(NEIGHBOURS | {KILLER}):
            client.create("deadly", key=key, lease=lease_s)
        orders = Orders(
            brokers.kafka,
            cluster_name,
            "deadly",
            redis_url,
            store=store,
            die_for=[KILLER],
            seconds=1.0,
            concurrency=21,
            options=options,
        )
        history = supervise(orders, brokers, cluster_name, 200)
        deaths = int(counters.get(f"deaths:{cluster_name}:{KILLER}") or 0)
        counts = {key: effects(counters, cluster_name, key) for key in NEIGHBOURS}
    assert {key for key, events in history.items() if events[-1].kind == "JobCompleted"} == NEIGHBOURS
    incident = history[KILLER][-1].event
    assert (history[KILLER][-1].kind, incident.cause) == ("JobIncident", "LEASES_EXHAUSTED")  # type: ignore[attr-defined]
    silent = [each.event.cause for each in history[KILLER] if each.kind == "JobTimedOut"]  # type: ignore[attr-defined]
    assert silent == [cause] * EXPIRIES_MAX
    assert deaths == EXPIRIES_MAX, "each death counts once"
    assert all(count >= 1 for count in counts.values())
    beside = [[each.kind for each in history[key]].count("JobTimedOut") for key in NEIGHBOURS]
    assert max(beside) == EXPIRIES_MAX - 1, "they did die with it, and then ran alone"
