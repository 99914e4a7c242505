"""One node process of a local cluster, under the same keeper as the brokers."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relevo_engine.api.client import ApiClient
from relevo_engine.errors import EngineError
from relevo_engine.local.ports import LOOPBACK
from relevo_engine.local.server import READY_TIMEOUT_S, Server, ServerSpec

_LIVE_S = 2.0


class LocalNode:
    """A `relevo node` process. It keeps its id, its port and its log file over restarts.

    Args:
        node_id: Its name in the cluster.
        number: Counts from 1.
        folder: For its settings and its log.
        port: Of its HTTP API, on loopback.
        settings: What stands in its settings file, by name. It goes by these and the defaults alone,
            whatever ``RELEVO_…`` there is in the environment.
        inherit_fds: See `Server`.

    Attributes:
        config_path: Its settings file.
    """

    def __init__(
        self,
        node_id: str,
        number: int,
        folder: Path,
        port: int,
        settings: Mapping[str, Any],
        inherit_fds: tuple[int, ...] = (),
    ) -> None:
        self.node_id = node_id
        self.api = ApiClient(f"{LOOPBACK}:{port}", timeout_s=_LIVE_S)
        folder.mkdir(parents=True, exist_ok=True)
        config = self.config_path = folder / "node.toml"
        write_settings(config, {**settings, "node_id": node_id, "api_host": LOOPBACK, "api_port": port})
        command = (sys.executable, "-m", "relevo_engine", str(config))
        spec = ServerSpec(node_id, number, command, folder, port, self.api.ready)
        self._server = Server(spec, inherit_fds)

    @property
    def address(self) -> str:
        """``host:port`` of its HTTP API."""
        return self.api.address

    @property
    def log_path(self) -> Path:
        """The file with everything it logged, over all its restarts."""
        return self._server.log_path

    @property
    def running(self) -> bool:
        """Whether its process exists (frozen or not)."""
        return self._server.running

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            LocalError: It isn't running.
        """
        return self._server.pid

    def spawn(self) -> None:
        """Starts the process and returns at once, long before it is ready."""
        self._server.spawn()

    def await_ready(
        self, *, timeout_s: float = READY_TIMEOUT_S, cancel: threading.Event | None = None
    ) -> None:
        """Waits until it is connected and its roles are settled.

        Raises:
            ServerError: It ended, or wasn't ready in time; the message has the end of its log.
        """
        self._server.await_ready(timeout_s=timeout_s, cancel=cancel)

    def await_alive(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until it answers at all, ready or not.

        Raises:
            ServerError: It ended, or didn't answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.api.get("/healthz")
                return
            except EngineError:
                self._server.check()
                if time.monotonic() > deadline:
                    self.await_ready(timeout_s=0)
            time.sleep(0.05)

    def kill(self) -> None:
        """Ends it with ``kill -9`` and returns when it is gone."""
        self._server.kill()

    def freeze(self) -> None:
        """Stops it in its tracks: its sockets stay open, it answers nothing."""
        self._server.freeze()

    def thaw(self) -> None:
        """Lets it go on."""
        self._server.thaw()

    def stop(self) -> None:
        """Ends it in order, or by force when that takes too long."""
        self._server.stop()

    def restart(self, *, wait: bool = True) -> None:
        """Starts it again, ending it in order first if it still runs.

        Raises:
            ServerError: It wasn't ready in time.
        """
        self._server.stop()
        self._server.spawn()
        if wait:
            self.await_ready()

    def check(self) -> None:
        """Does nothing while it runs.

        Raises:
            ServerError: It ended; the message has the end of its log.
        """
        self._server.check()

    def log_tail(self) -> str:
        """The last lines it logged."""
        return self._server.log_tail()


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Writes a settings file that only its owner can read: it may hold passwords."""
    tables = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    lines = [f"{name} = {_toml(value)}" for name, value in settings.items() if name not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_toml(str(key))} = {_toml(value)}" for key, value in table.items())]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _toml(value: object) -> str:
    """JSON's texts, numbers and booleans are TOML's too."""
    return json.dumps(value)
