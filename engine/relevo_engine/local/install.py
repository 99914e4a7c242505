"""Puts the libraries of Kafka and ZooKeeper in place with Maven, once.

    python -m relevo_engine.local.install

They go to `build/local` of a checkout, to the user's cache folder where Relevo was installed as a package,
or to where RELEVO_LOCAL_HOME says. Each set of libraries lies in a folder named after its pom's hash and
comes into being by one rename, so that an interrupted run leaves nothing that looks complete; a lock makes a
second run wait for the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from relevo_engine.local.errors import InstallError, LocalError
from relevo_engine.local.java import find_java

HOME_VARIABLE = "RELEVO_LOCAL_HOME"
_SERVERS = ("kafka", "zookeeper")
_UNFINISHED = ".unfinished-"
_MAVEN_TIMEOUT_S = 900.0
_NETWORK_TROUBLE = re.compile(
    r"UnknownHost|Unknown host|Name or service|Connection refused|Connect(?:ion)? timed out|No route to host"
    r"|Network is unreachable|Could not transfer|Temporary failure|PKIX|offline mode"
)
_USE_RUNNING = "Or use brokers that run already (--kafka and --zookeeper)."


@dataclass(frozen=True)
class Installation:
    """Where things are: a folder of jar files for each server, and the brokers' logging settings."""

    kafka: Path
    zookeeper: Path
    kafka_logging: Path


def ensure_installed(report: Callable[[str], None] = lambda _line: None) -> Installation:
    """Resolves what is missing; where nothing is, returns at once and needs neither Maven nor network.

    Args:
        report: Told, line by line, what takes a while.

    Raises:
        InstallError: No JDK, no Maven, no network, or no place to write. The message says what to do.
    """
    home, sources = local_home(), sources_folder()
    folders = {server: _folder(home, sources, server) for server in _SERVERS}
    if not all(folder.is_dir() for folder in folders.values()):
        find_java()  # first: without it all the rest would be for nothing
        with _locked(home, report):
            for server, folder in folders.items():
                if not folder.is_dir():
                    _resolve(sources / server / "pom.xml", folder, report)
    return Installation(folders["kafka"], folders["zookeeper"], sources / "kafka" / "log4j2.properties")


def local_home() -> Path:
    """Where the libraries go."""
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().resolve()
    checkout = _checkout()
    if checkout is not None:
        return checkout / "build" / "local"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().resolve() / "relevo" / "local"


def sources_folder() -> Path:
    """Where the poms are: `deploy/local` of a checkout, or the copy inside an installed package.

    Raises:
        InstallError: Neither is there.
    """
    checkout = _checkout()
    folder = checkout / "deploy" / "local" if checkout is not None else Path(__file__).parent / "maven"
    if not (folder / "kafka" / "pom.xml").is_file():
        raise InstallError(
            f"{folder} has no kafka/pom.xml: this copy of Relevo is incomplete, install it again"
        )
    return folder


def _checkout() -> Path | None:
    root = Path(__file__).resolve().parents[3]
    return root if (root / "deploy" / "local" / "kafka" / "pom.xml").is_file() else None


def _folder(home: Path, sources: Path, server: str) -> Path:
    digest = hashlib.sha256((sources / server / "pom.xml").read_bytes()).hexdigest()
    return home / f"{server}-{digest[:12]}"


@contextlib.contextmanager
def _locked(home: Path, report: Callable[[str], None]) -> Iterator[None]:
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = open(home / ".lock", "ab")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InstallError(
            f"can't write to {home} ({error}); set {HOME_VARIABLE} to a folder of yours"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("Another process is putting Kafka and ZooKeeper in place; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in home.glob(f"{_UNFINISHED}*"):  # of a run that was killed: the lock is ours
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _resolve(pom: Path, folder: Path, report: Callable[[str], None]) -> None:
    name = pom.parent.name
    maven = shutil.which("mvn")
    if maven is None:
        raise InstallError(
            "Kafka and ZooKeeper are fetched with Maven, and no `mvn` is on PATH. Install it (Debian"
            f" and Ubuntu: apt-get install maven; Fedora: dnf install maven; macOS: brew install maven)."
            f" {_USE_RUNNING}"
        )
    report(f"Fetching {name} with Maven into {folder} (once; seconds to minutes, as the network goes)")
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        # A copy of the pom: Maven may want to write beside it, and the original can lie where nobody may.
        own_pom = shutil.copy(pom, unfinished / "pom.xml")
        libraries = unfinished / "libraries"
        goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={libraries}")
        _run_maven([maven, "-q", "-B", "-C", "-f", str(own_pom), *goal], name)
        if not any(libraries.glob(f"{name}*.jar")):
            raise InstallError(f"Maven ended well but left no {name} library in {libraries}; see {pom}")
        libraries.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _run_maven(command: list[str], name: str) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MAVEN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(
            f"Maven did not finish with {name} within {_MAVEN_TIMEOUT_S:g} s. {_advice()}"
        ) from error
    except OSError as error:
        raise InstallError(f"Maven could not be run: {error}") from error
    if done.returncode == 0:
        return
    said = [_without_secrets(line) for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    end = "\n".join(f"    {line}" for line in [line for line in said if "ERROR" in line][:6] or said[-6:])
    if _NETWORK_TROUBLE.search("\n".join(said)):
        raise InstallError(
            f"Maven could not fetch {name}: the network, or a proxy. {_advice()} It said:\n{end}"
        )
    raise InstallError(f"Maven could not fetch {name} (exit code {done.returncode}). It said:\n{end}")


def _advice() -> str:
    return (
        "Try again when the machine is online (what was fetched is kept); behind a proxy or a mirror, name"
        f" it in ~/.m2/settings.xml; or copy {local_home()} from a machine that has it, and set"
        f" {HOME_VARIABLE} if it lies elsewhere. {_USE_RUNNING}"
    )


def _without_secrets(text: str) -> str:
    return re.sub(r"://[^/\s]+@", "://***@", text)


def main() -> int:
    """The command line: installs and says where."""
    try:
        found = ensure_installed(lambda line: _say(sys.stderr, line))
    except LocalError as error:
        _say(sys.stderr, f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _say(sys.stderr, "interrupted; nothing unfinished was left behind")
        return 130
    _say(sys.stdout, f"Kafka:     {found.kafka}\nZooKeeper: {found.zookeeper}")
    return 0


def _say(stream: TextIO, line: str) -> None:
    stream.write(f"{line}\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
