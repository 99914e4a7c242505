"""Starts, freezes, thaws and kills a `counter_node`, and reads what it tells."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any, Self

from tests.support.waiting import wait_until


class CounterProcess:
    """A context manager; kills the process at the end."""

    def __init__(self, **settings: Any) -> None:
        self.told: list[dict[str, Any]] = []
        command = [sys.executable, "-m", "tests.support.counter_node", json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)
        self._reader.join(30)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.told.append(json.loads(line))

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def roles(self) -> list[str]:
        return [entry["role"] for entry in list(self.told) if "role" in entry]

    def heard(self, name: str) -> list[Any]:
        return [entry[name] for entry in list(self.told) if name in entry]

    def wait_role(self, role: str) -> None:
        wait_until(
            lambda: self.roles()[-1:] == [role], f"the process is {role}: {self.told[-5:]}", timeout_s=40
        )
