"""A node that is killed with many open jobs, and one that comes to many leases that run out at once."""

from __future__ import annotations

import pytest

from relevo_engine.core.rules import Rules
from tests.benchmarks.restart import overdue_leases, restart
from tests.support.brokers import Brokers

JOBS = 20_000

pytestmark = pytest.mark.timeout(400)  # a lone leader takes no snapshot within its first half minute


def test_a_killed_node_leads_again_from_its_snapshot(brokers: Brokers, cluster_name: str) -> None:
    """A start that reads the whole log takes ever longer as the log grows."""
    report = restart(brokers, cluster_name, JOBS)
    assert report["from_log"]["snapshot"] is None
    assert report["from_snapshot"]["snapshot"] is not None
    assert report["snapshot"]["bytes"] > 0


def test_leases_that_run_out_at_once_do_not_hold_up_new_jobs(brokers: Brokers, cluster_name: str) -> None:
    """Workers and leader died together: all their attempts end in the same moment, while work goes on."""
    report = overdue_leases(brokers, cluster_name, JOBS)
    assert report["created_meanwhile"], "decided before the backlog was worked off"
    assert report["oldest_overdue_max_s"] > 0
    assert report["per_step_max"] <= Rules(partition=0, partitions=1).step_timers
