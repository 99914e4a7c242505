"""`relevo bench` asks before it writes, and tells in a line what doesn't work."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from relevo.cli import bench
from relevo.errors import Unreachable
from relevo.testing.bench import visit

REPORT: dict[str, Any] = {
    "partitions": 4,
    "jobs": 20_000,
    "bytes": 200,
    "throughput": {"jobs_per_s": 9_876, "rounds": [9_000, 9_876, 10_000]},
    "latency_ms": {
        "50": {
            **dict.fromkeys(("p50", "p90", "p99", "p999", "max"), 7.0),
            "completed": dict.fromkeys(("p50", "p90", "p99", "p999", "max"), 11.0),
        }
    },
}


def test_it_asks_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's cluster gets twenty thousand jobs by a slip of the keyboard."""
    asked: list[visit.Plan] = []

    def measure(plan: visit.Plan, _folder: Any, _say: Any) -> dict[str, Any]:
        asked.append(plan)
        return REPORT

    monkeypatch.setattr(visit, "measure", measure)
    refused = CliRunner().invoke(bench.command, ["--cluster", "shop"], input="n\n")
    assert refused.exit_code == 1
    assert "jobs of type relevo-bench in cluster shop" in refused.output
    assert asked == []
    agreed = CliRunner().invoke(bench.command, ["--cluster", "shop", "--rate", "50", "--yes"])
    assert agreed.exit_code == 0, agreed.output
    assert [(plan.cluster, tuple(plan.rates)) for plan in asked] == [("shop", (50.0,))]
    assert "9,876 jobs/s, the median of 9,000, 9,876, 10,000" in agreed.output


def test_a_broker_that_is_not_there_is_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback of librdkafka's tells nobody which address is wrong."""
    monkeypatch.setattr(visit, "_REPLY_S", 0.2)
    plan = visit.Plan("127.0.0.1:1", "shop", options={"log_level": 0})
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        visit.measure(plan, tmp_path, lambda _line: None)


def test_figures_are_told_in_a_table() -> None:
    lines = bench.lines_of(REPORT)
    assert lines[0].startswith("9,876 jobs/s")
    assert "started" in lines[-1]
    assert "11.0" in lines[-1]
