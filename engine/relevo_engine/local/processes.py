"""What the operating system says about a process."""

from __future__ import annotations

import subprocess
from pathlib import Path


def is_frozen(pid: int) -> bool:
    """Whether every thread of the process is stopped, as SIGSTOP leaves it.

    A signal takes effect a little after it was sent: on the other cores threads go on for a moment, long
    enough to answer one more request.
    """
    return _states(pid) <= {"T", "t"}


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended; one that only waits to be collected by its parent has."""
    return bool(_states(pid) - {"Z", "X"})


def _states(pid: int) -> set[str]:
    """One letter per thread, or one for the process where the system tells no more; none if it is gone."""
    threads = Path(f"/proc/{pid}/task")
    if not Path("/proc/self/task").is_dir():
        command = ["ps", "-o", "state=", "-p", str(pid)]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        return {line.strip()[:1] for line in asked.stdout.splitlines() if line.strip()}
    states = set()
    for thread in _listed(threads):
        try:
            # The name in brackets may itself hold brackets and blanks.
            states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has just ended
    return states


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
