"""Jobs per second from create to completed, held against the limit in the same run on the same broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from relevo_engine.local.cluster import LocalCluster
from relevo_engine.topic_admin import TopicAdmin
from relevo_schemas.events import JobCompleted, JobCreated
from tests.support.job_log import read_job_log
from tests.support.waiting import wait_until

JOBS = 30_000
ROUNDS = 3
REPORT = Path("build/benchmarks.json")


@contextmanager
def process(module: str, bootstrap: str, name: str, jobs: int, role: str) -> Iterator[subprocess.Popen[str]]:
    """One role as a process; ended afterwards."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", bootstrap, name, str(jobs), role]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(30)


def limit_rate(cluster: LocalCluster, turn: int) -> float:
    """Jobs per second of the loop that decides nothing."""
    prefix = f"limit{turn}"
    TopicAdmin(cluster.kafka, prefix).init(1, ["noop"], allow_unsafe=True)
    with ExitStack() as stack:
        started = [
            stack.enter_context(process("limit", cluster.kafka, prefix, JOBS, role))
            for role in ("worker", "leader", "client")
        ]
        line = started[1].stdout.readline() if started[1].stdout is not None else ""
    return JOBS / float(line)


def relevo_rate(cluster: LocalCluster) -> float:
    """Jobs per second, from the first JobCreated to the last JobCompleted, by the leader's clock."""
    before = len(read_job_log(cluster.kafka, cluster.name, 1).completed())
    with ExitStack() as stack:
        stack.enter_context(process("noop", cluster.kafka, cluster.name, JOBS, "worker"))
        time.sleep(3)  # joining the group isn't measured
        stack.enter_context(process("noop", cluster.kafka, cluster.name, JOBS, "client"))
        wait_until(lambda: completed(cluster) >= before + JOBS, "all jobs are completed", timeout_s=300)
    log = read_job_log(cluster.kafka, cluster.name, 1)
    assert log.check.sound
    begun = min(event.at for event in log.of(JobCreated))
    ended = max(event.at for event in log.of(JobCompleted))
    return JOBS / ((ended - begun) / 1000)


def completed(cluster: LocalCluster) -> int:
    """How many jobs the engine counts as completed."""
    time.sleep(0.5)
    return sum(row.get("jobs", {}).get("COMPLETED", 0) for row in cluster.status())


@pytest.mark.timeout(1200)
def test_rate_of_jobs_that_do_nothing() -> None:
    """One broker: at least 0.2 of the limit."""
    found = []
    for turn in range(ROUNDS):
        with LocalCluster(1, 1, name="bench", types=["noop"], for_tests=False) as cluster:
            limit_rate(cluster, 0)  # warms the broker up
            limit = limit_rate(cluster, 1)
            rate = relevo_rate(cluster)
        found.append(
            {"round": turn, "limit": round(limit), "relevo": round(rate), "ratio": round(rate / limit, 3)}
        )
        print(found[-1], flush=True)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"jobs": JOBS, "rounds": found}, indent=2) + "\n")
    assert sorted(each["ratio"] for each in found)[ROUNDS // 2] >= 0.2
