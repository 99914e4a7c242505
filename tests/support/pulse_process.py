"""A process with a pulse, until its input ends: `python -m tests.support.pulse_process '{"node": …}'`."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any

from relevo_partitions.pulse.pulse import Pulse


def main(settings: dict[str, Any]) -> None:
    pulse = Pulse(
        settings["node"],
        settings["incarnation"],
        host="127.0.0.1",
        port=settings.get("port", 0),
        on_death=lambda node, incarnation, lost_at: None,
    )
    pulse.start()
    told: dict[str, Any] = {"address": pulse.address}
    if settings.get("child"):
        # Everything that may be inherited is.
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
        told["child"] = child.pid
    if "files_max" in settings:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (settings["files_max"], hard))
    ballast = bytearray(b"x" * 4096) * (settings.get("ballast_mib", 0) * 256)
    print(json.dumps(told), flush=True)
    sys.stdin.read()
    del ballast
    pulse.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
