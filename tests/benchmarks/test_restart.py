"""A million open jobs: how soon a node leads again; a hundred thousand leases that run out at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from relevo_engine.local.brokers import LocalBrokers
from tests.benchmarks.restart import overdue_leases, restart

JOBS = int(os.environ.get("RELEVO_TEST_RESTART_JOBS", "1000000"))
LEADING_MAX_S = 15.0
REPORT = Path("build/restart.json")


@pytest.mark.timeout(1700)
def test_a_node_with_a_million_jobs_leads_within_seconds() -> None:
    """Judged by processor time: what else the machine did meanwhile stands in the report."""
    with LocalBrokers(for_tests=False) as brokers:
        restarted = restart(brokers, "restart", JOBS)
        leases = overdue_leases(brokers, "overdue", JOBS // 10)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"restart": restarted, "overdue_leases": leases}, indent=2) + "\n")
    print(REPORT.read_text(), flush=True)
    assert restarted["from_snapshot"]["snapshot"] is not None
    assert restarted["from_snapshot"]["cpu_s"] <= LEADING_MAX_S * max(1.0, JOBS / 1_000_000)
    assert leases["created_meanwhile"]
