"""The brokers that tests talk to: those the environment names, else real ones started here."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from relevo.testing.proxy import TcpProxy
from relevo_engine.local.brokers import LocalBrokers
from tests.support.kafka_frames import FrameProxy

KAFKA_VARIABLE = "RELEVO_TEST_KAFKA"
ZOOKEEPER_VARIABLE = "RELEVO_TEST_ZOOKEEPER"
_CLEANUP_TIMEOUT_S = 15.0


class Brokers(Protocol):
    """Where Kafka and ZooKeeper are."""

    @property
    def kafka(self) -> str:
        """Bootstrap servers, ``host:port,host:port``."""

    @property
    def zookeeper(self) -> str:
        """Hosts, ``host:port,host:port``."""


@dataclass(frozen=True)
class RunningBrokers:
    """Brokers that somebody else started and ends."""

    kafka: str
    zookeeper: str


def brokers_from_environment() -> RunningBrokers | LocalBrokers:
    """The brokers for tests that only use them.

    Returns:
        Those that RELEVO_TEST_KAFKA and RELEVO_TEST_ZOOKEEPER name, or a set that is not started yet.

    Raises:
        ValueError: Only one of the two variables is set.
    """
    kafka, zookeeper = os.environ.get(KAFKA_VARIABLE, ""), os.environ.get(ZOOKEEPER_VARIABLE, "")
    if kafka and zookeeper:
        return RunningBrokers(kafka, zookeeper)
    if kafka or zookeeper:
        raise ValueError(f"set both {KAFKA_VARIABLE} and {ZOOKEEPER_VARIABLE}, or neither")
    return LocalBrokers()


class SharedBrokers:
    """One set for a whole test session, however many folders' fixtures ask for it."""

    def __init__(self) -> None:
        self._users = 0
        self._brokers: RunningBrokers | LocalBrokers | None = None

    def __enter__(self) -> Brokers:
        if self._brokers is None:
            brokers = brokers_from_environment()
            if isinstance(brokers, LocalBrokers):
                brokers.start()
            self._brokers = brokers
        self._users += 1
        return self._brokers

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if self._users == 0:
            brokers, self._brokers = self._brokers, None
            if isinstance(brokers, LocalBrokers):
                brokers.stop()


SHARED = SharedBrokers()


class SpareBrokers:
    """One broker and one ZooKeeper for tests that hurt them, one test at a time: started once, and mended.

    A start takes longer than most of these tests. They are whole again before the next test gets them, or the
    test that hurt them fails.

    Attributes:
        frames: A way to the broker that knows requests apart; who connects by its address stays on it. It and
            the other are there once brokers have been lent.
        network: Another one, of connections.
    """

    frames: FrameProxy
    network: TcpProxy

    def __init__(self) -> None:
        self._brokers: LocalBrokers | None = None
        self._running = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def _start(self) -> LocalBrokers:
        self.frames = self._running.enter_context(FrameProxy())
        self.network = self._running.enter_context(TcpProxy())
        detours = [[self.frames.address], [self.network.address]]
        brokers = self._running.enter_context(LocalBrokers(detours=detours))
        self.frames.aim(brokers.detour(0, 1))
        self.network.aim(brokers.detour(1, 1))
        return brokers

    @contextmanager
    def lent(self) -> Iterator[LocalBrokers]:
        """The brokers, for one test."""
        if self._brokers is None:
            self._brokers = self._start()
        try:
            yield self._brokers
        finally:
            self.frames.heal()
            self.network.heal()
            for server in self._brokers.servers:
                if server.running:
                    server.thaw()
                    server.await_ready()
                else:
                    server.start()
            self._brokers.await_brokers()


def unique_cluster_name(test: str) -> str:
    """A cluster name that no other test has, legal in topic names and ZooKeeper paths."""
    readable = re.sub(r"[^a-z0-9]+", "-", test.lower().removeprefix("test_")).strip("-")[:24].strip("-")
    return f"{readable}-{secrets.token_hex(4)}"


def forget_cluster(brokers: Brokers, cluster: str) -> None:
    """Removes what a cluster left: its topics, and its part of ZooKeeper."""
    from confluent_kafka import KafkaError, KafkaException
    from kazoo.client import KazooClient

    from relevo_engine.local.kafka import admin

    client = admin(brokers.kafka)
    topics = [t for t in client.list_topics(timeout=_CLEANUP_TIMEOUT_S).topics if t.startswith(f"{cluster}.")]
    if topics:
        for deleted in client.delete_topics(topics, operation_timeout=_CLEANUP_TIMEOUT_S).values():
            try:
                deleted.result(_CLEANUP_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
    zookeeper = KazooClient(hosts=brokers.zookeeper, timeout=_CLEANUP_TIMEOUT_S)
    zookeeper.start(timeout=_CLEANUP_TIMEOUT_S)
    try:
        if zookeeper.exists(f"/{cluster}"):
            zookeeper.delete(f"/{cluster}", recursive=True)
    finally:
        zookeeper.stop()
        zookeeper.close()
