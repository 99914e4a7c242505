"""A TCP proxy on loopback that misbehaves on command: the network between one process and one server.

ZooKeeper clients stay on the address they were given. A Kafka broker tells its clients where to find it, so a
proxy stays between the two only where the broker has a listener for it and tells the proxy's address there.
"""

from __future__ import annotations

import collections
import contextlib
import queue
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Self

_LOOPBACK: Final = "127.0.0.1"
_CHUNK = 65_536
_PENDING_MAX = 1_048_576
_CONNECTIONS_MAX = 512
_PORT_TRIES = 5
_COMMAND_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 2.0
_LOOK_AROUND_S = 0.5


class _Flow:
    """One direction of one connection: what was read from `source` and is not yet written to `sink`."""

    def __init__(self, source: socket.socket, sink: socket.socket, *, replies: bool) -> None:
        self.source, self.sink, self.replies = source, sink, replies
        self.pending: collections.deque[tuple[float, bytes]] = collections.deque()
        self.size = 0
        self.ended = False  # the source will send nothing more

    def events(self, now: float) -> tuple[bool, bool]:
        """Whether to read from the source, and whether to write to the sink."""
        due = bool(self.pending) and self.pending[0][0] <= now
        return not self.ended and self.size < _PENDING_MAX, due


class TcpProxy:
    """Forwards connections to a server until told otherwise. A context manager; runs in a thread of its own.

    A command has taken effect when its method returns. At most 512 connections are held, and a megabyte for
    each direction of each; more wait outside.

    Args:
        target: The server, ``host:port``; None: `aim` says so later, and until then connections are closed.
    """

    def __init__(self, target: str | None = None) -> None:
        self._target = _split(target) if target is not None else None
        self._port = 0
        self._commands: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._listener: socket.socket | None = None
        self._flows: list[_Flow] = []
        self._cut = self._drop_replies = self._closed = False
        self._delay_s = 0.0
        self._thread = threading.Thread(target=self._run, name="relevo-proxy", daemon=True)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Takes a free port, listens there and starts the thread.

        Raises:
            OSError: No port could be listened on.
        """
        from relevo_engine.local.ports import free_ports

        for attempt in range(1, _PORT_TRIES + 1):
            self._port = free_ports(1)[0]
            try:
                self._listen()
                break
            except OSError:  # somebody was quicker
                if attempt == _PORT_TRIES:
                    raise
        self._thread.start()

    @property
    def address(self) -> str:
        """Where clients connect, ``host:port``; known once it is open."""
        return f"{_LOOPBACK}:{self._port}"

    @property
    def connections(self) -> int:
        """How many connections are open through it."""
        return len(self._flows) // 2

    def aim(self, target: str) -> None:
        """Sends connections made from now on to this server, ``host:port``."""
        address = _split(target)
        self._do(lambda: setattr(self, "_target", address))

    def cut(self) -> None:
        """As a network that drops everything: sockets stay open, nothing arrives. `heal` delivers it."""
        self._do(lambda: setattr(self, "_cut", True))

    def refuse(self) -> None:
        """As a server that died: open connections are reset, new ones refused."""
        self._do(self._refuse)

    def heal(self) -> None:
        """Ends every fault: cut, refusal, delay and swallowed replies."""
        self._do(self._heal)

    def delay(self, seconds: float) -> None:
        """Delivers what arrives from now on that much later, in each direction."""
        self._do(lambda: setattr(self, "_delay_s", seconds))

    def drop_replies(self, drop: bool) -> None:
        """Throws away what the server sends, while requests still reach it: nobody hears the outcome."""
        self._do(lambda: setattr(self, "_drop_replies", drop))

    def close(self) -> None:
        """Ends all connections and the thread. Twice does no harm."""
        if self._closed:
            return
        if self._thread.is_alive():
            self._do(lambda: setattr(self, "_closed", True))
            self._thread.join(_COMMAND_TIMEOUT_S)
        self._closed = True
        self._refuse()
        self._wake_in.close()
        self._wake_out.close()

    def _do(self, command: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._commands.put((command, done))
        self._wake_out.send(b"!")
        done.result(_COMMAND_TIMEOUT_S)

    def _listen(self) -> None:
        listener = socket.create_server((_LOOPBACK, self._port), backlog=64)
        listener.setblocking(False)
        self._listener = listener

    def _refuse(self) -> None:
        for flow in self._flows:
            # Without lingering a close is a reset: the peer notices at once, as when a process dies.
            flow.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            flow.source.close()
        self._flows.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _heal(self) -> None:
        self._cut = self._drop_replies = False
        self._delay_s = 0.0
        if self._listener is None:
            self._listen()

    def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(BlockingIOError):
                self._wake_in.recv(_CHUNK)
            while not self._commands.empty():
                command, done = self._commands.get()
                try:
                    command()
                except OSError as error:
                    done.set_exception(error)
                else:
                    done.set_result(None)
            if not self._closed:
                self._forward()

    def _forward(self) -> None:
        """Waits for something to do and does it."""
        now = time.monotonic()
        wanted: dict[socket.socket, int] = {self._wake_in: selectors.EVENT_READ}
        wait_s = _LOOK_AROUND_S
        if not self._cut:
            if self._listener is not None and self.connections < _CONNECTIONS_MAX:
                wanted[self._listener] = selectors.EVENT_READ
            for flow in self._flows:
                read, write = flow.events(now)
                if read:
                    wanted[flow.source] = wanted.get(flow.source, 0) | selectors.EVENT_READ
                if write:
                    wanted[flow.sink] = wanted.get(flow.sink, 0) | selectors.EVENT_WRITE
                elif flow.pending:
                    wait_s = min(wait_s, flow.pending[0][0] - now)
        with selectors.DefaultSelector() as selector:
            for waiting, mask in wanted.items():
                selector.register(waiting, mask)
            ready = {key.fileobj: mask for key, mask in selector.select(max(0.0, wait_s))}
        if self._wake_in in ready:
            return  # a command first: it may be a cut
        if self._listener in ready:
            self._accept()
        for flow in list(self._flows):
            if flow in self._flows:
                self._pump(flow, ready.get(flow.source, 0), ready.get(flow.sink, 0))

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # gone again already
        if self._target is None:
            client.close()
            return
        try:
            server = socket.create_connection(self._target, timeout=_CONNECT_TIMEOUT_S)
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._flows += [_Flow(client, server, replies=False), _Flow(server, client, replies=True)]

    def _pump(self, flow: _Flow, source_ready: int, sink_ready: int) -> None:
        try:
            if source_ready & selectors.EVENT_READ and not flow.ended and flow.size < _PENDING_MAX:
                self._read(flow)
            if sink_ready & selectors.EVENT_WRITE and flow.pending:
                due, data = flow.pending.popleft()
                sent = flow.sink.send(data)
                flow.size -= sent
                if sent < len(data):
                    flow.pending.appendleft((due, data[sent:]))
            if flow.ended and not flow.pending:
                self._end(flow)
        except BlockingIOError:
            return
        except OSError:
            self._end(flow)

    def _read(self, flow: _Flow) -> None:
        data = flow.source.recv(_CHUNK)
        flow.ended = not data
        if data and not (flow.replies and self._drop_replies):
            flow.pending.append((time.monotonic() + self._delay_s, data))
            flow.size += len(data)

    def _end(self, flow: _Flow) -> None:
        """Closes both sides: no client here goes on with half a connection."""
        for one in (flow.source, flow.sink):
            one.close()
        self._flows = [other for other in self._flows if flow.source not in (other.source, other.sink)]


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
