"""Node processes as a user starts them: `relevo node …`, with its output and exit code at hand."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from tests.support.waiting import wait_until

EXIT_TIMEOUT_S = 60.0


def environment() -> dict[str, str]:
    """This process's, without settings of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}


def relevo(
    *arguments: str,
    stdin: str = "",
    timeout_s: float = EXIT_TIMEOUT_S,
    variables: Mapping[str, str] | None = None,
) -> Ran:
    """Runs the command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "relevo", *arguments],
        input=stdin.encode(),
        capture_output=True,
        timeout=timeout_s,
        env=environment() | dict(variables or {}),
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


class Ran:
    """What a command left."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class NodeProcess:
    """A `relevo node` in the background; ended with the `with` block whatever happens."""

    def __init__(self, *flags: str, **variables: str) -> None:
        self._flags = flags
        self._variables = variables
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "relevo", "node", *self._flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment() | self._variables,
        )
        for name, stream in (("out", self._process.stdout), ("err", self._process.stderr)):
            reader = threading.Thread(target=self._read, args=(name, stream), daemon=True)
            reader.start()
            self._readers.append(reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._running
        if process.poll() is None:
            process.kill()
        process.wait(EXIT_TIMEOUT_S)
        self._drain()

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return "".join(self._lines["out"])

    @property
    def err(self) -> str:
        """Its log so far."""
        return "".join(self._lines["err"])

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._running.pid

    @property
    def address(self) -> str:
        """Of its HTTP API, from the line that says it is ready."""
        return self.out.strip().rpartition("http://")[2]

    def await_ready(self, timeout_s: float = 60.0) -> None:
        """Waits for the line that says so."""

        def ready() -> bool:
            code = self._running.poll()
            assert code is None, f"the node ended with {code}:\n{self.err}"
            return " is ready: " in self.out

        wait_until(ready, "the node says that it is ready", timeout_s=timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._running.send_signal(number)

    def await_exit(self, timeout_s: float = EXIT_TIMEOUT_S) -> int:
        """Its exit code, once it has ended."""
        code = self._running.wait(timeout_s)
        self._drain()
        return code

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def _drain(self) -> None:
        for reader in self._readers:
            reader.join(10)
        for stream in (self._running.stdout, self._running.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read(self, name: str, stream: Iterator[str]) -> None:
        for line in stream:
            self._lines[name].append(line)
