"""py-spy on running processes, where it is installed; its output goes to ``build/profile``."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.benchmarks.knobs import Knobs

FOLDER: Final = Path("build/profile")
_END_S: Final = 60.0


@contextlib.contextmanager
def profiled(pids: Mapping[str, int], knobs: Knobs) -> Iterator[None]:
    """Record these processes meanwhile, which slows them down: such figures are for finding, not telling."""
    program = shutil.which("py-spy")
    if program is None:
        knobs.say("no profile: py-spy is not on PATH (pip install py-spy)")
        yield
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    running = []
    try:
        for name, pid in pids.items():
            out = FOLDER / f"{name}.speedscope.json"
            command = [program, "record", "--pid", str(pid), "--format", "speedscope", "--threads"]
            running.append(
                subprocess.Popen(
                    [*command, "--rate", "200", "--output", str(out)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        yield
    finally:
        for each in running:
            each.send_signal(signal.SIGINT)  # it then writes what it has
        for each in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(_END_S)
            each.kill()
        knobs.say(f"profiles in {FOLDER}; open them at speedscope")
