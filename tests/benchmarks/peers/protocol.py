"""What a peer is asked, in lines of JSON: run so many no-op jobs, and say when they began and ended.

A peer's file is a program, ``PYTHONPATH=peers python -P PEER.py SETTINGS``. It starts its workers by the
command that its own documentation gives, and ends them when its standard input ends. It imports this file and
nothing else of this repository, since it runs where Relevo isn't installed.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

READY_S = 60.0
RUN_S = 600.0


class Peer(abc.ABC):
    """One queue with its workers.

    Args:
        settings: ``url`` of its server, ``workers`` (processes), ``concurrency`` in each where it can be
            chosen, ``folder`` for logs, ``payload`` of each job.
    """

    poll_s = 0.02
    """How often it is asked whether all jobs are done."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.url: str = settings["url"]
        self.workers: int = settings["workers"]
        self.concurrency: int = settings["concurrency"]
        self.payload: dict[str, Any] = settings["payload"]
        self.folder = Path(settings["folder"])
        self._processes: list[subprocess.Popen[bytes]] = []

    @abc.abstractmethod
    def prepare(self) -> None:
        """Connect, and make what the server needs, such as tables or topics."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start the workers; see `spawn`."""

    @abc.abstractmethod
    def enqueue(self, jobs: int) -> None:
        """Create so many jobs from this one client, as its documentation says for many."""

    @abc.abstractmethod
    def finished(self) -> int:
        """How many jobs have been done in all, acknowledged as late as the peer can."""

    def ended(self, seen_at: float) -> float:
        """When the last job was done, in seconds since the Unix epoch; ``seen_at``: when it was noticed."""
        return seen_at

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back connections."""

    def spawn(self, *command: str, **variables: str) -> None:
        """A worker process of the peer's own, in a group with all it starts."""
        with (self.folder / f"{Path(sys.argv[0]).stem}-worker.log").open("ab") as log:
            environment = {**os.environ, "BENCH_URL": self.url, **variables}
            environment["PYTHONPATH"] = str(Path(__file__).parent)
            environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=environment, cwd=self.folder,
            )  # fmt: skip
        self._processes.append(process)

    def check(self) -> None:
        """Raises RuntimeError where a worker has ended."""
        for each in self._processes:
            if each.poll() is not None:
                raise RuntimeError(f"a worker ended with {each.returncode}")

    def stop(self) -> None:
        """End the workers."""
        for each in self._processes:
            each.terminate()
        for each in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait(5)


def say(**answer: Any) -> None:
    """One line for the benchmark."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def await_all(peer: Peer, wanted: int, timeout_s: float) -> float:
    """When ``wanted`` jobs were seen to be done."""
    deadline = time.monotonic() + timeout_s
    while peer.finished() < wanted:
        peer.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{peer.finished()} of {wanted} jobs are done after {timeout_s:g} s")
        time.sleep(peer.poll_s)
    return time.time()


def serve(make: Callable[[dict[str, Any]], Peer], arguments: Sequence[str]) -> None:
    """Answer ``{"jobs": n}`` with ``{"began": …, "ended": …}`` until the input ends."""
    peer = make(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        peer.prepare()
        peer.start()
        peer.enqueue(1)
        await_all(peer, 1, READY_S)
        total = 1
        say(ready=True)
        for line in sys.stdin:
            jobs = json.loads(line)["jobs"]
            began = time.time()
            peer.enqueue(jobs)
            total += jobs
            say(jobs=jobs, began=began, ended=peer.ended(await_all(peer, total, RUN_S)))
    finally:
        peer.stop()
        peer.close()
