"""A network between a Kafka client and its broker that knows requests apart, and treats some of them badly.

It reads just enough of each request to do so: its length and its API key.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from enum import Enum, IntEnum, auto
from typing import Self

from relevo_engine.local.ports import free_ports

_CHUNK = 65_536
_TIMEOUT_S = 10.0


class Api(IntEnum):
    """API keys of requests that a leader lives on."""

    PRODUCE = 0
    FETCH = 1
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


class Fate(Enum):
    """What becomes of a request."""

    PASS = auto()
    HOLD = auto()
    """It, and what follows on its connection, waits in the network until `FrameProxy.release`."""
    HOLD_AND_CUT = auto()
    """The client's connection breaks; the request is still on its way, and arrives with the release."""
    HOLD_AND_CUT_OTHERS = auto()
    """All other connections break; the request is still on its way, and arrives with the release."""
    LOSE = auto()
    """The client's connection breaks, and the request with it."""
    LOSE_REPLY = auto()
    """The request arrives; the client's connection breaks before it hears of the outcome."""


Rule = Callable[[int, bytes], Fate]
"""Decides on a request by its API key and all of its bytes; called on threads of the proxy."""


def commits(frame: bytes) -> bool:
    """Whether an EndTxn request asks for a commit; librdkafka's versions have that as their last byte."""
    (version,) = struct.unpack_from(">h", frame, 6)
    assert version < 3, f"EndTxn version {version} has another form"
    return frame[-1] == 1


class FrameProxy:
    """Passes on whole requests, each as its rule says. A context manager; `aim` comes before clients do."""

    def __init__(self) -> None:
        self.rule: Rule = lambda _api, _frame: Fate.PASS
        self.held = 0
        """Requests that have been held back, in all."""
        self._target = ("", 0)
        self._changed = threading.Condition()
        self._round = 0
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._clients: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", free_ports(1)[0]), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for each in (self._listener, *self._sockets):
                _hang_up(each)
        for thread in list(self._threads):
            thread.join(_TIMEOUT_S)
        for each in (self._listener, *self._sockets):
            each.close()

    def aim(self, target: str) -> None:
        """Send connections made from now on to this broker, ``host:port``."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def heal(self) -> None:
        """Pass on everything, what is held included."""
        self.rule = lambda _api, _frame: Fate.PASS
        self.release()

    def cut(self, but: socket.socket | None = None) -> None:
        """Break the connections of all clients ``but`` one; what is held arrives later all the same."""
        with self._changed:
            for client in self._clients - {but}:
                _hang_up(client)

    def release(self) -> None:
        """Let everything that is held go on its way."""
        with self._changed:
            self._round += 1
            self._changed.notify_all()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="frame-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=_TIMEOUT_S)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._changed:
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets |= {client, server}
                self._clients.add(client)
                if self._closed:
                    _hang_up(client)
            self._spawn(self._upwards, client, server)
            self._spawn(self._downwards, client, server)

    def _upwards(self, client: socket.socket, server: socket.socket) -> None:
        """From the client to the broker, request by request."""
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            while (frame := _read_frame(stream.read)) is not None:
                (api,) = struct.unpack_from(">h", frame, 4)
                fate = self.rule(api, frame)
                if fate in (Fate.LOSE, Fate.HOLD_AND_CUT):
                    _hang_up(client)
                if fate is Fate.HOLD_AND_CUT_OTHERS:
                    self.cut(but=client)
                if fate in (Fate.HOLD, Fate.HOLD_AND_CUT, Fate.HOLD_AND_CUT_OTHERS):
                    self._wait()
                if fate is not Fate.LOSE:
                    if fate is Fate.LOSE_REPLY:
                        with self._changed:
                            self._clients.discard(client)
                    server.sendall(frame)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)  # the broker answers what it has got, and then hangs up

    def _wait(self) -> None:
        with self._changed:
            self.held += 1
            self._changed.notify_all()
            before = self._round
            self._changed.wait_for(lambda: self._round != before or self._closed)

    def _downwards(self, client: socket.socket, server: socket.socket) -> None:
        """From the broker to the client, as it comes."""
        with contextlib.suppress(OSError):
            while data := server.recv(_CHUNK):
                with self._changed:
                    listens = client in self._clients
                if not listens:
                    _hang_up(client)
                else:
                    with contextlib.suppress(OSError):  # it has gone; the broker still gets what is held
                        client.sendall(data)
        with self._changed:
            self._clients.discard(client)
            self._sockets -= {client, server}
        for each in (client, server):
            _hang_up(each)
            each.close()


def _read_frame(read: Callable[[int], bytes]) -> bytes | None:
    """The next request with its length before it; None once the client has hung up."""
    head = read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack(">i", head)
    body = read(length)
    return head + body if len(body) == length else None


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
