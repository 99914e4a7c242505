"""A real PostgreSQL for tests: the one the environment names, else a server of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from relevo_engine.local.errors import ServerError
from relevo_engine.local.ports import LOOPBACK, free_ports
from relevo_engine.local.processes import is_frozen
from relevo_engine.local.server import Server, ServerSpec
from tests.support.waiting import wait_until

POSTGRES_VARIABLE = "RELEVO_TEST_POSTGRES"
PASSWORD = "kept-out-of-sight"
_USER = "relevo"
_PORT_ATTEMPTS = 5
_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
# A test server may lose everything in a crash of the machine, never in one of its own.
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",
    "jit": "off",
}
_MISSING = (
    "The SQL tests need PostgreSQL's programs (postgres, initdb), and there are none. Debian and Ubuntu: "
    "apt-get install postgresql; Fedora: dnf install postgresql-server; macOS: brew install postgresql@16. "
    f"Or point {POSTGRES_VARIABLE} at a database that tests may write to."
)


class Postgres:
    """A server that a test may hurt; ended with the test process, even if that is killed."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def port(self) -> int:
        """On loopback."""
        return self._server.port

    @property
    def url(self) -> str:
        """The same after a restart."""
        return address(self._server.port)

    def kill(self) -> None:
        """Ends it at once; what was committed is there again after a restart."""
        self._server.kill()

    def restart(self) -> None:
        """Starts it again on the same address; returns when it answers."""
        self._server.kill()
        # Its children end by themselves, and the data can't be opened before they have.
        self._server.start(timeout_s=60)

    def freeze(self) -> None:
        """Sockets stay open, nothing is answered, by no connection's process either."""
        self._server.freeze()
        for child in self._signal_children(signal.SIGSTOP):
            wait_until(lambda child=child: is_frozen(child), "it is frozen")  # type: ignore[misc]

    def thaw(self) -> None:
        """Ends a freeze."""
        self._signal_children(signal.SIGCONT)
        self._server.thaw()

    def stop(self) -> None:
        """Ends it in order, without waiting for clients."""
        if self._server.running:
            self.thaw()
            os.kill(self._server.pid, signal.SIGINT)
            wait_until(lambda: not self._server.running, "PostgreSQL ends", timeout_s=30)

    def _signal_children(self, number: signal.Signals) -> list[int]:
        pid = self._server.pid
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for child in children:
            with suppress(ProcessLookupError):  # a connection's process ends with its connection
                os.kill(child, number)
        return children


def address(port: int, database: str = "postgres") -> str:
    """Where a test server is, with its password."""
    return f"postgresql://{_USER}:{PASSWORD}@{LOOPBACK}:{port}/{database}"


@contextmanager
def own_postgres_server(settings: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """Starts an empty PostgreSQL and ends it.

    Args:
        settings: More settings, over those of a test server: one that is measured keeps what it commits.

    Raises:
        LookupError: Its programs are not there; the message says what to install.
        ServerError: It did not start; the message has the end of its log.
    """
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="relevo-postgres-", ignore_cleanup_errors=True) as folder:
        data = _init(programs, Path(folder))
        server = Postgres(_started(programs, Path(folder), data, {**_SETTINGS, **(settings or {})}))
        try:
            yield server
        finally:
            try:
                server.stop()
            finally:
                server.kill()


def _programs() -> Path:
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    for place in _PLACES:
        folders += sorted(Path("/").glob(place.lstrip("/")), key=lambda each: each.parent.name, reverse=True)
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise LookupError(_MISSING)


def unprivileged() -> list[str]:
    """What to put before a command: neither PostgreSQL nor PgBouncer runs as root."""
    if os.geteuid() != 0:
        return []
    name = account().pw_name
    # Changing the user undoes the request to die with the keeper, so it is made again after that.
    return [
        "setpriv",
        "--reuid",
        name,
        "--regid",
        str(account().pw_gid),
        "--clear-groups",
        "--pdeathsig",
        "KILL",
    ]


def account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _init(programs: Path, folder: Path) -> Path:
    data = folder / "data"
    data.mkdir(mode=0o700)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    folder.chmod(0o711)
    if os.geteuid() == 0:
        for path in (data, secret):
            os.chown(path, account().pw_uid, account().pw_gid)
    command = [*unprivileged(), str(programs / "initdb"), "-D", str(data), "-U", _USER, "-E", "UTF8"]
    command += ["--locale=C", "--no-sync", "--auth=scram-sha-256", f"--pwfile={secret}"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    if made.returncode:
        raise AssertionError(f"initdb failed:\n{made.stdout}\n{made.stderr}")
    return data


def _started(programs: Path, folder: Path, data: Path, settings: Mapping[str, str]) -> Server:
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        server = Server(_spec(programs, folder, data, free_ports(1)[0], settings))
        try:
            server.start(timeout_s=60)
        except ServerError as error:
            if not error.port_taken or attempt == _PORT_ATTEMPTS:
                raise
        else:
            return server
    raise AssertionError("the last attempt returns or raises")


def _spec(programs: Path, folder: Path, data: Path, port: int, settings: Mapping[str, str]) -> ServerSpec:
    command = [*unprivileged(), str(programs / "postgres"), "-D", str(data), "-p", str(port)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    return ServerSpec("postgres-1", 1, tuple(command), folder, port, lambda: answers(port))


def answers(port: int) -> bool:
    """Whether our PostgreSQL on this loopback port answers."""
    try:
        psycopg.connect(address(port), connect_timeout=2).close()
    except psycopg.Error:
        return False
    return True


@contextmanager
def fresh_database(url: str) -> Iterator[str]:
    """The address of an empty database on the same server; it is removed afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    parts = psycopg.conninfo.conninfo_to_dict(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield url.replace(f"/{parts['dbname']}", f"/{name}")
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def postgres_server_url() -> Iterator[str]:
    """A PostgreSQL for the whole session. Use it, don't hurt it: see `own_postgres`."""
    named = os.environ.get(POSTGRES_VARIABLE)
    if named:
        yield named
        return
    with own_postgres_server() as server:
        yield server.url


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """An empty database of the test's own."""
    with fresh_database(postgres_server_url) as url:
        yield url


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """For tests that kill, freeze or restart PostgreSQL."""
    with own_postgres_server() as server:
        yield server
