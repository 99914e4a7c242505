"""A real Redis for tests: what the environment names, else a `redis-server` of its own, else a container."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from relevo_engine.local.errors import ServerError
from relevo_engine.local.ports import LOOPBACK, free_ports
from relevo_engine.local.server import Server, ServerSpec

REDIS_VARIABLE = "RELEVO_TEST_REDIS"
_IMAGE = "redis:7-alpine"
_PORT_ATTEMPTS = 5
_MISSING = (
    "The Redis tests need a redis-server on PATH, and there is none, nor a Docker that works. Debian and"
    " Ubuntu: apt-get install redis-server; Fedora: dnf install redis; macOS: brew install redis. Or point"
    f" {REDIS_VARIABLE} at a Redis that runs."
)


class Redis(Protocol):
    """A Redis that a test may hurt. If nobody asked for a durable one, it forgets all when it is killed."""

    @property
    def url(self) -> str:
        """The same after a restart."""

    def kill(self) -> None:
        """Ends it at once."""

    def freeze(self) -> None:
        """Sockets stay open, nothing is answered."""

    def thaw(self) -> None:
        """Ends a freeze."""

    def restart(self) -> None:
        """Starts it again on the same address; returns when it answers."""


class ProcessRedis:
    """A `redis-server` process; ended with the test process, even if that is killed."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self._server.port}/0"

    def kill(self) -> None:
        self._server.kill()

    def freeze(self) -> None:
        self._server.freeze()

    def thaw(self) -> None:
        self._server.thaw()

    def restart(self) -> None:
        self._server.kill()
        self._server.start()


class ContainerRedis:
    """A container with a host port of our choice, so that a restart keeps the address."""

    def __init__(self, container: Any, port: int) -> None:
        self._container, self._port = container, port

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self._port}/0"

    def kill(self) -> None:
        self._container.kill()

    def freeze(self) -> None:
        self._container.pause()

    def thaw(self) -> None:
        self._container.unpause()

    def restart(self) -> None:
        self._container.restart(timeout=0)
        _await(lambda: answers(self._port))


@contextmanager
def own_redis(*, durable: bool = False) -> Iterator[Redis]:
    """Starts an empty Redis and ends it.

    Args:
        durable: Whether it keeps on disk what it is told.

    Raises:
        LookupError: Neither redis-server nor Docker is there; the message says what to install.
        ServerError: It did not start; the message has the end of its log.
    """
    if shutil.which("redis-server"):
        with tempfile.TemporaryDirectory(prefix="relevo-redis-") as folder:
            server = _started(Path(folder), _persistence(durable))
            try:
                yield ProcessRedis(server)
            finally:
                server.kill()
    elif docker_works():
        with _container(_persistence(durable)) as container:
            yield container
    else:
        raise LookupError(_MISSING)


def answers(port: int) -> bool:
    """Whether a Redis on this loopback port answers."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16) == b"+PONG\r\n"
    except OSError:
        return False


def docker_works() -> bool:
    """Whether there is a Docker daemon to talk to."""
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return asked.returncode == 0


def _persistence(durable: bool) -> list[str]:
    return ["--save", "", "--appendonly", "yes" if durable else "no"]


def _started(folder: Path, options: list[str]) -> Server:
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        server = Server(_spec(folder, free_ports(1)[0], options))
        try:
            server.start(timeout_s=30)
        except ServerError as error:
            if not error.port_taken or attempt == _PORT_ATTEMPTS:
                raise
        else:
            return server
    raise AssertionError("the last attempt returns or raises")


def _spec(folder: Path, port: int, options: list[str]) -> ServerSpec:
    command = ["redis-server", "--port", str(port), "--bind", LOOPBACK, "--dir", str(folder), *options]
    return ServerSpec("redis-1", 1, tuple(command), folder, port, lambda: answers(port))


@contextmanager
def _container(options: list[str]) -> Iterator[Redis]:
    from testcontainers.core.container import DockerContainer

    port = free_ports(1)[0]
    container: Any = DockerContainer(_IMAGE).with_command(["redis-server", *options])
    container.ports = {"6379/tcp": (LOOPBACK, port)}  # its own setter would bind every interface
    with container as started:
        _await(lambda: answers(port))
        yield ContainerRedis(started.get_wrapped_container(), port)


def _await(fact: Callable[[], bool], timeout_s: float = 60.0) -> None:
    from tests.support.waiting import wait_until

    wait_until(fact, "Redis answers", timeout_s=timeout_s)


def redis_from_environment() -> str | None:
    """The address of a Redis that runs already, if RELEVO_TEST_REDIS names one."""
    return os.environ.get(REDIS_VARIABLE) or None
