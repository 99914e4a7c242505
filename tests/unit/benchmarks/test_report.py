"""The report keeps what other parts found, and never mixes real figures with tiny ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from relevo_engine.core.channels import FixedChannels
from relevo_engine.core.rules import Rules
from relevo_engine.machine import PartitionMachine
from relevo_engine.verify import LogCheck
from relevo_partitions.statemachine import Incoming
from relevo_schemas.codec import encode
from tests.benchmarks import report, targets
from tests.benchmarks.parts.peers import figures_of
from tests.benchmarks.picture import page
from tests.benchmarks.report import Report
from tests.benchmarks.restart import mixed

WHOLE = {
    "throughput": {
        "relevo": 9_000,
        "limit": 30_000,
        "ratio": 0.3,
        "celery_redis": 700,
        "to_fastest_queue": 3.1,
        "dedup": {"redis_to_memory": 0.6, "memory": {"jobs_per_s": 9_000, "rounds": [9_000]}},
        "partitions": {"2": {"jobs_per_s": 8_000, "rounds": [8_000]}},
        "three_brokers": {"relevo": 6_000, "limit": 9_000, "ratio": 0.667},
    },
    "latency_ms": {
        "500": {"p50": 9.0, "p90": 12.0, "p99": 61.0, "p999": 80.0, "completed": {"p50": 15.0}},
        "three_brokers": {"500": {"p50": 70.0, "p99": 200.0}},
    },
    "state": {
        "rates": {"0": {"jobs_per_s": 9_000}, "1000000": {"jobs_per_s": 8_500}},
        "rate_ratio_1m_open": 0.94,
    },
}


def test_a_part_keeps_what_the_others_found(tmp_path: Path) -> None:
    """Half an hour's figures would be gone with the last part's failure."""
    path = tmp_path / "build" / "bench.json"
    first = Report(path, tiny=False)
    first.add("throughput", {"throughput": {"relevo": 1, "dedup": {"none": 5}}}, 60.0)
    first.add("throughput", {"throughput": {"dedup": {"redis": 4}}}, 61.0)
    second = Report(path, tiny=False)
    second.add("latency", {}, 5.0, "ChildError: the node ended")
    found = json.loads(path.read_text())
    assert found["throughput"] == {"relevo": 1, "dedup": {"none": 5, "redis": 4}}
    assert found["runs"]["latency"]["error"] == "ChildError: the node ended"
    assert found["runs"]["throughput"]["error"] is None
    assert found["machine"]["cores"] >= 1
    assert set(report.empty()) <= set(found)


def test_tiny_figures_never_stand_beside_real_ones(tmp_path: Path) -> None:
    """A figure of 200 jobs would be quoted as one of 20,000."""
    path = tmp_path / "bench.json"
    Report(path, tiny=True).add("throughput", {"throughput": {"relevo": 3}}, 1.0)
    real = Report(path, tiny=False)
    assert real.data["throughput"] == {}
    assert real.data["tiny"] is False


@pytest.mark.parametrize("text", ["", "[]", '{"format": 99, "throughput": {"relevo": 1}}', "{"])
def test_a_report_that_cannot_be_read_is_begun_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    assert report.read(path) == report.empty()


def test_nested_figures_are_joined_and_others_replaced() -> None:
    assert report.merged({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}, "b": {"z": 4}}) == {
        "a": {"x": 1, "y": 3},
        "b": {"z": 4},
    }


def test_each_figure_is_held_against_its_target() -> None:
    rows = {row["what"]: row for row in targets.judged(WHOLE)}
    assert rows["rate to the limit, one broker"]["met"]
    assert not rows["rate to the limit, one broker"]["goal_met"]
    assert not rows["rate with Redis dedup to memory dedup"]["met"]
    assert rows["create to start at 500 jobs/s, p50, one broker, ms"]["met"]
    assert not rows["create to start at 500 jobs/s, p99, one broker, ms"]["met"]
    assert "idle cluster of three nodes, % of a core" not in rows  # not measured
    shown = targets.table(list(rows.values()))
    assert shown.count("MISSED") == sum(not row["met"] for row in rows.values()) > 0


def test_what_was_not_measured_is_no_figure() -> None:
    assert targets.value_at({"a": {"b": "text"}}, ("a", "b")) is None
    assert targets.value_at({"a": {"b": True}}, ("a", "b")) is None
    assert targets.value_at({"a": 1}, ("a", "b")) is None
    assert targets.value_at({"a": {"b": 2}}, ("a", "b")) == 2.0


def test_the_picture_shows_what_is_there_and_nothing_else() -> None:
    shown = page({**report.empty(), **WHOLE, "machine": {"processor": "<chip> & co", "cores": 2}})
    assert "&lt;chip&gt; &amp; co" in shown
    assert "9,000 jobs/s" in shown
    assert "celery, redis" in shown
    assert "dramatiq" not in shown
    assert "<script" not in shown
    assert "http" not in shown


def test_the_picture_shows_what_a_job_costs_beside_others() -> None:
    shown = page({**report.empty(), "core": {"growth_us": {"timers": {"1000": 50.5, "100000": 51.25}}}})
    assert "1,000 scheduled jobs" in shown
    assert "51.25 µs" in shown
    core = {
        "growth_longest_ms": {"leases": {"1000": 7.5}},
        "growth_bytes_each": {"finished": 210, "timers": None},
    }
    shown = page({**report.empty(), "core": core})
    assert "7.5 ms" in shown
    assert "210 bytes" in shown


def test_a_picture_of_nothing_says_so() -> None:
    assert "Nothing was measured" in page(report.empty())
    assert "mean nothing" in page({**report.empty(), "tiny": True})


def test_a_loop_that_keeps_no_state_is_no_queue_to_be_held_against() -> None:
    """The target is missed or met by what does the same task; the loop's ratio stands beside it."""
    found = figures_of({"relevo": [90.0], "dramatiq_redis": [30.0], "plain_aiokafka": [300.0]}, {})
    assert (found["to_fastest_queue"], found["to_bare_loop"]) == (3.0, 0.3)
    assert "to_bare_loop" not in str(targets.TARGETS)
    alone = figures_of({"relevo": [90.0], "plain_aiokafka": [300.0]}, {})
    assert "to_fastest_queue" not in alone


def test_the_mixed_log_is_sound() -> None:
    """A node would refuse it, after a quarter of an hour of other measurements."""
    check = LogCheck("mixed.log")
    kinds = Counter[str]()
    machine = PartitionMachine(Rules(partition=0, partitions=1), FixedChannels({"noop": 1}))
    for offset, event in enumerate(mixed(1_200, 1_800_000_000_000)):
        check.take(0, offset, encode(event))
        machine.replay([Incoming(offset, b"", encode(event))])
        kinds[type(event).__name__] += 1
    assert check.sound, check.faults
    assert kinds == {"LeaderElected": 1, "JobCreated": 1_200, "JobActivated": 1_200, "JobCompleted": 1_200}
    assert machine.count == 0
