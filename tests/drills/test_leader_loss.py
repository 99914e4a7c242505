"""Leaders die or freeze under load; another node goes on, and the log proves that nothing was lost."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from relevo_engine.errors import EngineError
from relevo_engine.local.cluster import LocalCluster
from relevo_engine.local.node import LocalNode
from tests.support.load import Load
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


def busiest(cluster: LocalCluster) -> str:
    """The node that leads most partitions."""
    return Counter(cluster.leaders().values()).most_common(1)[0][0]


def test_a_killed_leader_is_replaced_and_its_jobs_are_done(cluster: LocalCluster, load: Load) -> None:
    """A kill -9 of the node that leads most partitions, and then of the one that took over."""
    for _ in range(2):
        name = busiest(cluster)
        node = cluster.node(name)
        load.mark()
        node.kill()
        cluster.await_ready(without=[node])
        load.await_effects(100)
        node.restart()
    log = load.finish()
    led = Counter(partition for partition, _ in log.elections())
    assert all(led[partition] >= 1 for partition in range(cluster.partitions))
    assert max(led.values()) >= 2, "some partition changed hands"


def test_a_frozen_leader_that_wakes_up_writes_nothing_any_more(cluster: LocalCluster, load: Load) -> None:
    """SIGSTOP beyond the session: a successor leads; after SIGCONT the sleeper is fenced and stands by."""
    name = busiest(cluster)
    node = cluster.node(name)
    lost = {partition for partition, leader in cluster.leaders().items() if leader == name}
    node.freeze()
    others = [each for each in cluster.nodes if each is not node]
    wait_until(
        lambda: lost <= {p for p, leader in leaders_by(others).items() if leader != name},
        "the others lead the frozen node's partitions",
        timeout_s=60,
    )
    load.await_effects(200)
    node.thaw()
    load.await_effects(200)
    wait_until(
        lambda: all(leaders_by([node]).get(p) not in (None, name) for p in lost),
        "the woken node knows that it leads no longer",
        timeout_s=60,
    )
    log = load.finish()
    for partition in lost:
        leaders = [event.node for p, event in log.elections() if p == partition]
        assert leaders[-1] != name


def leaders_by(nodes: list[LocalNode]) -> dict[int, str]:
    """Leaders as the first of these nodes sees them; none while it is busy finding out."""
    with contextlib.suppress(EngineError):
        rows = nodes[0].api.get("/v1/partitions")["partitions"]
        return {row["partition"]: row["leader"] for row in rows if row.get("role") == "LEADING"}
    return {}
