"""Runs a node that was found and ended, beyond the life of the drill, but not of whoever ran it before.

    python guard.py OWNER < ORDER

ORDER is JSON: the command, its environment, its folder and a log file. It writes the node's process id and
stays until the node has ended. When the process OWNER ends (the `relevo dev` that the node belonged to), it
ends the node; 0: nobody owns it, and this process leaves at once. It needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from typing import Final

GRACE_S: Final = 15.0
_LOOK_AROUND_MS: Final = 200


def main(owner: int) -> int:
    """Starts the node and looks after it."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    owner_fd = os.pidfd_open(owner) if owner else None
    order = json.load(sys.stdin)
    with open(order["log"], "ab") as log:
        node = subprocess.Popen(
            order["command"],
            cwd=order["folder"],
            env=order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    sys.stdout.write(f"{node.pid}\n")
    sys.stdout.flush()
    # Whoever started this reads to the end.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    if owner_fd is None:
        os._exit(0)  # without a look at the node, which goes on
    gone = select.poll()
    gone.register(owner_fd, select.POLLIN)
    while node.poll() is None:
        if gone.poll(_LOOK_AROUND_MS):
            node.send_signal(signal.SIGTERM)
            node.send_signal(signal.SIGCONT)  # a frozen process would not see the other one
            try:
                node.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
