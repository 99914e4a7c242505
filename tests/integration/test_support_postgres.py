"""The tests' own PostgreSQL: it ends when it should, and is hurt as it should be."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import Postgres
from tests.support.waiting import wait_until

_STARTER = """
import time
from tests.support.postgres import own_postgres_server
with own_postgres_server() as server:
    print(server._server.pid, server._server.keeper_pid, server._server.spec.folder, flush=True)
    time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("victim", ["starter", "keeper"])
def test_the_server_ends_with_the_process_that_wants_it(victim: str) -> None:
    """One left behind eats a port and memory until the machine is restarted."""
    folder = "/nonexistent"
    starter = subprocess.Popen([sys.executable, "-c", _STARTER], stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None
        *pids, folder = starter.stdout.readline().split()
        server, keeper = map(int, pids)
        assert not gone(server)
        os.kill(starter.pid if victim == "starter" else keeper, signal.SIGKILL)
        wait_until(lambda: gone(server) and gone(keeper), "server and keeper are gone", timeout_s=60)
    finally:
        starter.kill()
        starter.wait(30)
        if starter.stdout is not None:
            starter.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)  # nobody is left to do it


def test_frozen_means_that_nothing_is_answered(own_postgres: Postgres) -> None:
    """By the processes of open connections either."""
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        own_postgres.freeze()
        connection.pgconn.send_query(b"SELECT 1")
        connection.pgconn.flush()
        connection.pgconn.consume_input()
        assert connection.pgconn.is_busy()
        own_postgres.thaw()
        connection.pgconn.get_result()
        assert connection.pgconn.get_result() is None


def test_what_was_committed_outlives_a_kill(own_postgres: Postgres) -> None:
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    own_postgres.kill()
    own_postgres.restart()
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
