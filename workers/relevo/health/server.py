"""A small HTTP server for probes and scrapes: short answers, in a thread of its own, until it is closed.

Whoever connects has a few seconds and a few kilobytes, and there is room for few at once, so a client that is
slow, or means harm, holds up nobody for long.
"""

from __future__ import annotations

import asyncio
import errno
import http
import ipaddress
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from relevo.errors import ConfigurationError

_log: Final = logging.getLogger("relevo.worker")

REQUEST_BYTES_MAX: Final = 8_192
CONNECTIONS_MAX: Final = 32
DEADLINE_S: Final = 5.0
"""For a connection as a whole, from its acceptance to its last byte."""
_CLOSE_S: Final = 5.0


class Answer(NamedTuple):
    """What a path answers.

    Attributes:
        status: HTTP status.
        body: The content.
        content_type: Its type.
    """

    status: int
    body: bytes
    content_type: str = "application/json"


Route = Callable[[], Awaitable[Answer]]


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``; a port alone, or ``:port``, means loopback.

    Raises:
        ConfigurationError: It is something else.
    """
    host, _, port = text.strip().rpartition(":")
    host = host.strip()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigurationError(f"http={text!r}: an IPv6 address goes in brackets, such as [::1]:9101")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigurationError(f"http={text!r}: it must be HOST:PORT, such as 127.0.0.1:9101")
    return host or "127.0.0.1", int(port)


class HealthServer:
    """Serves a few paths. It listens from the start on, and answers once `start` was called.

    Args:
        address: ``host:port``; port 0: any that is free.
        routes: What each path answers.

    Raises:
        ConfigurationError: The address can't be right, or can't be had.
    """

    def __init__(self, address: str, routes: Mapping[str, Route]) -> None:
        host, port = parse_address(address)
        self._routes = dict(routes)
        self._socket = _listen(host, port)
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="relevo-http", daemon=True)
        bound, at = self._socket.getsockname()[:2]
        #: Where it listens, with the port that was chosen.
        self.address = f"[{bound}]:{at}" if ":" in bound else f"{bound}:{at}"

    def start(self) -> None:
        """Answer, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """End at once. Twice does no harm."""
        if self._thread.ident is None:
            self._socket.close()
            if not self._loop.is_closed():
                self._loop.close()
        elif self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(_CLOSE_S)

    # The thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            _log.exception("health and metrics are no longer served at %s", self.address)
        finally:
            self._socket.close()
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=REQUEST_BYTES_MAX)
        try:
            await self._end.wait()
        finally:
            # Accept nothing more; what was accepted a moment ago becomes a connection while the server is
            # still open, and only a connection can be closed.
            self._loop.remove_reader(self._socket.fileno())
            await _let_go_on()
            server.close()
            others = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others, timeout=_CLOSE_S / 2)
            await _let_go_on()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(DEADLINE_S):
                    await self._converse(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # too slow, or gone
        finally:
            self._connections -= 1
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with_body = True
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            answer = _told(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large")
        else:
            method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
            target, _, protocol = rest.partition(b" ")
            with_body = method != b"HEAD"
            answer = await self._answer(method, target.partition(b"?")[0], protocol)
        status = http.HTTPStatus(answer.status)
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if status is http.HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        writer.write("\r\n".join([*lines, "", ""]).encode() + (answer.body if with_body else b""))
        await writer.drain()
        # Until the last byte is with the client: an abort would throw away what is still here.
        writer.write_eof()
        while await reader.read(REQUEST_BYTES_MAX):
            pass

    async def _answer(self, method: bytes, path: bytes, protocol: bytes) -> Answer:
        if not protocol.startswith(b"HTTP/1."):
            return _told(http.HTTPStatus.BAD_REQUEST, "this is no HTTP/1 request")
        if method not in (b"GET", b"HEAD"):
            return _told(http.HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served")
        route = self._routes.get(path.decode("latin-1"))
        if route is None:
            return _told(http.HTTPStatus.NOT_FOUND, f"served are {', '.join(sorted(self._routes))}")
        try:
            return await route()
        except Exception as error:
            _log.exception("%s failed", path.decode("latin-1"))
            return _told(http.HTTPStatus.INTERNAL_SERVER_ERROR, f"it failed: {type(error).__name__}")


async def _let_go_on() -> None:
    """Let callbacks run that wait for their turn of the loop, and those that they ask for in turn."""
    for _ in range(10):
        await asyncio.sleep(0)


def _told(status: http.HTTPStatus, text: str) -> Answer:
    return Answer(status.value, f"{text}\n".encode(), "text/plain; charset=utf-8")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(place[:2], family=family, backlog=CONNECTIONS_MAX)
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why = "the port is in use; choose another one"
        elif error.errno == errno.EACCES:
            why = "this user may not listen there; choose a port above 1023"
        raise ConfigurationError(f"health and metrics can't be served at {host}:{port}: {why}") from error
    if not ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback:
        _log.info("health and metrics are served to the network, without a password, at port %d", port)
    return listening


__all__ = ["Answer", "HealthServer", "Route", "parse_address"]
