"""A process that takes orders and answers in lines of JSON; ended with whoever started it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_LINES_MAX: Final = 100_000
_TAIL: Final = 2_000
_GRACE_S: Final = 15.0


class ChildError(Exception):
    """A process ended, or didn't answer in time; the message has the end of what it wrote."""


class Child:
    """One process in a group of its own: Ctrl-C reaches its starter only, which then ends it.

    It should end when its standard input does. That input is a pipe held by this process, so that it is
    closed even by ``kill -9``.

    Args:
        name: For messages and its log.
        command: To run.
        folder: Where its log goes.
        environment: Its variables; None: this process's. ``RELEVO_…`` are left out: they tell the user's own
            commands where to go, and that may be another cluster.

    Attributes:
        told: The last value of each name in its answers.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.told: dict[str, Any] = {}
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue(_LINES_MAX)
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=without_settings(os.environ if environment is None else environment),
            )
        self._reader = threading.Thread(target=self._read, name=f"bench-{name}", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def order(self, **wanted: Any) -> None:
        """Send one line.

        Raises:
            ChildError: It has ended.
        """
        self.check()
        if self._process.stdin is not None:
            try:
                self._process.stdin.write(json.dumps(wanted) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                self._process.wait(_GRACE_S)
                self.check()

    def answer(self, name: str, timeout_s: float) -> dict[str, Any]:
        """The next answer that tells ``name``.

        Raises:
            ChildError: None came.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=min(0.2, max(0.01, deadline - time.monotonic())))
            except queue.Empty:
                self.check()
                if time.monotonic() > deadline:
                    raise ChildError(
                        f"{self.name} didn't tell {name!r} in {timeout_s:g} s\n{self.tail()}"
                    ) from None
                continue
            if name in line:
                return line

    def check(self) -> None:
        """Does nothing while it runs.

        Raises:
            ChildError: It has ended.
        """
        code = self._process.poll()
        if code is not None:
            raise ChildError(f"{self.name} ended with exit code {code}\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Close its input, and make it end if it doesn't. Twice does no harm."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        for signal_it in (None, self._process.terminate, self._kill):
            if signal_it is not None:
                signal_it()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
                break
        self._kill()  # whatever it left in its group
        self._reader.join(grace_s)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                continue  # not for us: a library's own words
            if isinstance(answer, dict):
                self.told.update(answer)
                if self._lines.full():
                    self._lines.get_nowait()
                self._lines.put(answer)
        self._process.stdout.close()


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables without ``RELEVO_…``, in whatever case."""
    return {name: value for name, value in environment.items() if not name.upper().startswith("RELEVO_")}


def wait_for(
    fact: Callable[[], bool], what: str, children: Sequence[Child], timeout_s: float, every_s: float = 0.02
) -> None:
    """Return as soon as the fact holds.

    Raises:
        ChildError: A process ended, or it doesn't hold in time.
    """
    deadline = time.monotonic() + timeout_s
    while not fact():
        for child in children:
            child.check()
        if time.monotonic() > deadline:
            tails = "\n".join(child.tail() for child in children)
            raise ChildError(f"not so after {timeout_s:g} s: {what}\n{tails}".rstrip())
        time.sleep(every_s)
