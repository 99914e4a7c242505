"""A set of real Kafka brokers and ZooKeeper servers on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Self

from relevo_engine.local.errors import LocalError, ServerError, StartCancelledError
from relevo_engine.local.formatting import format_data, new_id
from relevo_engine.local.home import Home, open_home
from relevo_engine.local.install import ensure_installed
from relevo_engine.local.java import find_java
from relevo_engine.local.kafka import PORTS_EACH as KAFKA_PORTS
from relevo_engine.local.kafka import KafkaPlace, KafkaTools, admin, brokers_alive, kafka_spec
from relevo_engine.local.ports import LOOPBACK, free_ports, is_free, with_usual
from relevo_engine.local.server import READY_TIMEOUT_S, Server
from relevo_engine.local.warmup import warm_coordinators
from relevo_engine.local.zookeeper import PORTS_EACH as ZOOKEEPER_PORTS
from relevo_engine.local.zookeeper import ZooKeeperPlace, zookeeper_spec

_PORT_ATTEMPTS = 5
_SIZES = (0, 1, 3)
_KAFKA_PORT = 9092
_ZOOKEEPER_PORT = 2181


class LocalBrokers:
    """Kafka and ZooKeeper, started together and ended together, whatever happens to this process.

        with LocalBrokers() as brokers:
            Client(brokers.kafka)

    Everything listens on loopback. Methods are for one thread at a time; the servers' own methods may be
    called by another.

    Attributes:
        kafka_servers: One handle for each broker, in the order of their ids, which count from 1.
        zookeeper_servers: One handle for each ZooKeeper server.
    """

    def __init__(
        self,
        brokers: int = 1,
        zookeepers: int = 1,
        home: Path | str | None = None,
        *,
        for_tests: bool = True,
        usual_ports: bool = False,
        detours: Sequence[Sequence[str]] = (),
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Starts nothing yet.

        Args:
            brokers: 1, or 3 for topics that survive the loss of a broker; 0 for none.
            zookeepers: 1, or 3 for an ensemble that survives the loss of a server; 0 for none.
            home: A data folder to keep and to start on again; by default a temporary one.
            for_tests: Quick to start and small, but not for measuring, and not for data that must survive a
                crash of the machine.
            usual_ports: Take 9092 for Kafka and 2181 for ZooKeeper where they are free, so that clients find
                them without being told.
            detours: Further ways to the brokers, each with the address of every broker's proxy: whoever comes
                in by `detour` is told these addresses, so that a proxy stays between the two.
            report: Told, line by line, what takes a while.

        Raises:
            ValueError: A count other than 0, 1 or 3, or a detour without an address for each broker.
        """
        if brokers not in _SIZES or zookeepers not in _SIZES:
            raise ValueError(f"brokers and zookeepers must be 0, 1 or 3 each, not {brokers} and {zookeepers}")
        if any(len(addresses) != brokers for addresses in detours):
            raise ValueError(f"a detour needs one address for each of the {brokers} broker(s)")
        self.kafka_servers: list[Server] = []
        self.zookeeper_servers: list[Server] = []
        self._counts = (brokers, zookeepers)
        self._home_path = Path(home) if home is not None else None
        self._home: Home | None = None
        self._for_tests = for_tests
        self._usual_ports = usual_ports
        self._detours = [tuple(addresses) for addresses in detours]
        self._places: list[KafkaPlace] = []
        self._report = report

    def __enter__(self) -> Self:
        """Starts all servers; see `start`."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends all servers."""
        self.stop()

    @property
    def servers(self) -> list[Server]:
        """All handles, brokers first."""
        return [*self.kafka_servers, *self.zookeeper_servers]

    @property
    def kafka(self) -> str:
        """The bootstrap servers, such as ``127.0.0.1:20001,127.0.0.1:20003``."""
        return _addresses(self.kafka_servers)

    @property
    def zookeeper(self) -> str:
        """The ZooKeeper hosts, such as ``127.0.0.1:20005``."""
        return _addresses(self.zookeeper_servers)

    @property
    def home(self) -> Path:
        """The data folder in use.

        Raises:
            LocalError: The servers were not started.
        """
        if self._home is None:
            raise LocalError("the servers were not started")
        return self._home.path

    def detour(self, number: int, broker: int) -> str:
        """Where a broker listens for the clients of a detour: what the proxy named for it connects to.

        Args:
            number: Of the detour, from 0.
            broker: The broker's id, from 1.

        Raises:
            LocalError: The servers were not started.
        """
        if not self._places:
            raise LocalError("the servers were not started")
        return f"{LOOPBACK}:{self._places[broker - 1].detours[number][0]}"

    def start(self) -> None:
        """Starts all servers and waits until they serve clients.

        Raises:
            InstallError: They are not installed and can't be.
            ServerError: One did not start; the message has the end of its log.
            LocalError: The data folder is in use, or holds a cluster of another size.
        """
        if self._home is not None:
            raise LocalError("the servers were started already")
        installed = ensure_installed(self._report)
        tools = KafkaTools(find_java(), installed.kafka, installed.kafka_logging)
        self._home = open_home(self._home_path)
        try:
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                self._prepare(self._home, tools, installed.zookeeper, fresh_ports=attempt > 1)
                try:
                    self._start_all(tools)
                    return
                except ServerError as error:
                    if not error.port_taken or attempt == _PORT_ATTEMPTS:
                        raise
                    self._report(f"somebody took the port of {error.server} first; trying other ports")
                    self._end_all(Server.kill)
        except BaseException:
            self._end_all(Server.kill)
            self._release()
            raise

    def stop(self) -> None:
        """Ends all servers: in order where the data are kept, else at once. Twice does no harm."""
        try:
            self._end_all(Server.kill if self._home_path is None else Server.stop)
        finally:
            self._release()

    def check(self) -> None:
        """Does nothing while all servers run.

        Raises:
            ServerError: One ended; the message has the end of its log.
        """
        for server in self.servers:
            server.check()

    def await_brokers(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until the cluster's metadata name every broker, as after a start or a restart.

        Raises:
            LocalError: They don't, within that many seconds.
        """
        if not self.kafka_servers:
            return
        wanted = {server.number for server in self.kafka_servers}
        client = admin(self.kafka)
        deadline = time.monotonic() + timeout_s
        while (alive := brokers_alive(client)) != wanted:
            if time.monotonic() > deadline:
                raise LocalError(
                    f"Kafka names brokers {sorted(alive)} of {sorted(wanted)} after {timeout_s:g} s"
                )
            time.sleep(0.05)

    def _prepare(
        self, home: Home, tools: KafkaTools, zookeeper_libraries: Path, *, fresh_ports: bool
    ) -> None:
        """Chooses ports and writes every server's settings."""
        brokers, zookeepers = self._counts
        usual: dict[int, int] = {}
        if self._usual_ports and not fresh_ports:
            usual = {0: _KAFKA_PORT} if brokers else {}
            usual |= {brokers * KAFKA_PORTS: _ZOOKEEPER_PORT} if zookeepers else {}
        count = brokers * (KAFKA_PORTS + len(self._detours)) + zookeepers * ZOOKEEPER_PORTS
        ports, self._cluster_id = _agree(home, brokers, zookeepers, count, usual, fresh_ports=fresh_ports)
        taken, further = iter(ports), iter(reversed(ports))
        self._places = [
            KafkaPlace(
                number,
                home.path / f"kafka-{number}",
                next(taken),
                next(taken),
                tuple((next(further), addresses[number - 1]) for addresses in self._detours),
            )
            for number in range(1, brokers + 1)
        ]
        ensemble = [
            ZooKeeperPlace(number, home.path / f"zookeeper-{number}", next(taken), next(taken), next(taken))
            for number in range(1, zookeepers + 1)
        ]
        self.kafka_servers = [
            Server(kafka_spec(place, self._places, tools=tools, throw_away=self._for_tests), (home.lock_fd,))
            for place in self._places
        ]
        self.zookeeper_servers = [
            Server(
                zookeeper_spec(
                    place,
                    ensemble,
                    java=tools.java,
                    libraries=zookeeper_libraries,
                    throw_away=self._for_tests,
                ),
                (home.lock_fd,),
            )
            for place in ensemble
        ]

    def _start_all(self, tools: KafkaTools) -> None:
        cancel = threading.Event()

        def start_broker(server: Server, place: KafkaPlace) -> None:
            format_data(place, self._cluster_id, tools)
            server.start(cancel=cancel)

        with ThreadPoolExecutor(max_workers=max(1, len(self.servers))) as pool:
            starts = [pool.submit(server.start, cancel=cancel) for server in self.zookeeper_servers]
            starts += [
                pool.submit(start_broker, server, place)
                for server, place in zip(self.kafka_servers, self._places, strict=True)
            ]
            try:
                _await_all(starts)
            finally:
                cancel.set()  # where one failed, or Ctrl-C was pressed, the others must not wait on
        if self.kafka_servers:
            self.await_brokers()
            warm_coordinators(self.kafka)

    def _end_all(self, end: Callable[[Server], None]) -> None:
        if not self.servers:
            return
        with ThreadPoolExecutor(max_workers=len(self.servers)) as pool:
            wait(ends := [pool.submit(end, server) for server in self.servers])
        for ended in ends:
            ended.result()

    def _release(self) -> None:
        if self._home is not None:
            self._home.close()
        self._home = None


def _await_all(starts: list[Future[None]]) -> None:
    """Waits for all, or for the first failure; of several failures the cause is raised, not a consequence."""
    done, _ = wait(starts, return_when=FIRST_EXCEPTION)
    failures = [error for start in done if (error := start.exception()) is not None]
    for error in sorted(failures, key=lambda one: isinstance(one, StartCancelledError)):
        raise error


def _addresses(servers: list[Server]) -> str:
    return ",".join(f"{LOOPBACK}:{server.port}" for server in servers)


def _agree(
    home: Home, brokers: int, zookeepers: int, count: int, usual: Mapping[int, int], *, fresh_ports: bool
) -> tuple[list[int], str]:
    """Takes ports and cluster id from an earlier start on this folder, if the ports are free."""
    known = home.read_shape()
    size = {"brokers": brokers, "zookeepers": zookeepers}
    if known and any(known.get(key) != count for key, count in size.items()):
        raise LocalError(
            f"{home.path} holds {known.get('brokers')} broker(s) and {known.get('zookeepers')} ZooKeeper"
            f" server(s), not {brokers} and {zookeepers}; use another folder, or remove that one"
        )
    cluster_id = str(known.get("cluster_id") or new_id())
    ports = known.get("ports")
    usable = (
        isinstance(ports, list)
        and len(ports) == count
        and all(isinstance(p, int) and is_free(p) for p in ports)
    )
    if isinstance(ports, list) and usable and not fresh_ports:
        chosen = list(ports)
    else:
        chosen = with_usual(free_ports(count), usual)
    home.write_shape({**size, "cluster_id": cluster_id, "ports": chosen})
    return chosen, cluster_id
