"""A whole cluster on this machine: brokers, topics and nodes, for `relevo dev`, the demo and the tests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from relevo_engine.errors import EngineError, UnreachableError
from relevo_engine.local.brokers import LocalBrokers
from relevo_engine.local.errors import LocalError
from relevo_engine.local.home import Home, open_home
from relevo_engine.local.node import LocalNode
from relevo_engine.local.ports import any_accepts, free_ports
from relevo_engine.local.server import READY_TIMEOUT_S
from relevo_engine.topic_admin import TopicAdmin
from relevo_engine.topics import NAME, NAME_RULE

_POLL_S = 0.05
_REACH_S = 5.0


class LocalCluster:
    """Node processes on top of `LocalBrokers`, or of brokers that run already. Leaves no process behind.

        with LocalCluster(nodes=3, partitions=4) as cluster:
            client = Client(cluster.kafka, cluster=cluster.name)
            cluster.leader_of(0).kill()

    Args:
        nodes: How many node processes.
        partitions: How many partitions.
        brokers: Kafka brokers to start, 1 or 3; of no meaning with `kafka`.
        zookeepers: ZooKeeper servers to start, 1 or 3; of no meaning with `zookeeper`.
        kafka: Bootstrap address of brokers that run already.
        zookeeper: Address of ZooKeeper servers that run already.
        name: Name of the cluster.
        types: Job types to declare beforehand.
        settings: More settings for every node, by their names in `NodeSettings`.
        settings_of: More settings for one node, by its name; asked once Kafka and ZooKeeper run. With the
            address of a proxy as its ``zookeeper``, that node alone can be cut off.
        kafka_options: More librdkafka options, for brokers that run already.
        home: A folder for logs and data, which are kept there; by default a temporary one.
        for_tests: See `LocalBrokers`.
        usual_ports: See `LocalBrokers`.
        report: Told, line by line, what takes a while.

    Raises:
        ValueError: There is to be no node, or no cluster can be called so.
    """

    def __init__(
        self,
        nodes: int = 3,
        partitions: int = 4,
        brokers: int = 1,
        zookeepers: int = 1,
        *,
        kafka: str | None = None,
        zookeeper: str | None = None,
        name: str = "relevo",
        types: Iterable[str] = (),
        settings: Mapping[str, Any] | None = None,
        settings_of: Callable[[str], Mapping[str, Any]] = lambda _node: {},
        kafka_options: Mapping[str, str] | None = None,
        home: Path | str | None = None,
        for_tests: bool = True,
        usual_ports: bool = False,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster has at least one node, not {nodes}")
        if not NAME.match(name):
            raise ValueError(f"the cluster's name {name!r} {NAME_RULE}")
        self.name = name
        self.partitions = partitions
        self.nodes: list[LocalNode] = []
        self._node_count = nodes
        self._types = tuple(types)
        self._settings = dict(settings or {})
        self._settings_of = settings_of
        self._kafka_options = dict(kafka_options or {})
        self._kafka = kafka
        self._zookeeper = zookeeper
        self._path = Path(home) if home is not None else None
        self._home: Home | None = None
        self._report = report
        self.brokers = LocalBrokers(
            0 if kafka else brokers,
            0 if zookeeper else zookeepers,
            self._path / "brokers" if self._path is not None and not (kafka and zookeeper) else None,
            for_tests=for_tests,
            usual_ports=usual_ports,
            report=report,
        )

    def __enter__(self) -> Self:
        """Starts it; see `start`."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends every process."""
        self.stop()

    @property
    def kafka(self) -> str:
        """Bootstrap address of Kafka."""
        return self._kafka or self.brokers.kafka

    @property
    def zookeeper(self) -> str:
        """Address of ZooKeeper."""
        return self._zookeeper or self.brokers.zookeeper

    @property
    def folder(self) -> Path:
        """Where the nodes' logs and settings lie.

        Raises:
            LocalError: The cluster was not started.
        """
        if self._home is None:
            raise LocalError("the cluster was not started")
        return self._home.path

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Starts everything and waits until every partition has a leader that works.

        Raises:
            LocalError: A server or node did not start; the message has the end of its log.
            UnreachableError: Kafka or ZooKeeper, which should run already, doesn't answer.
            EngineError: They can't be used.
        """
        if self._home is not None:
            raise LocalError("the cluster was started already")
        self._home = open_home(self._path / "nodes" if self._path is not None else None)
        try:
            self._reach_given()
            if not (self._kafka and self._zookeeper):
                self._report("starting " + self._what_starts())
                self.brokers.start()
            self._make_topics()
            self._report(f"starting {self._node_count} node(s)")
            self.nodes = self._prepare_nodes(self._home)
            for node in self.nodes:
                node.spawn()
            self.await_ready(timeout_s=timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the nodes in order, then the servers. Twice does no harm."""
        try:
            with ThreadPoolExecutor(max_workers=max(1, len(self.nodes))) as pool:
                for ended in [pool.submit(node.stop) for node in self.nodes]:
                    ended.result()
        finally:
            self.nodes = []
            self.brokers.stop()
            if self._home is not None:
                self._home.close()
                self._home = None

    def node(self, node_id: str) -> LocalNode:
        """The node of this name.

        Raises:
            KeyError: There is none.
        """
        for each in self.nodes:
            if each.node_id == node_id:
                return each
        raise KeyError(node_id)

    def status(self) -> list[dict[str, Any]]:
        """All partitions, as the first node that answers sees them: see ``/v1/partitions``.

        Raises:
            LocalError: No node answers.
        """
        problem: Exception | None = None
        for node in self.nodes:
            if node.running:
                try:
                    answer: list[dict[str, Any]] = node.api.get("/v1/partitions")["partitions"]
                    return answer
                except EngineError as error:
                    problem = error
        raise LocalError(f"no node of the cluster answers ({problem or 'none is running'})")

    def leaders(self) -> dict[int, str]:
        """Name of the node that leads each partition; partitions without a working leader are missing."""
        with contextlib.suppress(LocalError):
            return {row["partition"]: row["leader"] for row in self.status() if row.get("role") == "LEADING"}
        return {}

    def leader_of(self, partition: int) -> LocalNode:
        """The node that leads a partition.

        Raises:
            LocalError: Nobody does at this moment.
        """
        leader = self.leaders().get(partition)
        if leader is None:
            raise LocalError(f"nobody leads partition {partition} now")
        return self.node(leader)

    def await_ready(
        self, *, timeout_s: float = READY_TIMEOUT_S, without: Iterable[LocalNode] = ()
    ) -> dict[int, str]:
        """Waits until every partition has a leader that works.

        Args:
            timeout_s: Longest wait, in seconds.
            without: Nodes that don't count as leaders: those just killed or frozen.

        Returns:
            The leader of each partition.

        Raises:
            ServerError: A node that should run has ended.
            LocalError: Some partition has no leader in time; the message says which, and has a node's log.
        """
        dead = {node.node_id for node in without}
        deadline = time.monotonic() + timeout_s
        wait = threading.Event()
        while True:
            leaders = {p: node for p, node in self.leaders().items() if node not in dead}
            if len(leaders) == self.partitions:
                return leaders
            for node in self.nodes:
                if node.node_id not in dead:
                    node.check()
            if time.monotonic() > deadline:
                missing = sorted(set(range(self.partitions)) - set(leaders))
                tails = "\n".join(f"{node.node_id}:\n{node.log_tail()}" for node in self.nodes)
                raise LocalError(f"no leader for partitions {missing} after {timeout_s:g} s\n{tails}")
            wait.wait(_POLL_S)

    def _reach_given(self) -> None:
        """Looks for the servers that should run already, before others are started for nothing."""
        if self._kafka:
            try:
                TopicAdmin(self._kafka, self.name, self._kafka_options).slots(_REACH_S)
            except UnreachableError as error:
                raise UnreachableError(f"{error}. Is it running, and is the address right?") from error
        if self._zookeeper and not any_accepts(self._zookeeper, _REACH_S):
            raise UnreachableError(
                f"no ZooKeeper answers at {self._zookeeper}. Is it running, and is the address right?"
            )

    def _what_starts(self) -> str:
        kafka, zookeeper = not self._kafka, not self._zookeeper
        return " and ".join(["Kafka"] * kafka + ["ZooKeeper"] * zookeeper)

    def _make_topics(self) -> None:
        admin = TopicAdmin(self.kafka, self.name, self._kafka_options)
        made = admin.init(self.partitions, self._types, allow_unsafe=True)
        if made:
            self._report(f"made {len(made)} topic(s), {self.name}.*")

    def _prepare_nodes(self, home: Home) -> list[LocalNode]:
        common: dict[str, Any] = {
            "cluster": self.name,
            "partitions": self.partitions,
            "kafka": self.kafka,
            "zookeeper": self.zookeeper,
            "allow_unsafe_topics": True,
            # A lone node needs to wait for no other.
            **({"settle_s": 0.0} if self._node_count == 1 else {}),
            **self._settings,
        }
        if self._kafka_options:
            common["kafka_options"] = self._kafka_options
        ports = free_ports(self._node_count)
        nodes = []
        for number, port in enumerate(ports, start=1):
            name = f"node-{number}"
            settings = common | dict(self._settings_of(name))
            nodes.append(LocalNode(name, number, home.path / name, port, settings, (home.lock_fd,)))
        return nodes
