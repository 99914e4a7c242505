"""The side of the pulse that is watched: takes connections, says who it is, and keeps still."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from typing import Final

from relevo_partitions.errors import PartitionsError
from relevo_partitions.pulse.wire import Greeting

log: Final = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 512
"""More are closed at once. Those that are there stay: they may be the real ones."""
BACKLOG: Final = 128
PAUSE_S: Final = 0.5
"""After so long accepting is tried again where the process had no file or memory left for a connection."""

_ACCEPTED_AT_ONCE_MAX: Final = 64
# Probes keep the memory of firewalls between nodes alive, and find connections whose other end has vanished
# without a word. The kernel sends them; the process sleeps on.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class PulseUnavailable(PartitionsError):  # noqa: N818 - named for what happened, as the other errors
    """The address for the pulse can't be listened on."""


class PulseListener:
    """Used by the pulse's thread alone, once open.

    Args:
        greeting: Said to whoever connects.
        selector: The ``data`` of its keys is called with the time when something happens.
    """

    def __init__(self, greeting: Greeting, selector: selectors.BaseSelector) -> None:
        self._greeting = greeting.encode()
        self._selector = selector
        self._socket: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._full = False
        self.due: float | None = None
        """When `resume` wants to be called, by the monotonic clock."""

    def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the numeric address and the port.

        Raises:
            PulseUnavailable: The address isn't this machine's, or is in use.
        """
        listener: socket.socket | None = None
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            listener = socket.socket(family, kind, protocol)
            # Connections of an earlier process that linger don't hold the port. SO_REUSEPORT must never be
            # set: two processes at one port would each be taken for the other's death.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and address[0] == "::":
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            if listener is not None:
                listener.close()
            raise PulseUnavailable(
                f"the pulse can't listen on {host}:{port}: {error.strerror or error}. "
                "Give it an address of this machine and a port that is free"
            ) from None
        self._socket = listener
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        name = listener.getsockname()
        return str(name[0]), int(name[1])

    def resume(self, now: float) -> None:
        """Accept again where that had to pause, and the pause is over."""
        if self.due is not None and now >= self.due and self._socket is not None:
            self.due = None
            self._selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Close everything. The listening socket goes first: who then sees the end finds nobody there."""
        if self._socket is not None:
            if self.due is None:
                self._selector.unregister(self._socket)
            self._socket.close()
        self._socket = self.due = None
        for connection in list(self._connections):
            self._drop(connection)

    def _accept(self, _: float) -> None:
        for _ in range(_ACCEPTED_AT_ONCE_MAX):
            if self._socket is None:
                return
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                # The socket stays readable as long as somebody waits: without the pause this would spin.
                log.warning("The pulse can't accept a connection now: %s", error.strerror or error)
                self._selector.unregister(self._socket)
                self.due = time.monotonic() + PAUSE_S
                return
            self._greet(connection)

    def _greet(self, connection: socket.socket) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            connection.close()
            if not self._full:
                self._full = True
                log.warning("The pulse has %d connections and takes no more", CONNECTIONS_MAX)
            return
        self._full = False
        try:
            connection.setblocking(False)
            keep_alive(connection)
            whole = connection.send(self._greeting) == len(self._greeting)
        except OSError:
            whole = False  # gone again already
        if not whole:
            connection.close()
            return
        self._connections.add(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._drop(connection))

    def _drop(self, connection: socket.socket) -> None:
        """The other end has gone, or sent something, which no watcher does; what it sent is not even read."""
        self._connections.discard(connection)
        self._selector.unregister(connection)
        connection.close()


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel find out within about a minute that the other end has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
