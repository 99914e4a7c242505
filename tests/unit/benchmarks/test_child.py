"""The measuring processes end with whoever started them, and their failure is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from relevo.testing.bench.child import Child, ChildError, wait_for

ECHO = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    print("words of a library", flush=True)
    print(json.dumps({"answer": json.loads(line)["n"] + 1}), flush=True)
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print('{"child": %d}' % child.pid, flush=True)
time.sleep(600)
"""


def test_orders_are_answered_in_order(tmp_path: Path) -> None:
    with Child("echo", (sys.executable, "-c", ECHO), tmp_path) as child:
        assert child.answer("ready", 30)["ready"] is True
        for n in range(3):
            child.order(n=n)
            assert child.answer("answer", 30) == {"answer": n + 1}
        assert child.told == {"ready": True, "answer": 3}
    with pytest.raises(ChildError, match="exit code 0"):
        child.check()


@pytest.mark.parametrize("given", [True, False])
def test_it_hears_nothing_of_where_the_users_own_commands_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """A load that was meant for a throw-away cluster would go to the one that the shell names."""
    code = "import json, os; print(json.dumps({'names': sorted(os.environ)}), flush=True)"
    for name in ("RELEVO_KAFKA", "relevo_cluster", "FOR_THE_CHILD"):
        monkeypatch.setenv(name, "prod:9092")
    variables = dict(os.environ) if given else None
    with Child("curious", (sys.executable, "-c", code), tmp_path, variables) as child:
        found = child.answer("names", 30)["names"]
    assert "FOR_THE_CHILD" in found
    assert not [name for name in found if name.upper().startswith("RELEVO_")]


def test_one_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    """A benchmark that waits for a process that is gone hangs until somebody looks."""
    code = "import sys; sys.exit('no such broker')"
    with Child("broken", (sys.executable, "-c", code), tmp_path) as child:
        with pytest.raises(ChildError, match="no such broker"):
            child.answer("ready", 30)
        with pytest.raises(ChildError, match="exit code 1"):
            wait_for(lambda: False, "it works", [child], 30)


def test_one_that_says_nothing_is_told(tmp_path: Path) -> None:
    with (
        Child("silent", (sys.executable, "-c", "input()"), tmp_path) as child,
        pytest.raises(ChildError, match=r"didn't tell 'ready' in 0\.1 s"),
    ):
        child.answer("ready", 0.1)


def test_one_that_does_not_want_to_end_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """Workers of an earlier run would take part in the next one."""
    child = Child("stubborn", (sys.executable, "-c", STUBBORN), tmp_path)
    grandchild = child.answer("child", 30)["child"]
    child.stop(grace_s=0.2)
    wait_for(lambda: not _runs(grandchild), "it has ended", (), 30)
    assert not _runs(child.pid)
    child.stop()


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return not Path("/proc/self").is_dir()
    return state not in "ZX"
