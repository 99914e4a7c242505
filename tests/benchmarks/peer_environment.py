"""The peers' packages: no dependencies of this project, so they get a virtual environment of their own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
REQUIREMENTS: Final = Path(__file__).parent / "requirements-peers.txt"
FOLDER: Final = REPOSITORY / "build" / "bench-venv"
_INSTALL_S: Final = 600.0


def python_of_peers(say: Callable[[str], None], folder: Path = FOLDER) -> Path:
    """The interpreter that has them; installed first where it isn't there, or is of another lock file.

    Raises:
        LookupError: They can't be installed; the message says why.
    """
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = f"{sys.version}\n{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()}\n"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    say("installing the other queues into build/bench-venv")
    stamp.unlink(missing_ok=True)
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes")
    for command in (
        (sys.executable, "-m", "venv", "--clear", str(folder)),
        (*pip, "--requirement", str(REQUIREMENTS)),
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
        if done.returncode:
            raise LookupError(f"the other queues can't be installed: {done.stderr.strip()[-500:]}")
    stamp.write_text(wanted, encoding="utf-8")
    return python
