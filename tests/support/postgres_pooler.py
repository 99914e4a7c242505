"""A real PgBouncer before a test's PostgreSQL."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from relevo_engine.local.errors import ServerError
from relevo_engine.local.ports import LOOPBACK, free_ports
from relevo_engine.local.server import Server, ServerSpec
from tests.support.postgres import account, address, answers, unprivileged

_PORT_ATTEMPTS = 5
_MISSING = (
    "The tests through a pooler need pgbouncer, and it is not there. Debian and Ubuntu: apt-get install "
    "pgbouncer; Fedora: dnf install pgbouncer; macOS: brew install pgbouncer."
)
# Any client is let in, as the user that the server knows: who may connect is not what is tested here.
_SETTINGS = """\
[databases]
* = host='{host}' port={server_port} user='{user}' password='{password}'

[pgbouncer]
listen_addr = {loopback}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
"""


@contextmanager
def pooled(url: str, mode: str = "transaction", size: int = 1) -> Iterator[str]:
    """The address of the same database through a PgBouncer of the block's own.

    Args:
        url: The server's own.
        mode: When a connection to the server goes to another client: ``session``, ``transaction`` or
            ``statement``.
        size: How many connections to the server there are.

    Raises:
        LookupError: There is no pgbouncer; the message says what to install.
        ServerError: It did not start; the message has the end of its log.
    """
    program, given = _program(), psycopg.conninfo.conninfo_to_dict(url)
    with tempfile.TemporaryDirectory(prefix="relevo-pgbouncer-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        server = _started(program, folder, {**given, "mode": mode, "size": size})
        try:
            yield address(server.port, str(given["dbname"]))
        finally:
            server.kill()


def _started(program: str, folder: Path, given: dict[str, Any]) -> Server:
    settings = folder / "pgbouncer.ini"
    command = (*unprivileged(), program, "-q", str(settings))
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        port = free_ports(1)[0]
        settings.write_text(_settings(port, given))
        settings.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(settings, account().pw_uid, account().pw_gid)
        server = Server(ServerSpec("pgbouncer-1", 1, command, folder, port, partial(answers, port)))
        try:
            server.start(timeout_s=30)
        except ServerError as error:
            if not error.port_taken or attempt == _PORT_ATTEMPTS:
                raise
        else:
            return server
    raise AssertionError("the last attempt returns or raises")


def _settings(port: int, given: dict[str, Any]) -> str:
    return _SETTINGS.format(
        **{name: given[name] for name in ("host", "user", "password", "mode", "size")},
        server_port=given.get("port") or 5432, loopback=LOOPBACK, port=port,
    )  # fmt: skip


def _program() -> str:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None:
        raise LookupError(_MISSING)
    return found
