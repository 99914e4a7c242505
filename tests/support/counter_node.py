"""One counter host as a process of its own, to be frozen and killed. It tells its roles on standard output.

``python -m tests.support.counter_node '{"kafka": …, "zookeeper": …, "cluster": …, "node": …}'``. With
``freeze_at`` it stops itself (SIGSTOP) the first time its leader comes to that point after SIGUSR1, or at all
with ``armed``. It answers the lines ``read``, ``views`` and ``takeovers`` on standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from typing import Any

from relevo_partitions.host import PartitionHost
from relevo_partitions.observer import Observer
from relevo_partitions.settings import HostSettings
from tests.support.counter_machine import CounterMachine


class Tells(Observer):
    """Writes a line of JSON for each change."""

    def role_changed(self, partition: int, before: str, after: str, reason: str) -> None:
        tell(role=after, reason=reason)

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        tell(fault=kind, detail=detail)


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    given = json.loads(sys.argv[1])
    freeze_at = given.pop("freeze_at", None)
    armed_at_once = given.pop("armed", False)
    frozen = threading.Event()

    def checkpoint(_partition: int, name: str) -> None:
        if name == freeze_at and armed.is_set() and not frozen.is_set():
            frozen.set()
            tell(frozen=name)
            os.kill(os.getpid(), signal.SIGSTOP)

    armed = threading.Event()
    if armed_at_once:
        armed.set()

    def arm(*_: object) -> None:
        armed.set()
        tell(armed=True)

    signal.signal(signal.SIGUSR1, arm)
    settings = HostSettings(**{"address": "", "partitions": 1, "checkpoint": checkpoint, **given})
    host = PartitionHost(settings, lambda number: CounterMachine(number, settings.cluster), Tells())
    host.start(30)
    tell(started=True)
    for line in sys.stdin:
        if line.strip() == "takeovers":
            tell(takeovers=[takeover.as_dict() for takeover in host.takeovers()])
        if line.strip() == "views":
            tell(views=[asdict(view) for view in host.views()])
        if line.strip() == "read":
            try:
                tell(read=host.read(0, lambda machine: machine.total).result(20))
            except Exception as error:
                tell(read=None, error=type(error).__name__)
    tell(stopped=host.stop(10))


if __name__ == "__main__":
    main()
