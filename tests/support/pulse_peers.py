"""The far end of a pulse connection: a socket that a test plays by hand, and a process of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
from typing import Any, Self

from relevo_engine.local.processes import is_frozen
from relevo_partitions.pulse.wire import Greeting
from tests.support.waiting import wait_until

_LIMIT_S = 20.0


class PlayedPeer:
    """Listens on a loopback port; what happens on each connection is the test's to say."""

    def __init__(self, port: int = 0, backlog: int = 16) -> None:
        self._listener: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.settimeout(_LIMIT_S)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(backlog)
        self.port = int(self._listener.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_listening()
        for connection in self._connections:
            connection.close()

    def accept(self, data: bytes = b"") -> socket.socket:
        """Take the next connection and begin it with ``data``."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        connection.settimeout(_LIMIT_S)
        self._connections.append(connection)
        if data:
            connection.sendall(data)
        return connection

    def greet(self, node: str, incarnation: str) -> socket.socket:
        return self.accept(Greeting(node, incarnation).encode())

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def reset(connection: socket.socket) -> None:
    """Close without an orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def greeting_of(address: str) -> Greeting | None:
    """Who greets at an address; None where it is closed at once or something else is said."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_LIMIT_S) as connection:
        data = b""
        while not data.endswith(b"\n"):
            more = connection.recv(512)
            if not more:
                break
            data += more
    return Greeting.parse(data)


class PulseProcess:
    """A process with a pulse, and nothing else. A context manager; kills it at the end."""

    def __init__(self, node: str, incarnation: str, **settings: Any) -> None:
        self.node, self.incarnation = node, incarnation
        told = json.dumps({"node": node, "incarnation": incarnation, **settings})
        command = [sys.executable, "-m", "tests.support.pulse_process", told]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.told: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.address: str = self.told["address"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Returns when it answers nothing any more."""
        self._process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_frozen(self.pid), "it is frozen")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(30)

    def stop(self) -> None:
        """Let it stop in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
