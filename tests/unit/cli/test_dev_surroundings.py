"""What `relevo dev` finds on the machine: ports that are free or taken, and a folder in use."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo_engine.local.errors import FolderInUseError
from relevo_engine.local.home import open_home
from relevo_engine.local.ports import LOOPBACK, any_accepts, free_ports, with_usual


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


def test_the_usual_port_is_taken_where_it_is_free(listening: int) -> None:
    """Else the README's commands, which rely on the defaults, find nothing; or the start fails."""
    (free,) = free_ports(1)
    assert with_usual([1, 2, 3], {0: listening, 2: free}) == [1, 2, free]


def test_one_host_that_answers_is_enough(listening: int) -> None:
    (free,) = free_ports(1)
    assert any_accepts(f"{LOOPBACK}:{free},{LOOPBACK}:{listening}/path", 1.0)
    assert not any_accepts(f"{LOOPBACK}:{free},nonsense", 1.0)


def test_who_uses_a_folder_is_told_at_once(tmp_path: Path) -> None:
    """Waiting in silence for a cluster that runs in another terminal looks like a hang."""
    home = open_home(tmp_path)
    with pytest.raises(FolderInUseError, match=rf"pid {os.getpid()}\) uses"):
        open_home(tmp_path)
    home.close()
    open_home(tmp_path).close()
