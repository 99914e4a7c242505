"""The demo as a user runs it, and its log read with nothing of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from relevo_engine.local.cluster import LocalCluster
from tests.support.load import Load

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(300)


def test_the_demo_loses_nothing_and_says_so(tmp_path: Path) -> None:
    """The demo's promise: exit code 0, a moved partition, no lost job, a sound log."""
    path = tmp_path / "report.json"
    command = [sys.executable, str(ROOT / "examples/demo/run.py"), "--jobs", "300", "--report", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(path.read_text())
    assert report["jobs_created"] == report["jobs_completed"] == 300
    assert report["jobs_lost"] == 0
    assert report["effects_unique"] == 300
    assert report["partitions_moved"] >= 1
    assert report["takeover_ms"] > 0
    assert report["log_contiguous"] is True
    assert report["epochs_rising"] is True


def test_bad_lines_are_told_by_number_and_the_good_ones_still_run(tmp_path: Path) -> None:
    """A file with nothing but bad lines is refused with what is wrong with each, and no traceback."""
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"type": 5}\nnot json\n{"variables": {}}\n')
    command = [sys.executable, str(ROOT / "examples/demo/run.py"), "--input", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    for number in (1, 2, 3):
        assert f"line {number}:" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_log_is_read_with_nothing_of_ours(cluster: LocalCluster, load: Load) -> None:
    """A reader with only confluent-kafka, fastavro and the schema files sees every event."""
    log = load.finish()
    script = ROOT / "examples/read_job_log.py"
    source = script.read_text()
    assert "relevo_" not in source.replace("relevo_schemas/avro", "")
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    command = [sys.executable, str(script), cluster.kafka, cluster.name]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("JobCompleted") == len(log.completed())
