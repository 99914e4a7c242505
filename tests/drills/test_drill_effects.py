"""`relevo drill effects`: workers die all the time, and a database counts what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drills.test_drill_command import command
from tests.integration.test_dedup_sql import execute

pytestmark = pytest.mark.timeout(300)


def test_every_effect_happens_once_though_workers_are_killed_all_the_time(
    tmp_path: Path, postgres_url: str
) -> None:
    """What the guide promises of a transaction, with real rows and `kill -9`, counted past all of our own."""
    asked = ("effects", "--effects", postgres_url, "--jobs", "1000", "--every", "1.5", "--nodes", "1")
    # Of two options click takes the last.
    arguments = [*command(tmp_path, *asked), "--rate", "250"]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (run,) = json.loads((tmp_path / "report.json").read_text())["runs"]
    counts = run["counts"]
    assert counts["kills"] >= 3
    assert counts["redelivered"] > 0, "a kill left something to do again"
    assert (run["jobs"], run["lost"], counts["effects"]) == (1_000, 0, 1_000)
    assert (counts["missing"], counts["repeated"]) == (0, 0)
    assert "0 missing, 0 repeated" in ended.stdout
    told = ended.stdout + ended.stderr + (tmp_path / "report.json").read_text()
    assert "kept-out-of-sight" not in told, "the password is nobody's business"
    left = execute(postgres_url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert left == [], "what held leaves nothing behind"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("effects",), "--effects"),
        (("worker-kill", "--effects", "redis://localhost:1"), "--effects"),
        (("effects", "--effects", "mysql://user:kept-out-of-sight@h/db"), "postgresql://"),
        (("effects", "--effects", "redis://:kept-out-of-sight@127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_a_place_that_there_is_not_is_told_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    ended = subprocess.run(
        command(tmp_path, *arguments), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "kept-out-of-sight" not in ended.stderr + ended.stdout
    assert "starting" not in ended.stderr, "no broker was needed to see that"


def test_it_is_in_the_help() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "relevo", "drill", "--help"], capture_output=True, text=True, check=True
    )
    assert "--effects" in told.stdout
    assert "--jobs" in told.stdout
