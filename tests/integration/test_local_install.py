"""Kafka's and ZooKeeper's libraries: fetched once, whole or not at all, and clear about what is missing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from relevo_engine.local import install
from relevo_engine.local.errors import InstallError
from relevo_engine.local.java import find_java, java_major
from tests.support.waiting import wait_until

INSTALL = [sys.executable, "-m", "relevo_engine.local.install"]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for the libraries, for this process and those it starts."""
    home = tmp_path / "libraries"
    monkeypatch.setenv(install.HOME_VARIABLE, str(home))
    return home


@pytest.fixture
def fake_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `mvn` before all others on PATH; the test writes what it does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "mvn"


def write_program(path: Path, lines: str) -> None:
    """Makes a shell script that can be run."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def folders(home: Path) -> list[str]:
    """What lies there, without the lock and without the hashes in the names."""
    return sorted(entry.name.rsplit("-", 1)[0] for entry in home.iterdir() if entry.name != ".lock")


def test_two_at_once_fetch_it_once(own_home: Path) -> None:
    """`make demo` and `make test` in two terminals on a fresh machine must not spoil each other's files."""
    pipe = subprocess.PIPE
    both = [subprocess.Popen(INSTALL, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    said = [one.communicate(timeout=100) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert folders(own_home) == ["kafka", "zookeeper"]
    assert sum(errors.count("Fetching kafka") for _, errors in said) == 1
    assert list(own_home.glob("kafka-*/kafka-server-4*.jar"))
    assert list(own_home.glob("zookeeper-*/zookeeper-3*.jar"))


def test_what_is_there_needs_neither_maven_nor_java(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run offline must just go on."""
    for server in ("kafka", "zookeeper"):
        install._folder(own_home, install.sources_folder(), server).mkdir(parents=True)
    monkeypatch.setenv("PATH", "")
    assert install.ensure_installed().kafka.parent == own_home


def test_an_interrupted_fetch_leaves_nothing_that_looks_whole(own_home: Path, fake_maven: Path) -> None:
    """Half a set of libraries makes brokers fail with errors that nobody understands."""
    out = 'for last; do :; done; out="${last#-DoutputDirectory=}"; mkdir -p "$out"'
    write_program(fake_maven, f'{out}; touch "$out/kafka-half.jar"; exec sleep 60')
    process = subprocess.Popen(INSTALL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: list(own_home.glob(".unfinished-*/libraries/kafka-half.jar")), "Maven is at work")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert folders(own_home) == [".unfinished"]
    write_program(fake_maven, f'{out}; touch "$out/kafka-1.jar" "$out/zookeeper-1.jar"')
    install.ensure_installed()
    assert folders(own_home) == ["kafka", "zookeeper"]


@pytest.mark.parametrize(
    ("maven", "expected"),
    [
        ("echo '[ERROR] Could not transfer artifact: Unknown host'; exit 1", "the network, or a proxy"),
        ("echo '[ERROR] No plugin found'; exit 1", r"exit code 1.*\n.*No plugin found"),
        ("exit 0", "left no kafka library"),
    ],
)
def test_a_failed_fetch_says_what_to_do(own_home: Path, fake_maven: Path, maven: str, expected: str) -> None:
    """Maven fails in many ways; the usual one is that there is no network."""
    write_program(fake_maven, maven)
    with pytest.raises(InstallError, match=expected):
        install.ensure_installed()
    assert folders(own_home) == []


def test_passwords_of_a_mirror_stay_secret(fake_maven: Path) -> None:
    """Maven prints the address of a mirror, which may hold the user's password."""
    write_program(
        fake_maven, "echo '[ERROR] Could not transfer from https://me:s3cr3t@mirror.example/'; exit 1"
    )
    with pytest.raises(InstallError) as caught:
        install.ensure_installed()
    assert "https://***@mirror.example" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer's machine lacks Java or Maven: say which, and how to get it."""
    java = Path(find_java())
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(InstallError, match="no `mvn` is on PATH"):
        install.ensure_installed()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    find_java.cache_clear()
    try:
        with pytest.raises(InstallError, match="no `java` is on PATH"):
            install.ensure_installed()
        monkeypatch.setenv("JAVA_HOME", "/nowhere")
        with pytest.raises(InstallError, match="JAVA_HOME names, /nowhere/bin/java, does not run"):
            install.ensure_installed()
    finally:
        find_java.cache_clear()
    assert java.exists()


@pytest.mark.parametrize(
    ("answer", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('version "21"', 21),
        ("?", None),
    ],
)
def test_java_versions_are_read(answer: str, major: int | None) -> None:
    """Java 8 calls itself 1.8, and Kafka's error on it names class file versions."""
    assert java_major(answer) == major


def test_nowhere_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that can't be made is reported with the variable that names another."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(install.HOME_VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(InstallError, match=install.HOME_VARIABLE):
        install.ensure_installed()
