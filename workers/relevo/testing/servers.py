"""Kafka and ZooKeeper that drills may hurt, shared by several clusters where that saves time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from relevo.testing.attached import quiet
from relevo.testing.faults import DrillError
from relevo.testing.proxy import TcpProxy

if TYPE_CHECKING:
    from relevo_engine.local.brokers import LocalBrokers
    from relevo_engine.local.server import Server

_FORGET_TIMEOUT_S: Final = 15.0


class DrillServers:
    """Brokers and ZooKeeper servers on this machine, and the ways to Kafka that can be cut one by one.

    Args:
        brokers: 1 or 3.
        zookeepers: 1 or 3.
        kafka_slots: For how many nodes to keep a proxy before each broker. It costs throughput.
        for_tests: Quick to start, not for measuring.
        home: A folder to keep data in; by default a temporary one.
        report: Told, line by line, what takes a while.
    """

    def __init__(
        self,
        brokers: int = 1,
        zookeepers: int = 1,
        *,
        kafka_slots: int = 0,
        for_tests: bool = True,
        home: Path | str | None = None,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._counts = (brokers, zookeepers)
        self._for_tests = for_tests
        self._home = home
        self._report = report
        self._slots = [[TcpProxy() for _ in range(brokers)] for _ in range(kafka_slots)]
        self._brokers: LocalBrokers | None = None

    def __enter__(self) -> Self:
        """Starts them; see `start`."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends them."""
        self.stop()

    def start(self) -> None:
        """Starts all servers and waits until they serve clients.

        Raises:
            EngineError: They are not installed and can't be, or one did not start.
        """
        from relevo_engine.local.brokers import LocalBrokers

        try:
            for proxy in self._proxies():
                proxy.open()
            self._brokers = LocalBrokers(
                *self._counts,
                self._home,
                for_tests=self._for_tests,
                detours=[[proxy.address for proxy in slot] for slot in self._slots],
                report=self._report,
            )
            self._brokers.start()
            for number, slot in enumerate(self._slots):
                for broker, proxy in enumerate(slot, start=1):
                    proxy.aim(self._brokers.detour(number, broker))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all servers. Twice does no harm."""
        with contextlib.ExitStack() as closing:
            for proxy in self._proxies():
                closing.callback(proxy.close)
            if self._brokers is not None:
                closing.callback(self._brokers.stop)

    @property
    def local(self) -> LocalBrokers:
        """The processes.

        Raises:
            DrillError: They were not started.
        """
        if self._brokers is None:
            raise DrillError("the servers were not started")
        return self._brokers

    @property
    def kafka(self) -> str:
        """Bootstrap address, past all proxies."""
        return self.local.kafka

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's address, past all proxies."""
        return self.local.zookeeper

    @property
    def zookeepers(self) -> int:
        """How many ZooKeeper servers there are."""
        return self._counts[1]

    @property
    def kafka_slots(self) -> int:
        """How many nodes can be cut off from Kafka."""
        return len(self._slots)

    def slot(self, number: int) -> list[TcpProxy]:
        """The proxies of one node, one before each broker. Slots count from 0."""
        return self._slots[number]

    def broker(self, number: int) -> Server:
        """The broker with this id.

        Raises:
            DrillError: There is none.
        """
        found = {each.number: each for each in self.local.kafka_servers}
        if number not in found:
            raise DrillError(f"there is no broker {number}; there is {', '.join(map(str, found)) or 'none'}")
        return found[number]

    def zookeeper_leader(self) -> Server | None:
        """The server that leads the ensemble; None while they elect one."""
        from relevo_engine.local.zookeeper import ask

        for server in self.local.zookeeper_servers:
            if server.running and "Mode: leader" in ask(server.port, "srvr"):
                return server
        return None

    def heal(self) -> None:
        """Thaws what is frozen, starts what isn't running, and mends every way to Kafka.

        Raises:
            EngineError: A server didn't start, or doesn't serve clients.
        """
        from relevo_engine.local.processes import is_frozen

        for proxy in self._proxies():
            proxy.heal()
        servers = self.local.servers
        running = [server for server in servers if server.running]
        frozen = [server for server in running if is_frozen(server.pid)]
        for server in running:  # first: those that are started wait for the others
            server.thaw()
        self.start_stopped(servers)
        for server in frozen:
            server.await_ready()
        if set(frozen) & set(self.local.kafka_servers):
            self.local.await_brokers()

    def start_stopped(self, servers: Iterable[Server]) -> None:
        """Starts those of the servers that aren't running and waits until they serve clients.

        Raises:
            EngineError: One didn't start.
        """
        stopped = [server for server in servers if not server.running]
        for server in stopped:  # all at once: one alone has no quorum
            server.spawn()
        for server in stopped:
            server.await_ready()
        if set(stopped) & set(self.local.kafka_servers):
            self.local.await_brokers()

    def forget(self, cluster: str) -> None:
        """Removes what a cluster left on them: its topics, and its part of ZooKeeper. No node may run."""
        from confluent_kafka import KafkaError, KafkaException
        from kazoo.client import KazooClient

        from relevo_engine.local.kafka import admin

        client = admin(self.kafka)
        named = client.list_topics(timeout=_FORGET_TIMEOUT_S).topics
        topics = [topic for topic in named if topic.startswith(f"{cluster}.")]
        gone: Mapping[str, object] = {}
        if topics:
            gone = client.delete_topics(topics, operation_timeout=_FORGET_TIMEOUT_S)
        for deleted in gone.values():
            try:
                deleted.result(_FORGET_TIMEOUT_S)  # type: ignore[attr-defined]
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        zookeeper = KazooClient(hosts=self.zookeeper, timeout=_FORGET_TIMEOUT_S, logger=quiet)
        zookeeper.start(timeout=_FORGET_TIMEOUT_S)
        try:
            zookeeper.delete(f"/{cluster}", recursive=True)
        finally:
            zookeeper.stop()
            zookeeper.close()

    def _proxies(self) -> list[TcpProxy]:
        return [proxy for slot in self._slots for proxy in slot]
