"""`relevo drill` as an operator runs it: its report is the proof, so it must be whole and say what was so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo.testing.attached import find_nodes
from relevo_engine.local.cluster import LocalCluster
from tests.support.brokers import Brokers, forget_cluster, unique_cluster_name
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

ENTRY = {
    "drill", "repeat", "detect_ms", "first_accept_ms", "first_activation_ms", "jobs", "lost",
    "effects_repeated", "effects_repeated_in_flight", "max_gap_ms", "verify_ok", "steps",
}  # fmt: skip


@pytest.fixture(scope="module")
def given(brokers: Brokers) -> Iterator[LocalCluster]:
    """A cluster that runs already, of quick servers and of nodes that give back at once.

    One that `relevo drill` starts is made for measuring: its nodes give back after ten seconds, which each
    repeat waits for. The interrupted drill and that of effects start such ones.
    """
    name = unique_cluster_name("given")
    with LocalCluster(
        3,
        4,
        kafka=brokers.kafka,
        zookeeper=brokers.zookeeper,
        name=name,
        settings={"session_timeout_s": 2.0, "give_back_after_s": 0.5},
    ) as running:
        yield running
        for node in find_nodes(brokers.kafka, brokers.zookeeper, name).nodes.values():
            node.kill()  # what a drill has started again is no child of this process
    forget_cluster(brokers, name)


def where(cluster: LocalCluster) -> tuple[str, ...]:
    """How a drill is told of it."""
    return ("--kafka", cluster.kafka, "--zookeeper", cluster.zookeeper, "--cluster", cluster.name)


def command(folder: Path, *arguments: str) -> list[str]:
    report, picture = folder / "report.json", folder / "picture.html"
    where = ["--json", str(report), "--picture", str(picture)]
    return [
        sys.executable,
        "-m",
        "relevo",
        "drill",
        "--warm-up",
        "1",
        *arguments,
        "--rate",
        "50",
        "--seed",
        "1",
        *where,
    ]


def drill(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run one that has to succeed; its report, and what it printed."""
    ended = subprocess.run(
        command(folder, *arguments), capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["held"] is True
    assert {"machine", "settings", "runs", "summary"} <= report.keys()
    assert (folder / "picture.html").read_text().count("<svg") == 2 * len(report["summary"])
    return report, ended.stdout


def test_a_leader_is_killed_twice_and_nothing_is_lost(tmp_path: Path, given: LocalCluster) -> None:
    """The central promise, measured and proven by a command that anybody can run."""
    report, printed = drill(tmp_path, "leader-kill", "--repeat", "2", *where(given))
    assert [run["repeat"] for run in report["runs"]] == [1, 2]
    for run in report["runs"]:
        assert run.keys() >= ENTRY
        assert (run["lost"], run["verify_ok"]) == (0, True)
        assert run["jobs"] > 0
        assert run["samples"], "somebody led something"
        assert 0 < run["first_activation_ms"] <= run["max_gap_ms"] + 5_000
        assert run["effects_repeated"] == run["effects_repeated_in_flight"]
    found = report["summary"]["leader-kill"]
    assert found["repeats"] == 2
    assert found["lost"] == 0
    assert found["samples"] == sum(len(run["samples"]) for run in report["runs"])
    assert found["first_activation_ms"]["count"] == found["samples"]
    assert found["first_activation_ms"]["p50"] <= found["first_activation_ms"]["max"]
    assert "leader-kill" in printed
    assert "everything held" in printed


def test_a_killed_workers_jobs_run_elsewhere(tmp_path: Path, given: LocalCluster) -> None:
    """What a dead worker had begun must not wait for it for ever; a cluster that runs already is as good."""
    report, _ = drill(tmp_path, "worker-kill", "--repeat", "1", *where(given))
    settings = report["settings"]
    assert settings["given_cluster"] is True
    told = [settings[name] for name in ("nodes", "partitions", "brokers", "zookeepers")]
    assert told == [len(given.nodes), given.partitions, len(given.kafka.split(",")), None]
    (run,) = report["runs"]
    assert run["lost"] == 0
    assert run["extra"]["partitions_taken_up_ms"] > 0
    assert run["effects_repeated"] == run["effects_repeated_in_flight"]


def test_what_is_not_possible_is_skipped_with_the_reason(tmp_path: Path) -> None:
    """A drill that is passed over in silence looks like one that was passed."""
    ended = subprocess.run(
        command(tmp_path, "broker-kill", "--nodes", "1"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 1, "nothing was proven"
    assert "needs 3 brokers" in ended.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert "needs 3 brokers" in report["skipped"]["broker-kill"]
    assert report["runs"] == []
    assert report["held"] is False


def test_interrupted_it_leaves_a_report_and_no_process(tmp_path: Path) -> None:
    """A drill that is broken off must neither lose what it measured nor leave brokers behind."""
    log = tmp_path / "log"
    logs = tmp_path / "kept"
    arguments = ("leader-kill", "--repeat", "99", "--nodes", "2", "--keep-logs", str(logs))
    with log.open("w") as file:
        process = subprocess.Popen(command(tmp_path, *arguments), stdout=file, stderr=file)
    try:
        wait_until(
            lambda: re.search(r"leader-kill 1:", log.read_text()) or process.poll() is not None,
            "the first repeat is over",
            timeout_s=200,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 130, log.read_text()
    finally:
        process.kill()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["interrupted"] is True
    assert report["held"] is False
    assert report["runs"][0]["first_activation_ms"] > 0
    assert report["runs"][0]["lost"] is None, "nobody has looked"
    wait_until(lambda: not processes_of(logs), "nothing of it runs any more", timeout_s=60)


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that were started with this folder."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and place.name != str(os.getpid()):
            try:
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "nonsense"),
        (("leader-kill", "--brokers", "2"), "brokers"),
        (("leader-kill", "--kafka", "localhost:9092"), "--zookeeper"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    ended = subprocess.run(
        command(tmp_path, *arguments), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "report.json").exists()
