"""Leaders die again and again, at any point of what they do: every job is somewhere, and on its way."""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest

from relevo_engine.local.cluster import LocalCluster
from relevo_engine.local.node import LocalNode
from relevo_engine.topics import activations_topic
from relevo_engine.verify import verify_log
from relevo_schemas import events as ev
from relevo_schemas.codec import default_codec
from relevo_schemas.delivery import Activation
from tests.drills.conftest import TYPE
from tests.support.counter_cluster import read_all
from tests.support.job_log import JobLog
from tests.support.load import Load
from tests.support.waiting import wait_until

KILLS = int(os.environ.get("RELEVO_TEST_KILLS", "12"))
"""What `make test` has time for; `make kills` sets 500."""


def handed_out(cluster: LocalCluster) -> Counter[tuple[str, int]]:
    """What stands on the type's topic: key and attempt of each activation."""
    codec, found = default_codec(), Counter[tuple[str, int]]()
    for slot in range(cluster.partitions):
        for value in read_all(cluster.kafka, activations_topic(cluster.name, TYPE), slot):
            record = codec.decode(value)
            assert isinstance(record, Activation)
            found[record.job.key, record.attempt] += 1
    return found


def balance(cluster: LocalCluster, log: JobLog, accepted: set[str]) -> None:
    """Nothing is lost, nothing finished twice, and each activation of the log is one on the topic."""
    report = verify_log(cluster.kafka, cluster.name, expected_keys=accepted)
    assert report.ok, report.violations
    counts = report.counts
    ended = counts.completed + counts.errored + counts.cancelled + counts.expired
    assert counts.created == ended + sum(counts.open.values())
    assert (counts.created, sum(counts.open.values())) == (len(log.created()), 0)
    activated = Counter(
        (event.key, event.attempt) for event in log.of(ev.JobActivated) if isinstance(event, ev.JobActivated)
    )
    assert activated == handed_out(cluster), "an activation without its event, or the reverse"


def a_leader(cluster: LocalCluster, partition: int) -> LocalNode:
    """Who leads it, or will in a moment: a node that came back may be getting it back just now."""
    found: list[LocalNode] = []

    def led() -> bool:
        leader = cluster.leaders().get(partition)
        found.extend([cluster.node(leader)] if leader is not None else [])
        return bool(found)

    wait_until(led, f"somebody leads partition {partition}")
    return found[0]


@pytest.mark.timeout(240 + 20 * KILLS)
def test_leaders_killed_again_and_again_leave_no_job_behind(cluster: LocalCluster, load: Load) -> None:
    """What lies between "decided" and "handed out" is lost if the two can come apart."""
    dice = random.Random(51)
    for number in range(1, KILLS + 1):
        time.sleep(dice.random())  # at random: the load never rests
        partition = dice.randrange(cluster.partitions)
        node = a_leader(cluster, partition)
        began = time.monotonic()
        node.kill()
        cluster.await_ready(without=[node])
        took = time.monotonic() - began
        node.restart(wait=False)
        print(
            f"kill {number} of {KILLS}: {node.node_id}, which led partition {partition}; all are led again "
            f"after {took:.1f} s, {len(load.accepted)} jobs accepted",
            flush=True,
        )  # `make kills` shows it
    before = len(load.accepted)
    load.await_effects(100)
    log = load.finish()
    assert len(load.accepted) >= before > 100
    terms = Counter(partition for partition, _ in log.elections())
    assert terms.total() >= cluster.partitions + KILLS, "a kill hit no leader"
    balance(cluster, log, load.accepted)
