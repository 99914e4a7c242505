"""ZooKeeper servers: settings, command line, readiness."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relevo_engine.local.ports import LOOPBACK
from relevo_engine.local.server import ServerSpec

# The shortest session is two ticks, the longest twenty unless it is set.
TICK_MS = 200
SESSION_MIN_MS = 1_000
SESSION_MAX_MS = 60_000
PORTS_EACH = 3


@dataclass(frozen=True)
class ZooKeeperPlace:
    """Where one server of an ensemble lives: its number from 1, its folder and its three ports."""

    number: int
    folder: Path
    client_port: int
    quorum_port: int
    election_port: int

    @property
    def name(self) -> str:
        """The server's name, such as ``zookeeper-1``."""
        return f"zookeeper-{self.number}"


def zookeeper_spec(
    place: ZooKeeperPlace, ensemble: Sequence[ZooKeeperPlace], *, java: str, libraries: Path, throw_away: bool
) -> ServerSpec:
    """Writes the server's settings and says how to run it.

    Args:
        place: The server.
        ensemble: All servers, itself included.
        java: The ``java`` command.
        libraries: The folder with ZooKeeper's jar files.
        throw_away: Don't wait for the disk: only for data that nobody needs after a crash of the machine.
    """
    data = place.folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "myid").write_text(f"{place.number}\n")
    config = place.folder / "zoo.cfg"
    config.write_text("".join(f"{key}={value}\n" for key, value in _settings(place, ensemble, data).items()))
    command = (
        java,
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Dzookeeper.forceSync={'no' if throw_away else 'yes'}",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss,SSS",
        "-cp",
        f"{libraries}/*",
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(config),
    )
    return ServerSpec(
        place.name, place.number, command, place.folder, place.client_port, lambda: serves(place.client_port)
    )


def _settings(place: ZooKeeperPlace, ensemble: Sequence[ZooKeeperPlace], data: Path) -> dict[str, object]:
    settings: dict[str, object] = {
        "dataDir": data,
        "clientPort": place.client_port,
        "clientPortAddress": LOOPBACK,
        "tickTime": TICK_MS,
        "minSessionTimeout": SESSION_MIN_MS,
        "maxSessionTimeout": SESSION_MAX_MS,
        # All clients come from one address here, so a bound per address would be one for all.
        "maxClientCnxns": 0,
        "4lw.commands.whitelist": "ruok,srvr,mntr,cons",
        "admin.enableServer": "false",
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
        "preAllocSize": 4_096,
    }
    if len(ensemble) > 1:
        # In ticks. A busy machine may well keep a follower waiting for a second or two.
        settings |= {"initLimit": 50, "syncLimit": 15}
        settings |= {
            f"server.{other.number}": f"{LOOPBACK}:{other.quorum_port}:{other.election_port}"
            for other in ensemble
        }
    return settings


def serves(port: int) -> bool:
    """Whether the ZooKeeper server on this loopback port is well and part of a quorum.

    ``ruok`` alone won't do: a server without a quorum says that it is well, too.
    """
    return ask(port, "ruok") == "imok" and "Mode: " in ask(port, "srvr")


def ask(port: int, word: str) -> str:
    """Sends one of ZooKeeper's four-letter words and returns the answer, empty when there is none."""
    answer = b""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.sendall(word.encode())
            while len(answer) < 65_536:
                part = connection.recv(4_096)
                if not part:
                    break
                answer += part
    except OSError:
        return ""
    return answer.decode(errors="replace")
