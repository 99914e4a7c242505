"""A worker in a process of its own whose job type is ordered, and a ledger that no store of ours knows of.

Run as ``python -m tests.support.ordered_process`` with a JSON object of `Duty` as its argument.

While a handler is at work it holds a lock of the kernel on a file for its correlation id. The kernel frees it
when the process is gone, however it went, and refuses it to anybody else meanwhile: two at once can't be
missed. What happened is appended to one file, a line each.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import relevo

OVERLAP = "OVERLAP"


@dataclass(frozen=True)
class Duty:
    """What the process is to do.

    Attributes:
        name: Its name in the ledger, and in the consumer group: its successor gets its partitions at once.
        kafka: Bootstrap servers.
        cluster: The cluster's name.
        type: The job type.
        redis: Where its dedup store is.
        folder: Where the ledger is.
        seconds: How long each handler runs.
    """

    name: str
    kafka: str
    cluster: str
    type: str
    redis: str
    folder: str
    seconds: float


def spawn(duty: Duty) -> subprocess.Popen[bytes]:
    """Start one; end it with `Popen.kill` or by a signal."""
    return subprocess.Popen([sys.executable, "-m", __name__, json.dumps(asdict(duty))])


@dataclass(frozen=True)
class Line:
    """One line of the ledger."""

    what: str
    worker: str
    correlation_id: str
    key: str


def ledger(folder: Path) -> list[Line]:
    """What has happened so far, in order."""
    path = folder / "ledger"
    text = path.read_text() if path.exists() else ""
    return [Line(*line.split("\t")) for line in text.splitlines()]


def inside(folder: Path, worker: str) -> set[str]:
    """Keys of the jobs that a worker has begun and not ended."""
    found: set[str] = set()
    for line in ledger(folder):
        if line.worker == worker:
            (found.add if line.what == "enter" else found.discard)(line.key)
    return found


def main(duty: Duty) -> None:
    """Works until a signal."""
    store = relevo.RedisDedupStore(duty.redis, timeout=10, volatile_ok=True)
    options: dict[str, Any] = {"group_instance_id": duty.name}
    app = relevo.WorkerApp(duty.kafka, duty.cluster, dedup=store, **options)
    folder = Path(duty.folder)
    book = os.open(folder / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, job: relevo.Job) -> None:
        os.write(book, f"{what}\t{duty.name}\t{job.correlation_id}\t{job.key}\n".encode())

    @app.job(duty.type, ordered=True, concurrency=8)
    def transfer(job: relevo.Job) -> None:
        with open(folder / f"lock-{job.correlation_id}", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note(OVERLAP, job)
            note("enter", job)
            time.sleep(duty.seconds)
            note("leave", job)

    app.run(drain=20)


if __name__ == "__main__":
    main(Duty(**json.loads(sys.argv[1])))
