"""What handlers call: an HTTP service that may know idempotency keys, and a mail server. Both count."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from relevo_engine.local.ports import LOOPBACK


@dataclass
class HttpService:
    """Counts what it did. A request with a known ``Idempotency-Key`` gets the first answer again.

    Attributes:
        url: Its address.
        effects: How often each path had its effect.
        requests: How often each path was called.
        wrong: Requests with a known key and another body, which a payment provider refuses.
    """

    url: str = ""
    effects: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _answers: dict[str, tuple[bytes, dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, path: str, key: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        """Do it, or answer as the first time."""
        with self._lock:
            self.requests[path] += 1
            if json.loads(body).get("card") == "declined":
                return 402, {}
            if key is not None and key in self._answers:
                first, answer = self._answers[key]
                if first != body:
                    self.wrong.append(key)
                    return 409, {}
                return 200, answer
            self.effects[path] += 1
            answer = {"id": f"{path.strip('/')}-{self.effects[path]}"}
            if key is not None:
                self._answers[key] = body, answer
            return 200, answer


@contextmanager
def http_service() -> Iterator[HttpService]:
    """Serves on loopback until the end of the block."""
    service = HttpService()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = service.call(self.path, self.headers["Idempotency-Key"], body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        service.url = f"http://{LOOPBACK}:{server.server_port}"
        with _served(server):
            yield service


@dataclass
class MailServer:
    """What it was given.

    Attributes:
        port: On loopback.
        message_ids: Of each mail, in order.
    """

    port: int = 0
    message_ids: list[str] = field(default_factory=list)


@contextmanager
def mail_server() -> Iterator[MailServer]:
    """Speaks as much SMTP as a client needs to send a mail, until the end of the block."""
    found = MailServer()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 test")
            while line := self.rfile.readline():
                match line[:4].upper():
                    case b"DATA":
                        self._say("354 go on")
                        self._read_mail()
                        self._say("250 taken")
                    case b"QUIT":
                        self._say("221 bye")
                        return
                    case _:
                        self._say("250 ok")

        def _read_mail(self) -> None:
            for line in iter(self.rfile.readline, b".\r\n"):
                if not line:
                    return
                name, _, value = line.decode().partition(":")
                if name.lower() == "message-id":
                    found.message_ids.append(value.strip())

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    with _MailServer((LOOPBACK, 0), Handler) as server:
        found.port = server.server_address[1]
        with _served(server):
            yield found


class _MailServer(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextmanager
def _served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(10)
