"""One server process: start, readiness, and everything a drill does to it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relevo_engine.local import keeper
from relevo_engine.local.errors import LocalError, ServerError, StartCancelledError
from relevo_engine.local.processes import is_frozen

READY_TIMEOUT_S = 90.0
_GRACE_S = 15.0
_KEEPER_TIMEOUT_S = 20.0
_FREEZE_TIMEOUT_S = 10.0
_POLL_S = 0.05
_TAIL_LINES = 25
_LOG_BYTES_MAX = 262_144
_STACK_FRAME = re.compile(r"\s+(at |\.\.\. \d+ (more|common frames))")
_PORT_TAKEN = re.compile(r"Address already in use|BindException|Failed to bind")
_FOR_COMMANDS = "RELEVO_"


@dataclass(frozen=True)
class ServerSpec:
    """What a server is, the same over all its restarts.

    Attributes:
        name: Such as ``kafka-1``; unique in its set.
        number: Counts from 1 within its kind.
        command: The process to run.
        folder: Its settings, log file and data.
        port: Where clients reach it, on loopback.
        ready: Whether it serves clients now; asked again and again, returns within a few seconds, never
            raises.
    """

    name: str
    number: int
    command: tuple[str, ...]
    folder: Path
    port: int
    ready: Callable[[], bool]


class Server:
    """A server under a keeper. Starting it again keeps its port and its data.

    It goes by its command and its files: of this process's environment it gets all but ``RELEVO_…``, which
    tells the user's own commands where to go, and that may be another cluster.
    """

    def __init__(self, spec: ServerSpec, inherit_fds: tuple[int, ...] = ()) -> None:
        """Does not start anything.

        Args:
            spec: What to run.
            inherit_fds: File descriptors that the keeper keeps open as long as the server may run: a lock,
                say.
        """
        self.spec = spec
        self._inherit_fds = inherit_fds
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._pid_fd: int | None = None
        self._log_start = 0

    @property
    def name(self) -> str:
        """Such as ``zookeeper-1``."""
        return self.spec.name

    @property
    def number(self) -> int:
        """Counts from 1 within its kind; for Kafka the broker's id."""
        return self.spec.number

    @property
    def port(self) -> int:
        """The client port on loopback; the same after a restart."""
        return self.spec.port

    @property
    def log_path(self) -> Path:
        """The file with all that the server wrote, over all its restarts."""
        return self.spec.folder / "server.log"

    @property
    def running(self) -> bool:
        """Whether its process exists (frozen or not)."""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pid(self) -> int:
        """The server's own process id (the Java process, not its keeper).

        Raises:
            LocalError: It isn't running.
        """
        if self._pid is None or not self.running:
            raise LocalError(f"{self.name} is not running")
        return self._pid

    @property
    def keeper_pid(self) -> int:
        """The process id of its keeper.

        Raises:
            LocalError: It isn't running.
        """
        if self._keeper is None or not self.running:
            raise LocalError(f"{self.name} is not running")
        return self._keeper.pid

    def start(self, *, timeout_s: float = READY_TIMEOUT_S, cancel: threading.Event | None = None) -> None:
        """Starts it and waits until it serves clients.

        Args:
            timeout_s: The longest wait, in seconds.
            cancel: Set by somebody else to give up early.

        Raises:
            ServerError: It ended or didn't get ready in time. It no longer runs then.
            StartCancelledError: `cancel` was set. It no longer runs then.
        """
        try:
            self.spawn()
            self.await_ready(timeout_s=timeout_s, cancel=cancel)
        except BaseException:
            self.kill()
            raise

    def spawn(self) -> None:
        """Starts the process and returns as soon as that exists, long before it serves clients.

        Raises:
            ServerError: The process could not be created.
            LocalError: It runs already.
        """
        if self.running:
            raise LocalError(f"{self.name} runs already, as process {self._pid}")
        self._forget()
        self.spec.folder.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self._log_start = log.tell()
            # By its path and without site-packages: a keeper must not take longer to start than what it
            # keeps.
            self._keeper = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    keeper.__file__,
                    str(self.log_path),
                    str(_GRACE_S),
                    *self.spec.command,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=_environment(),
                start_new_session=True,
                pass_fds=self._inherit_fds,
            )
        self._pid = self._read_pid(self._keeper)
        if hasattr(os, "pidfd_open"):
            # Signals through it can't hit another process that was given the same number later.
            with contextlib.suppress(OSError):
                self._pid_fd = os.pidfd_open(self._pid)

    def await_ready(
        self, *, timeout_s: float = READY_TIMEOUT_S, cancel: threading.Event | None = None
    ) -> None:
        """Waits until the server, which was spawned before, serves clients.

        Raises:
            ServerError: It ended, or the time is over. It is left as it is.
            StartCancelledError: `cancel` was set.
        """
        cancel = cancel or threading.Event()
        deadline = time.monotonic() + timeout_s
        while not self.spec.ready():
            if not self.running:
                raise self._error(f"ended with {self._exit_text()} before it was ready")
            if time.monotonic() > deadline:
                raise self._error(f"was not ready after {timeout_s:g} s")
            if cancel.wait(_POLL_S):
                raise StartCancelledError(f"the start of {self.name} was given up")

    def stop(self, *, timeout_s: float = _GRACE_S) -> None:
        """Ends it in order (SIGTERM), or by force after the given seconds. Twice does no harm."""
        if self.running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            self._wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """Ends it with ``kill -9`` and returns when it is gone. Twice does no harm."""
        if self.running:
            self._signal(signal.SIGKILL)
            if not self._wait(_KEEPER_TIMEOUT_S) and self._keeper is not None:
                self._keeper.kill()
                self._keeper.wait()
        self._forget()

    def freeze(self) -> None:
        """Stops it in its tracks (SIGSTOP): its sockets stay open, it answers nothing from now on.

        Raises:
            LocalError: It isn't running, or could not be stopped.
        """
        self._signal_running(signal.SIGSTOP)
        deadline = time.monotonic() + _FREEZE_TIMEOUT_S
        while not is_frozen(self.pid):
            if time.monotonic() > deadline:
                raise LocalError(f"{self.name} still runs {_FREEZE_TIMEOUT_S:g} s after SIGSTOP")
            time.sleep(0.001)

    def thaw(self) -> None:
        """Lets a frozen server go on (SIGCONT).

        Raises:
            LocalError: It isn't running.
        """
        self._signal_running(signal.SIGCONT)

    def restart(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Starts it again on the same port and data, ending it in order first if it still runs.

        Raises:
            ServerError: It ended or didn't get ready in time.
        """
        self.stop()
        self.start(timeout_s=timeout_s)

    def log_tail(self) -> str:
        """The last lines that it wrote since its latest start, without the frames of stack traces."""
        return "\n".join(self._log_lines()[-_TAIL_LINES:])

    def _log_lines(self) -> list[str]:
        try:
            with open(self.log_path, "rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _LOG_BYTES_MAX))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if not _STACK_FRAME.match(line)]

    def check(self) -> None:
        """Does nothing while the server runs.

        Raises:
            ServerError: It ended.
        """
        if not self.running:
            raise self._error(f"is not running any more ({self._exit_text()})")

    def _read_pid(self, process: subprocess.Popen[bytes]) -> int:
        line = b""
        if process.stdout is not None and select.select([process.stdout], [], [], _KEEPER_TIMEOUT_S)[0]:
            line = process.stdout.readline()
        if line.startswith(b"pid "):
            return int(line[4:])
        process.kill()
        process.wait()
        raise self._error(
            f"could not be started ({line.decode(errors='replace').strip() or 'no answer from its keeper'})"
        )

    def _exit_text(self) -> str:
        if self._keeper is None or self._keeper.stdout is None:
            return "it was never started, or was stopped"
        line = self._keeper.stdout.readline().decode(errors="replace").strip() if not self.running else ""
        return line.replace("exit", "exit code") if line else "its keeper gone"

    def _error(self, reason: str) -> ServerError:
        port_taken = any(_PORT_TAKEN.search(line) for line in self._log_lines())
        return ServerError(self.name, reason, self.log_path, self.log_tail(), port_taken=port_taken)

    def _signal_running(self, number: signal.Signals) -> None:
        if not self.running:
            raise LocalError(f"{self.name} is not running")
        self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pid_fd is not None:
                signal.pidfd_send_signal(self._pid_fd, number)
            elif self._pid is not None:
                os.kill(self._pid, number)

    def _wait(self, timeout_s: float) -> bool:
        """Waits for the keeper, which ends when the server has."""
        if self._keeper is None:
            return True
        try:
            self._keeper.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _forget(self) -> None:
        if self._keeper is not None:
            for pipe in (self._keeper.stdin, self._keeper.stdout):
                if pipe is not None:
                    pipe.close()
        if self._pid_fd is not None:
            os.close(self._pid_fd)
        self._keeper = self._pid = self._pid_fd = None


def _environment() -> dict[str, str]:
    """This process's, without the settings in it: in whatever case, as a node reads them."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(_FOR_COMMANDS)}
