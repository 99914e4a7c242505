"""A worker that its group's coordinator doesn't hear any more, while everything else of Kafka answers it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any, Final

import pytest

import relevo
from relevo.names import workers_group
from relevo_engine.local.brokers import LocalBrokers
from tests.support.brokers import unique_cluster_name
from tests.support.engine_thread import EngineThread
from tests.support.group_members import set_session
from tests.support.kafka_frames import Fate, FrameProxy
from tests.support.waiting import wait_until

TYPE: Final = "work"
SESSION_S: Final = 2.0
OF_GROUPS: Final = frozenset({8, 11, 12, 13, 14, 68})
"""API keys of OffsetCommit, JoinGroup, Heartbeat, LeaveGroup, SyncGroup and ConsumerGroupHeartbeat."""


def options_of(protocol: str, kafka: str, group: str) -> dict[str, Any]:
    """For a session of `SESSION_S`: in one protocol members ask for it, in the other brokers set it."""
    milliseconds = round(SESSION_S * 1_000)
    if protocol == "classic":
        return {"session.timeout.ms": milliseconds, "heartbeat.interval.ms": 500}
    set_session(kafka, group, milliseconds)
    return {"group.protocol": "consumer"}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_worker_that_only_its_coordinator_has_lost_does_no_job_twice(
    behind_frames: tuple[LocalBrokers, FrameProxy], protocol: str
) -> None:
    """It goes on fetching what others have by now: a fetch asks nobody about the group."""
    brokers, proxy = behind_frames
    kafka = brokers.kafka
    cluster = unique_cluster_name(f"cut-off-{protocol}")
    options = options_of(protocol, kafka, workers_group(cluster, TYPE))
    store = relevo.MemoryDedupStore()
    effects: Counter[str] = Counter()
    by: Counter[str] = Counter()
    lock = threading.Lock()

    def start(name: str, at: str) -> relevo.WorkerApp:
        app = relevo.WorkerApp(at, cluster, dedup=store, **options)

        @app.job(TYPE, concurrency=4)
        async def handler(job: relevo.Job) -> None:
            await asyncio.sleep(0.01)
            with lock:
                effects[job.key] += 1
                by[name] += 1

        app.start()
        return app

    with EngineThread(kafka, cluster, 2, [TYPE]), relevo.Client(kafka, cluster) as client:
        cut_off = start("cut off", proxy.address)
        keys = {str(made.key) for made in client.create_many({"type": TYPE} for _ in range(200))}
        wait_until(lambda: by["cut off"] > 50, "it works")
        proxy.rule = lambda api, _frame: Fate.HOLD if api in OF_GROUPS else Fate.PASS
        held_at = time.monotonic()
        other = start("other", kafka)
        keys |= {str(made.key) for made in client.create_many({"type": TYPE} for _ in range(200))}
        wait_until(lambda: other.stats.rebalances, "the other has its partitions", timeout_s=60)
        wait_until(lambda: set(effects) == keys, "all have run", timeout_s=60)
        # Time that has to pass: it is what the cut-off one needs to be thrown out and not to know.
        time.sleep(max(0.0, held_at + 2 * SESSION_S - time.monotonic()))
        proxy.rule = lambda _api, _frame: Fate.PASS
        proxy.release()
        before = by["cut off"]
        for _ in range(60):
            more = {str(made.key) for made in client.create_many({"type": TYPE} for _ in range(20))}
            keys |= more
            wait_until(lambda: more <= set(effects), "the work goes on", timeout_s=60)  # noqa: B023
            if by["cut off"] > before:
                break
        assert by["cut off"] > before, "it has come back and works again"
        cut_off.stop()
        other.stop()
    assert set(effects) == keys
    assert max(effects.values()) == 1
    assert other.stats.duplicates_suppressed, "never did both have the same jobs"
