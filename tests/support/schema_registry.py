"""A schema registry in memory, over HTTP: the calls that a producer and a decoder of records make."""

from __future__ import annotations

import io
import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

import fastavro


class SchemaRegistryServer:
    """Gives each schema an id, the same for the same text.

    Attributes:
        subjects: Ids by subject.
        asked: Authorization headers that came.
        posted: Paths and bodies that came.
        answer: Status and message to give in place of an id; None: it works.
    """

    def __init__(self) -> None:
        self.subjects: dict[str, int] = {}
        self.schemas: dict[int, str] = {}
        self.asked: list[str | None] = []
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.answer: tuple[int, str] | None = None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                registry.asked.append(self.headers["Authorization"])
                registry.posted.append((self.path, body))
                if registry.answer is not None:
                    status, message = registry.answer
                    self._answer(status, {"error_code": status, "message": message})
                    return
                _, _, subject, last = self.path.partition("?")[0].split("/")
                assert last == "versions"
                self._answer(200, {"id": registry.add(unquote(subject), body["schema"])})

            def do_GET(self) -> None:
                number = self.path.partition("?")[0].removeprefix("/schemas/ids/")
                if number.isdigit() and int(number) in registry.schemas:
                    self._answer(200, {"schema": registry.schemas[int(number)]})
                else:
                    self._answer(404, {"error_code": 40403, "message": "not found"})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: a test has enough output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def address(self) -> str:
        """``127.0.0.1:port``."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self.address}"

    def add(self, subject: str, schema: str) -> int:
        known = {text: number for number, text in self.schemas.items()}
        number = known.get(schema, 70_000 + len(self.schemas))
        self.schemas[number] = schema
        self.subjects[subject] = number
        return number

    def __enter__(self) -> SchemaRegistryServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def decode(url: str, value: bytes) -> tuple[str, dict[str, Any]]:
    """A record in the Confluent wire format, as any tool decodes it: the schema's name, and the fields."""
    magic, number = struct.unpack(">bI", value[:5])
    assert magic == 0
    with urlopen(f"{url}/schemas/ids/{number}") as answer:
        schema = fastavro.parse_schema(json.loads(json.loads(answer.read())["schema"]))
    stream = io.BytesIO(value[5:])
    fields: Any = fastavro.schemaless_reader(stream, schema, None)
    assert not stream.read()
    return str(schema["name"]), fields  # type: ignore[call-overload, index]
