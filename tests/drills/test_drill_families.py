"""One repeat of each family of drills on one cluster: what is measured at length must at least run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from relevo.cli.drill_table import lines_of
from relevo.testing import DrillCluster
from relevo.testing.drills.catalog import SOAK
from relevo.testing.drills.session import Session
from relevo.testing.drills.settings import JOB_TYPE, DrillSettings
from tests.drills.test_drill_command import ENTRY

pytestmark = pytest.mark.timeout(600)

# Three brokers take minutes on two cores, so that only a run that asks for them has them.
BROKERS = int(os.environ.get("RELEVO_TEST_BROKERS", "1"))
DRILLS = (
    "leader-freeze", "zookeeper-cut", "zookeeper-restart", "broker-restart", "worker-freeze",
    "rolling-restart",
)  # fmt: skip
SETTINGS = DrillSettings(
    repeat=1, nodes=2, partitions=2, brokers=BROKERS, rate=50.0, warm_up_s=0.0, duration_s=20.0
)


class QuickSession(Session):
    """Its servers are quick to start, and its nodes give back at once: nothing is measured."""

    def _cluster(self, folder: Path) -> DrillCluster:
        wanted = self.settings
        return DrillCluster(
            wanted.nodes, wanted.partitions, wanted.brokers, wanted.zookeepers, name="families",
            types=[JOB_TYPE], settings={"give_back_after_s": 0.5}, home=folder / "cluster",
        )  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The report of all of them as it would be read from its file, and what is printed of it."""
    folder = tmp_path_factory.mktemp("families")
    session = QuickSession(replace(SETTINGS, keep_logs=folder), print, lambda _session: None)
    session.run([*DRILLS, SOAK, *(["broker-kill"] if BROKERS == 3 else [])])
    session.report.write(folder / "report.json")
    return orjson.loads((folder / "report.json").read_bytes()), "\n".join(lines_of(session.report))


def test_every_family_holds(report: tuple[dict[str, Any], str]) -> None:
    """A drill that nobody runs until the day of the release breaks unseen."""
    whole, printed = report
    assert whole["skipped"] == {}
    assert whole["held"] is True, printed
    assert {run["drill"] for run in whole["runs"]} >= {*DRILLS, SOAK}
    for run in whole["runs"]:
        assert run.keys() >= ENTRY
        assert (run["lost"], run["verify_ok"]) == (0, True)
        assert run["jobs"] > 0
        assert run["effects_repeated"] == run["effects_repeated_in_flight"]
        assert run["max_gap_ms"] > 0
    assert whole["summary"][SOAK]["effects_repeated_otherwise_per_million_jobs"] == 0
    assert "in the act, 0 otherwise" in printed


def test_jobs_were_under_way_when_something_was_hurt(report: tuple[dict[str, Any], str]) -> None:
    """That none of them was repeated says nothing where there was none."""
    runs = {run["drill"]: run for run in report[0]["runs"]}
    for name in ("leader-freeze", "zookeeper-cut", "rolling-restart"):
        assert runs[name]["samples"], "somebody took over"
        assert runs[name]["counts"]["leases_across_leaders"] > 0, "jobs ran across the loss of a leader"
    for name in ("zookeeper-restart", "broker-restart"):
        assert runs[name]["counts"]["leases_at_a_fault"] > 0
    assert runs["broker-restart"]["extra"]["broker_gap_ms"] > 0
    assert runs["worker-freeze"]["extra"]["partitions_taken_up_ms"] > 0


def test_calls_went_on_through_a_rolling_restart(report: tuple[dict[str, Any], str]) -> None:
    (run,) = (each for each in report[0]["runs"] if each["drill"] == "rolling-restart")
    assert run["counts"]["calls"] > 0
    assert run["counts"]["calls_failed"] == 0
    assert min(run["extra"]["slowest_create_ms"], run["extra"]["slowest_read_ms"]) > 0
    assert "slowest calls, until they had their answer: create" in report[1]
