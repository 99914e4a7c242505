"""A cluster that can be hurt: started here with proxies between its parts, or found on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from relevo.client.client import Client
from relevo.testing.attached import Found, find_nodes
from relevo.testing.damage import Damage
from relevo.testing.faults import DrillError
from relevo.testing.proxy import TcpProxy
from relevo.testing.servers import DrillServers
from relevo.worker.app import WorkerApp

if TYPE_CHECKING:
    from relevo_engine.local.cluster import LocalCluster


class DrillCluster(Damage):
    """A cluster on this machine that can be hurt part by part. Leaves no process behind.

        with DrillCluster(nodes=3, partitions=4) as cluster:
            killed = cluster.kill_leader(0)
            cluster.await_leader(0, not_=killed.target)

    Each node reaches ZooKeeper through proxies of its own, and Kafka too where that is asked for. What does
    damage returns its mark when it has taken effect, and is for one thread at a time.

    Args:
        nodes: How many node processes; they are named ``node-1`` and so on.
        partitions: How many partitions.
        brokers: Kafka brokers, 1 or 3; of no meaning with `servers`.
        zookeepers: ZooKeeper servers, 1 or 3; of no meaning with `servers`.
        name: Name of the cluster.
        types: Job types to declare beforehand.
        settings: More settings for every node, by their names in a node's settings file.
        servers: Brokers that run already, shared with other clusters. They are left running.
        kafka_proxies: Put proxies between the nodes and Kafka too, so that they can be cut off from it. Costs
            throughput.
        for_tests: Brokers that start quickly, but are not for measuring.
        home: A folder for logs and data, which are kept there; by default a temporary one.
        report: Told, line by line, what takes a while.
    """

    def __init__(
        self,
        nodes: int = 3,
        partitions: int = 4,
        brokers: int = 1,
        zookeepers: int = 1,
        *,
        name: str = "relevo",
        types: Iterable[str] = (),
        settings: Mapping[str, Any] | None = None,
        servers: DrillServers | None = None,
        kafka_proxies: bool = False,
        for_tests: bool = True,
        home: Path | str | None = None,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        if servers is not None and kafka_proxies and servers.kafka_slots < nodes:
            raise DrillError(
                f"the given servers can cut {servers.kafka_slots} node(s) off from Kafka, not {nodes}"
            )
        path = Path(home) if home is not None else None
        super().__init__(name, partitions)
        self._owns_servers = servers is None
        self._servers = servers or DrillServers(
            brokers,
            zookeepers,
            kafka_slots=nodes if kafka_proxies else 0,
            for_tests=for_tests,
            home=path / "brokers" if path is not None else None,
            report=report,
        )
        self._uses_kafka_proxies = kafka_proxies
        self._node_count = nodes
        self._types = tuple(types)
        self._settings = dict(settings or {})
        self._home = home
        self._report = report
        self._local: LocalCluster | None = None
        self._found: Found | None = None

    @classmethod
    def attach(
        cls,
        kafka: str,
        zookeeper: str,
        name: str = "relevo",
        *,
        kafka_options: Mapping[str, str] | None = None,
    ) -> Self:
        """A cluster that somebody else runs, with nodes among the processes of this machine and this user.

        Nodes can be killed, frozen, stopped and started again; any other fault is refused. On leaving, what
        was frozen is thawed, and what was ended is started again as it was, to go on after this process;
        unless whoever looks after it has brought it back already.

        Args:
            kafka: Bootstrap address.
            zookeeper: Its address.
            name: Name of the cluster.
            kafka_options: More librdkafka options for clients of this cluster.

        Raises:
            DrillError: ZooKeeper doesn't answer, or knows no live node of this cluster.
        """
        found = find_nodes(kafka, zookeeper, name)
        cluster = cls(len(found.nodes), found.partitions, name=name)
        cluster._servers, cluster._owns_servers = None, False
        cluster._found = found
        cluster._unreachable = found.unreachable
        cluster._handles = dict(found.nodes)
        cluster.kafka_options = dict(kafka_options or {})
        return cluster

    def __enter__(self) -> Self:
        """Starts it; see `open`."""
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends every process."""
        self.close()

    @property
    def local(self) -> bool:
        """Whether its processes were started here, not found."""
        return self._found is None

    @property
    def kafka(self) -> str:
        """Bootstrap address of Kafka, past all proxies."""
        return self._found.kafka if self._found is not None else self._given_servers().kafka

    @property
    def zookeeper(self) -> str:
        """Address of ZooKeeper, past all proxies."""
        return self._found.zookeeper if self._found is not None else self._given_servers().zookeeper

    @property
    def folder(self) -> Path:
        """Where the nodes' logs lie.

        Raises:
            DrillError: It was not started, or not here.
        """
        if self._local is None:
            raise DrillError("the logs lie where the cluster was started")
        return self._local.folder

    def client(self) -> Client:
        """A client of this cluster; close it, or use ``with``."""
        return Client(self.kafka, self.name, **self.kafka_options)

    def worker(self, **options: Any) -> WorkerApp:
        """A worker of this cluster, in this process.

        Args:
            **options: As of `WorkerApp`.
        """
        return WorkerApp(self.kafka, self.name, **{**self.kafka_options, **options})

    # Start and end

    def open(self) -> None:
        """Starts everything and waits until every partition has a leader that works.

        Raises:
            EngineError: A server or node did not start; the message has the end of its log.
            NotInTime: Some partition of an attached cluster has no leader.
        """
        if not self.local:
            self.await_all_led()
            return
        from relevo_engine.local.cluster import LocalCluster

        servers = self._given_servers()
        try:
            if self._owns_servers:
                self._report("starting Kafka and ZooKeeper")
                servers.start()
            self._local = LocalCluster(
                self._node_count,
                self.partitions,
                kafka=servers.kafka,
                zookeeper=servers.zookeeper,
                name=self.name,
                types=self._types,
                settings=self._settings,
                settings_of=self._ways_of,
                home=self._home,
                report=self._report,
            )
            self._local.start()
            self._handles = {node.node_id: node for node in self._local.nodes}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends all that was started here, whatever state it is in; for others' nodes see `attach`.

        Twice does no harm.
        """
        with contextlib.ExitStack() as closing:
            closing.callback(self._pool.shutdown, cancel_futures=True)
            if self._owns_servers:
                closing.callback(self._given_servers().stop)
            for proxy in self._zookeeper_proxies():
                closing.callback(proxy.close)
            if self._local is not None:
                closing.callback(self._local.stop)
                closing.callback(self._kill_nodes)
            if self._found is not None:
                closing.callback(self._put_back)

    def _ways_of(self, name: str) -> dict[str, str]:
        """By which addresses a node reaches ZooKeeper and Kafka: its own proxies'."""
        servers = self._given_servers()
        ways = self._proxies[name, "zookeeper"] = []
        for server in servers.local.zookeeper_servers:
            ways.append(TcpProxy(f"127.0.0.1:{server.port}"))
            ways[-1].open()
        addresses = {"zookeeper": ",".join(proxy.address for proxy in ways)}
        if self._uses_kafka_proxies:
            slot = self._proxies[name, "kafka"] = servers.slot(int(name.rpartition("-")[2]) - 1)
            addresses["kafka"] = ",".join(proxy.address for proxy in slot)
        return addresses

    def _zookeeper_proxies(self) -> list[TcpProxy]:
        return [p for (_, side), proxies in self._proxies.items() if side == "zookeeper" for p in proxies]

    def _kill_nodes(self) -> None:
        """At once: their work is done, and one that is cut off would take its time."""
        for (_, side), proxies in self._proxies.items():
            for proxy in proxies if side == "kafka" else ():
                proxy.heal()  # they belong to the servers, which may serve another cluster next
        with ThreadPoolExecutor(max(1, len(self._handles))) as pool:
            for ended in [pool.submit(node.kill) for node in self._handles.values()]:
                ended.result()

    def _put_back(self) -> None:
        with contextlib.ExitStack() as all_of_them:
            for name, node in self._handles.items():
                if name in self._frozen and node.running:
                    all_of_them.callback(self.thaw, name)
                elif not node.running:
                    all_of_them.callback(self.start, name, wait=False)
