"""Never two jobs of a correlation id at once: worker processes, a real store, one of them killed at work."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import relevo
from relevo_schemas.partitioning import partition_of
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread
from tests.support.ordered_process import OVERLAP, Duty, Line, inside, ledger, spawn
from tests.support.waiting import wait_until

JOBS = 300
IDS = 20
PARTITIONS = 4
HANDLER_S = 0.02
LEASE_S = 8.0
"""A busy machine may keep a worker waiting for seconds."""


def kill_at_work(worker: subprocess.Popen[bytes], folder: Path, name: str) -> set[str]:
    """``kill -9`` while handlers run; returns the keys of their jobs."""

    def stopped_at_work() -> bool:
        worker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
        if inside(folder, name):
            return True
        worker.send_signal(signal.SIGCONT)
        return False

    wait_until(stopped_at_work, "the worker is in the middle of a job")
    worker.kill()
    worker.wait(30)
    return inside(folder, name)


def entered(folder: Path) -> list[Line]:
    """Jobs that began, in order."""
    return [line for line in ledger(folder) if line.what == "enter" and not line.key.startswith("warm-up")]


def warm_up(client: relevo.Client, folder: Path) -> None:
    """Until each of two workers has got partitions."""
    workers: set[str] = set()
    for number in range(100):
        wanted = len(ledger(folder)) + 2 * 2 * PARTITIONS
        for nth in range(2 * PARTITIONS):
            key = f"warm-up-{number}-{nth}"
            client.create("transfer", key=key, correlation_id=key)
        wait_until(lambda n=wanted: len(ledger(folder)) >= n, "these are done", timeout_s=60)  # type: ignore[misc]
        workers |= {line.worker for line in ledger(folder)}
        if len(workers) == 2:
            return
    raise AssertionError(f"after 100 rounds there are only {workers}")


def out_of_order(lines: list[Line]) -> list[str]:
    """Jobs that began before an older one of their correlation id and partition."""
    latest: dict[tuple[str, int], str] = defaultdict(str)
    found = []
    for line in lines:
        lane = (line.correlation_id, partition_of(line.key, PARTITIONS))
        if line.key < latest[lane]:
            found.append(line.key)
        latest[lane] = max(latest[lane], line.key)
    return found


@pytest.mark.timeout(240)
def test_never_two_of_one_id_when_a_worker_is_killed_at_work(
    brokers: Brokers, cluster_name: str, redis_url: str, tmp_path: Path
) -> None:
    """Two transfers from one account at once: both see the old balance, and one of them is lost."""

    def start(name: str) -> subprocess.Popen[bytes]:
        return spawn(Duty(name, brokers.kafka, cluster_name, "transfer", redis_url, str(tmp_path), HANDLER_S))

    with (
        EngineThread(brokers.kafka, cluster_name, PARTITIONS, ["transfer"]),
        relevo.Client(brokers.kafka, cluster_name) as client,
    ):
        workers = {name: start(name) for name in ("one", "two")}
        try:
            warm_up(client, tmp_path)
            jobs = [
                client.create("transfer", key=f"{n:03}", correlation_id=f"account-{n % IDS}", lease=LEASE_S)
                for n in range(JOBS)
            ]
            wait_until(lambda: len(entered(tmp_path)) > JOBS // 4, "the work is well under way", timeout_s=60)
            killed = kill_at_work(workers["one"], tmp_path, "one")
            before = entered(tmp_path)
            workers["one"] = start("one")
            results = [client.await_result(job, timeout=90) for job in jobs]
        finally:
            for worker in workers.values():
                worker.kill()
                worker.wait(30)
    assert [line for line in ledger(tmp_path) if line.what == OVERLAP] == []
    assert len(results) == JOBS
    keys = Counter(line.key for line in entered(tmp_path))
    assert killed
    assert all(keys[key] == 2 for key in killed), "what was killed is run again"
    assert keys.total() <= JOBS + 8, "what had ended and was marked is not"
    assert out_of_order(before) == []
