"""Kafka brokers in KRaft mode, each a broker and a controller: settings, command line, readiness."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relevo_engine.local.ports import LOOPBACK, accepts
from relevo_engine.local.server import ServerSpec

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PORTS_EACH = 2
COORDINATOR_PARTITIONS = 4

quiet = logging.getLogger("relevo.local.kafka")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


@dataclass(frozen=True)
class KafkaPlace:
    """Where one broker of a cluster lives.

    Attributes:
        number: Its id, from 1.
        folder: For its settings, log and data.
        client_port: Where clients reach it.
        controller_port: Where controllers reach each other.
        detours: Further ports for clients, each with the address that it tells them in its stead: a proxy's.
    """

    number: int
    folder: Path
    client_port: int
    controller_port: int
    detours: tuple[tuple[int, str], ...] = ()

    @property
    def name(self) -> str:
        """The broker's name, such as ``kafka-1``."""
        return f"kafka-{self.number}"

    @property
    def address(self) -> str:
        """What goes into a list of bootstrap servers."""
        return f"{LOOPBACK}:{self.client_port}"


@dataclass(frozen=True)
class KafkaTools:
    """What it takes to run a broker: the ``java`` command, the folder of jar files, the logging settings."""

    java: str
    libraries: Path
    logging_config: Path


def kafka_spec(
    place: KafkaPlace, cluster: Sequence[KafkaPlace], *, tools: KafkaTools, throw_away: bool
) -> ServerSpec:
    """Writes the broker's settings and says how to run it.

    Args:
        place: The broker.
        cluster: All brokers, itself included.
        tools: What to run it with.
        throw_away: A small heap and a compiler that starts quickly; not for measuring.
    """
    place.folder.mkdir(parents=True, exist_ok=True)
    settings = server_properties(place, cluster)
    config_path(place).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = (
        tools.java,
        *_archive_options(tools.libraries),
        *(("-Xmx256m", "-XX:TieredStopAtLevel=1") if throw_away else ("-Xmx512m",)),
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={tools.logging_config.as_uri()}",
        "-cp",
        f"{tools.libraries}/*",
        "kafka.Kafka",
        str(config_path(place)),
    )
    return ServerSpec(place.name, place.number, command, place.folder, place.client_port, Readiness(place))


def class_archive(libraries: Path) -> Path:
    """Where the record of a broker's classes is, if there is one: see `relevo_engine.local.classes`."""
    return libraries.with_name(f"{libraries.name}.jsa")


def _archive_options(libraries: Path) -> tuple[str, ...]:
    archive = class_archive(libraries)
    if not archive.is_file():
        return ()
    # Of no use to another Java than the one that wrote it, which is no reason to complain in the log.
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def server_properties(place: KafkaPlace, cluster: Sequence[KafkaPlace]) -> dict[str, object]:
    """The broker's settings, for one broker without replication or for three that survive the loss of one."""
    replicas = min(3, len(cluster))
    in_sync_min = max(1, replicas - 1)
    # A broker tells its clients the address that belongs to the listener they came in by.
    detours = {f"DETOUR{number}": each for number, each in enumerate(place.detours, start=1)}
    listeners = [f"CLIENT://{place.address}", *(f"{n}://{LOOPBACK}:{p}" for n, (p, _) in detours.items())]
    told = [f"CLIENT://{place.address}", *(f"{n}://{address}" for n, (_, address) in detours.items())]
    protocols = [f"{name}:PLAINTEXT" for name in ("CLIENT", "CONTROLLER", *detours)]
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": place.number,
        "controller.quorum.voters": ",".join(
            f"{one.number}@{LOOPBACK}:{one.controller_port}" for one in cluster
        ),
        "listeners": ",".join([*listeners, f"CONTROLLER://{LOOPBACK}:{place.controller_port}"]),
        "advertised.listeners": ",".join(told),
        "listener.security.protocol.map": ",".join(protocols),
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": place.folder / "data",
        # A topic made by a slip of the pen would have the wrong partition count for ever.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync_min,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync_min,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        # Fifty by default, each of them work before a fresh broker's first transaction.
        "offsets.topic.num.partitions": COORDINATOR_PARTITIONS,
        "transaction.state.log.num.partitions": COORDINATOR_PARTITIONS,
        "share.coordinator.state.topic.num.partitions": COORDINATOR_PARTITIONS,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1_000,
        # With the newer protocol members can't ask for it: a dead one is noticed after 6 s, not 45.
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.session.timeout.ms": 6_000,
        "group.consumer.min.heartbeat.interval.ms": 200,
        "group.consumer.heartbeat.interval.ms": 1_000,
        # A broker that dies is replaced after two seconds, not nine.
        "broker.session.timeout.ms": 2_000,
        "broker.heartbeat.interval.ms": 400,
        "controller.quorum.election.timeout.ms": 500,
        "controller.quorum.fetch.timeout.ms": 1_000,
        # Small: one machine carries all of it.
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 4,
        "num.recovery.threads.per.data.dir": 2,
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        "log.index.size.max.bytes": 1024 * 1024,
    }
    return settings


class Readiness:
    """Asks a broker whether it serves clients: it has to name itself among the brokers that are alive."""

    def __init__(self, place: KafkaPlace) -> None:
        """Connects to nothing yet."""
        self._place = place

    def __call__(self) -> bool:
        """Whether it serves clients now. Takes no more than three seconds."""
        if not accepts(self._place.client_port):
            return False
        return self._place.number in brokers_alive(admin(self._place.address))


def admin(bootstrap: str) -> AdminClient:
    """An admin client that reconnects quickly and says nothing about brokers that are away."""
    # Imported here: whoever only manages processes needs no Kafka client.
    from confluent_kafka.admin import AdminClient

    return AdminClient(client_settings(bootstrap))


def client_settings(bootstrap: str) -> dict[str, Any]:
    """Settings with which a client of a broker that is just starting stays quick and quiet."""
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "socket.connection.setup.timeout.ms": 2_000,
        "error_cb": lambda _error: None,
        "logger": quiet,
    }


def brokers_alive(client: AdminClient, timeout_s: float = 2.0) -> set[int]:
    """The ids of the brokers that the cluster's metadata names; empty when nobody answers."""
    from confluent_kafka import KafkaException

    try:
        return set(client.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return set()


def config_path(place: KafkaPlace) -> Path:
    """Where a broker's settings are."""
    return place.folder / "server.properties"
