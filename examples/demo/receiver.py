"""The outside world of the demo: a web server that writes every request into a SQLite file, duplicates too.

It plays the payment provider, the mail service and the webhook's target. It doesn't refuse a repeated
idempotency key, as a real provider would, because the report is to show how many repeats reach it.
"""

from __future__ import annotations

import argparse
import socket
import sqlite3
import time
from pathlib import Path

from aiohttp import web

SCHEMA = """
CREATE TABLE effects (
    id INTEGER PRIMARY KEY,
    idempotency_key TEXT NOT NULL,
    job_type TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    received_at REAL NOT NULL,
    body BLOB NOT NULL
)
"""


def make_app(database: Path) -> web.Application:
    """The server's application; each request is in ``database`` before it is answered."""
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(SCHEMA)
    connection.commit()

    async def receive(request: web.Request) -> web.Response:
        key = request.headers.get("Idempotency-Key")
        if not key:
            return web.json_response({"error": "the Idempotency-Key header is missing"}, status=400)
        row = (
            key,
            request.match_info["job_type"],
            int(request.headers.get("Job-Attempt", "0")),
            time.time(),
            await request.read(),
        )
        connection.execute(
            "INSERT INTO effects (idempotency_key, job_type, attempt, received_at, body) "
            "VALUES (?, ?, ?, ?, ?)",
            row,
        )
        connection.commit()
        return web.json_response({"received": key})

    async def close(_: web.Application) -> None:
        connection.close()

    app = web.Application(client_max_size=2_000_000)
    app.router.add_post("/effects/{job_type}", receive)
    app.on_cleanup.append(close)
    return app


def listen(port_file: Path) -> socket.socket:
    """A free loopback port, written to ``port_file`` as soon as it takes connections."""
    server = socket.create_server(("127.0.0.1", 0), backlog=512)
    unfinished = port_file.with_suffix(".unfinished")
    unfinished.write_text(str(server.getsockname()[1]))
    unfinished.replace(port_file)
    return server


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", type=Path, required=True, help="SQLite file to make and fill")
    parser.add_argument("--port-file", type=Path, required=True, help="file to write the port to")
    options = parser.parse_args()
    app = make_app(options.database)
    web.run_app(app, sock=listen(options.port_file), print=None)


if __name__ == "__main__":
    main()
