"""What `relevo dev` and `relevo drill` find here: ports, folders in use, and variables meant for others."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import click
import pytest
from click.testing import CliRunner

from relevo.cli import dev, drill, topics
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


def test_a_folder_that_another_start_sweeps_away_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters that start side by side, as in tests, find the same leftovers."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    prefix = f"relevo-local-{os.getuid()}-"
    (tmp_path / f"{prefix}a").symlink_to(tmp_path / "gone")  # seen in the list, and not there when looked at
    left = tmp_path / f"{prefix}b"
    left.mkdir()
    (left / ".lock").touch()
    open_home(None).close()
    assert not left.exists()


class _Seen(Exception):  # noqa: N818 - nothing went wrong
    pass


@pytest.fixture
def options_used(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The librdkafka options that a command works with, once it was called; no cluster is started."""
    used: dict[str, Any] = {}

    def cluster(*_: Any, kafka_options: dict[str, str], **__: Any) -> None:
        used.update(kafka_options)
        raise _Seen

    def session(settings: Any, *_: Any) -> None:
        used.update(settings.kafka_options)
        raise _Seen

    monkeypatch.setattr("relevo_engine.local.cluster.LocalCluster", cluster)
    monkeypatch.setattr("relevo.testing.drills.session.Session", session)
    monkeypatch.setattr(dev, "StopSignal", MagicMock())
    monkeypatch.setattr(drill, "signal", MagicMock())
    monkeypatch.setenv("RELEVO_KAFKA_OPTIONS", '{"sasl.password": "s3cret"}')
    return used


@pytest.mark.parametrize(("command", "arguments"), [(dev.command, []), (drill.command, ["leader-kill"])])
def test_a_password_goes_only_to_brokers_that_the_user_names(
    options_used: dict[str, Any], command: click.Command, arguments: list[str]
) -> None:
    """Brokers on this machine don't speak SASL_SSL: who exports that for other ones could start nothing."""
    ran = CliRunner().invoke(command, [*arguments, "--kafka-option", "client.id=me"])
    assert isinstance(ran.exception, _Seen), ran.output
    assert options_used == {"client.id": "me"}
    ran = CliRunner().invoke(command, [*arguments, "--kafka", "b:9092", "--zookeeper", "z:2181"])
    assert isinstance(ran.exception, _Seen), ran.output
    assert options_used["sasl.password"] == "s3cret"


@pytest.mark.parametrize("name", ["my.cluster", ""])
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (dev.command, ["--zookeeper", "127.0.0.1:1"]),
        (drill.command, ["leader-kill", "--zookeeper", "127.0.0.1:1"]),
        (topics.command, ["init"]),
        (topics.command, ["check"]),
    ],
)
def test_a_name_that_nodes_and_clients_refuse_is_refused_at_once(
    command: click.Command, arguments: list[str], name: str
) -> None:
    """Else the topics are made, and nothing can ever use them."""
    ran = CliRunner().invoke(command, [*arguments, "--kafka", "127.0.0.1:1", "--cluster", name])
    assert ran.exit_code == 2, ran.output
    assert f"{name!r} must be 1 to 100 letters, digits, '_' or '-'" in ran.output
