"""Live attempts outlast a time in which nobody could be heard, though their leases don't."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import relevo
from relevo_engine.topic_admin import TopicAdmin
from relevo_schemas import events as ev
from tests.support.brokers import Brokers
from tests.support.fixtures import StartBrokers
from tests.support.job_log import JobLog, read_job_log
from tests.support.nodes import NodeProcess
from tests.support.waiting import wait_until

TYPE: Final = "long"
JOBS: Final = 5
LEASE_S: Final = 3.0
DEAF_S: Final = 4.5
"""Longer than the leases: that is what is tested."""


class LongJobs:
    """Some jobs under way in one worker until they are let go; use it as a context manager."""

    def __init__(self, kafka: str, cluster: str) -> None:
        self._may_end = threading.Event()
        self._begun: set[tuple[str, int]] = set()
        self._client = relevo.Client(kafka, cluster)
        self._app = app = relevo.WorkerApp(kafka, cluster, dedup=relevo.MemoryDedupStore())

        @app.job(TYPE, concurrency=2 * JOBS, lease=LEASE_S)
        def handler(job: relevo.Job) -> None:
            self._begun.add((job.key, job.attempt))
            self._may_end.wait(60)

    def __enter__(self) -> LongJobs:
        self._app.start()
        self._made = [self._client.create(TYPE, key=f"job-{n}", lease=LEASE_S) for n in range(JOBS)]
        wait_until(lambda: len(self._begun) == JOBS, "all are under way", timeout_s=60)
        return self

    def __exit__(self, *_: object) -> None:
        self._may_end.set()
        self._app.stop()
        self._client.close()

    def end(self) -> set[tuple[str, int]]:
        """Let them end; every (key, attempt) that ever began."""
        self._may_end.set()
        for job in self._made:
            assert self._client.await_result(job, timeout=60).state == "COMPLETED"
        return self._begun


@contextmanager
def a_node(kafka: str, zookeeper: str, cluster: str, *flags: str) -> Iterator[NodeProcess]:
    """A node that leads the one partition there is."""
    TopicAdmin(kafka, cluster).init(1, [TYPE], allow_unsafe=True)
    where = ("--kafka", kafka, "--zookeeper", zookeeper, "--cluster", cluster, "--partitions", "1")
    with NodeProcess(*where, "--allow-unsafe-topics", "--settle-s", "0", *flags) as node:
        node.await_ready()
        yield node


def check(begun: set[tuple[str, int]], log: JobLog) -> None:
    assert begun == {(f"job-{n}", 1) for n in range(JOBS)}
    assert log.of(ev.JobTimedOut) == []
    assert len(log.completed()) == JOBS
    assert len(log.of(ev.JobStarted)) == JOBS, "their leases ran: the leader knew of them"


def test_kafka_away_for_longer_than_the_leases(own_brokers: StartBrokers, cluster_name: str) -> None:
    """Nobody's command arrives, and the leader has nothing to write that would tell it."""
    brokers = own_brokers()
    with (
        a_node(brokers.kafka, brokers.zookeeper, cluster_name),
        LongJobs(brokers.kafka, cluster_name) as jobs,
    ):
        time.sleep(LEASE_S / 2)  # some signs of life
        brokers.kafka_servers[0].kill()
        time.sleep(DEAF_S)
        brokers.kafka_servers[0].restart()
        brokers.await_brokers()
        time.sleep(1.5 * LEASE_S)  # long enough for a lease that counts to end
        begun = jobs.end()
    check(begun, read_job_log(brokers.kafka, cluster_name, 1))


def test_a_leader_that_stood_still_for_longer_than_the_leases(brokers: Brokers, cluster_name: str) -> None:
    """It wakes up with every lease overdue, and signs of life from all of them in Kafka."""
    with (
        a_node(brokers.kafka, brokers.zookeeper, cluster_name, "--session-timeout-s", "20") as node,
        LongJobs(brokers.kafka, cluster_name) as jobs,
    ):
        time.sleep(LEASE_S / 2)
        node.signal(signal.SIGSTOP)
        time.sleep(DEAF_S)
        node.signal(signal.SIGCONT)
        time.sleep(1.5 * LEASE_S)
        begun = jobs.end()
    log = read_job_log(brokers.kafka, cluster_name, 1)
    check(begun, log)
    assert len(log.elections()) == 1
