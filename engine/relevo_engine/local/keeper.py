"""Stands between a server and the process that wants it, and ends the server when that process is gone.

A process that is killed with ``kill -9`` can't clean up after itself. So each server has a keeper for its
parent: a small process in a session of its own (Ctrl-C in the terminal doesn't reach it, so the order of the
shutdown is the starter's) whose standard input is a pipe that the starter holds open. When the pipe closes,
for whatever reason, the keeper asks the server to end (SIGTERM) and, after a bound, makes it (SIGKILL). On
Linux the kernel kills the server if the keeper itself is killed.

    python keeper.py LOG GRACE_S COMMAND...

It writes ``pid N`` to its standard output once the server's process exists and ``exit N`` when that has
ended. It needs nothing but the standard library and can be run by its path, without Relevo being importable.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LOOK_AROUND_S = 0.5


def main(arguments: list[str]) -> int:
    """Runs one server until it ends or its starter is gone."""
    if len(arguments) < 3:
        sys.stderr.write("usage: keeper.py LOG GRACE_S COMMAND...\n")
        return 2
    log_path, grace_s, command = arguments[0], float(arguments[1]), arguments[2:]
    starter = os.getppid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    asked_to_end, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # Handlers that do nothing: their signals only have to interrupt the wait below.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)

    with open(log_path, "ab") as log:
        try:
            server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_tie_to_this_process()
            )
        except OSError as error:
            log.write(f"{command[0]}: {error}\n".encode())
            _report("exit 127")
            return 0
    _report(f"pid {server.pid}")
    _wait_for_end(server, asked_to_end, starter)
    if server.poll() is None:
        _end(server, grace_s)
    _report(f"exit {server.returncode}")
    return 0


def _wait_for_end(server: subprocess.Popen[bytes], wakeups: int, starter: int) -> None:
    """Returns when the server has ended, this process was asked to end, or the starter is gone."""
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin.fileno(), wakeups], [], [], _LOOK_AROUND_S)
        if wakeups in readable and signal.SIGTERM in os.read(wakeups, 64):
            return
        if sys.stdin.fileno() in readable and not os.read(sys.stdin.fileno(), 64):
            return
        # A child that the starter forked may still hold the pipe open.
        if os.getppid() != starter:
            return


def _end(server: subprocess.Popen[bytes], grace_s: float) -> None:
    server.send_signal(signal.SIGTERM)
    server.send_signal(signal.SIGCONT)  # a frozen process would not see the other one
    deadline = time.monotonic() + grace_s
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if server.poll() is None:
        server.kill()
        server.wait()


def _tie_to_this_process() -> Callable[[], None] | None:
    """What the child does before it becomes the server: on Linux, asks to be killed along with its keeper."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    keeper = os.getpid()

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:  # killed before the request was made
            os._exit(1)

    return tie


def _report(line: str) -> None:
    try:
        os.write(sys.stdout.fileno(), f"{line}\n".encode())
    except OSError:
        return  # the starter is gone: nobody wants to know


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
