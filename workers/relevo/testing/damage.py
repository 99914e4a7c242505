"""The faults: what is done to a cluster's nodes, their network, Kafka and ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

from relevo.testing.facts import ClusterFacts, NodeHandle
from relevo.testing.faults import DrillError, FaultLog, FaultMark, FaultRefused, Kind
from relevo.testing.proxy import TcpProxy
from relevo.testing.servers import DrillServers
from relevo.testing.waiting import FirstAnswer, wait_for

Side = Literal["zookeeper", "kafka"]
_CUTS: Final[Mapping[str, Kind]] = {"zookeeper": Kind.CUT_ZOOKEEPER, "kafka": Kind.CUT_KAFKA}
_OF_PROCESSES: Final = frozenset({Kind.KILL, Kind.FREEZE, Kind.THAW, Kind.STOP, Kind.START})
_OF_STARTED_SERVERS: Final = frozenset(
    {
        Kind.ZOOKEEPER_STOP,
        Kind.ZOOKEEPER_START,
        Kind.ZOOKEEPER_KILL,
        Kind.BROKER_KILL,
        Kind.BROKER_START,
        Kind.BROKER_RESTART,
    }
)
_OF_SERVERS: Final = "others may use its servers, and `relevo dev` ends, nodes and all, when one of its does"
_OF_PROXIES: Final = "its nodes would have to have been started with a proxy before their servers"
_ELECTION_S: Final = 30.0


class Damage(ClusterFacts):
    """What can be done to a cluster. Each method returns its mark once it has taken effect."""

    def __init__(self, name: str, partitions: int) -> None:
        super().__init__(name, partitions)
        self._log = FaultLog()
        self._servers: DrillServers | None = None
        self._proxies: dict[tuple[str, Side], list[TcpProxy]] = {}
        self._uses_kafka_proxies = False
        self._unreachable: Mapping[str, str] = {}

    @property
    def faults(self) -> list[FaultMark]:
        """All that was done so far, in order."""
        return self._log.marks

    @property
    def servers(self) -> DrillServers | None:
        """Its Kafka and ZooKeeper; None where somebody else runs them."""
        return self._servers

    @property
    def unreachable(self) -> Mapping[str, str]:
        """Why nodes can't be hurt from here, by the names of those that can't."""
        return self._unreachable

    # What is possible

    def refusal(self, kind: Kind) -> str | None:
        """Why this cluster can't have a fault of this kind; None where it can."""
        if self._servers is None:
            if kind not in _OF_PROCESSES:
                why = _OF_SERVERS if kind in _OF_STARTED_SERVERS else _OF_PROXIES
                away = "leave the addresses out to have one started"
                return f"{kind}: not in a cluster that was given: {why}; {away}"
            unreachable = [f"{name} {reason}" for name, reason in sorted(self._unreachable.items())]
            return f"{kind}: not every node can be reached: {'; '.join(unreachable)}" if unreachable else None
        if kind == Kind.CUT_KAFKA and not self._uses_kafka_proxies:
            return f"{kind}: this cluster was started without proxies before Kafka; ask for kafka_proxies"
        if kind == Kind.ZOOKEEPER_KILL and self._servers.zookeepers < 3:
            return f"{kind}: a single ZooKeeper server has no ensemble; ask for zookeepers=3"
        return None

    def require(self, *kinds: Kind) -> None:
        """Does nothing where all these faults are possible. Call it before a drill starts.

        Raises:
            FaultRefused: Some are not; the error says why, for each.
        """
        refusals = [refusal for kind in kinds if (refusal := self.refusal(kind)) is not None]
        if refusals:
            raise FaultRefused("this cluster can't have the fault " + ", nor ".join(refusals))

    # Nodes

    def kill(self, node: str) -> FaultMark:
        """``kill -9`` of a node; returns when it is gone.

        Raises:
            FaultRefused: It can't be reached. Every method below says so in the same way.
            DrillError: There is no such node, or it isn't running.
        """
        return self._kill(node, None)

    def kill_leader(self, partition: int) -> FaultMark:
        """``kill -9`` of the node that leads a partition; the mark's target is its name.

        Raises:
            DrillError: Nobody leads it now.
        """
        self.require(Kind.KILL)
        return self._kill(self.await_leader(partition), partition)

    def freeze(self, node: str) -> FaultMark:
        """Stops a node in its tracks (SIGSTOP): its sockets stay open, it answers nothing.

        Raises:
            DrillError: There is no such node, or it isn't running.
        """
        return self._freeze(node, None)

    def freeze_leader(self, partition: int) -> FaultMark:
        """Freezes the node that leads a partition; the mark's target is its name.

        Raises:
            DrillError: Nobody leads it now.
        """
        self.require(Kind.FREEZE)
        return self._freeze(self.await_leader(partition), partition)

    def thaw(self, node: str) -> FaultMark:
        """Lets a frozen node go on (SIGCONT).

        Raises:
            DrillError: It isn't frozen.
        """
        self.require(Kind.THAW)
        if node not in self._frozen:
            raise DrillError(f"{node} is not frozen")
        mark = self._log.note(Kind.THAW, node)
        self.node(node).thaw()
        self._frozen.discard(node)
        return mark

    def stop(self, node: str) -> FaultMark:
        """Ends a node in order (SIGTERM), or by force when that takes too long; returns when it is gone."""
        self.require(Kind.STOP)
        handle = self._running_node(node)
        mark = self._log.note(Kind.STOP, node)
        handle.stop()
        self._frozen.discard(node)
        return mark

    def start(self, node: str, *, wait: bool = True) -> FaultMark:
        """Starts a node that has ended, under the same id.

        Args:
            node: Its name.
            wait: Return only when it is connected and settled.

        Raises:
            DrillError: It runs already.
            EngineError: It didn't start; the message has the end of its log.
        """
        self.require(Kind.START)
        handle = self.node(node)
        if handle.running:
            raise DrillError(f"{node} runs already, as process {handle.pid}")
        self._frozen.discard(node)
        mark = self._log.note(Kind.START, node)
        handle.spawn()
        if wait:
            handle.await_ready()
        return mark

    def rolling_restart(self, between: Callable[[str], None] | None = None) -> list[FaultMark]:
        """Restarts each running node in order, the next one when every partition is led and has its standby.

        Args:
            between: Called with each node's name when it is back.

        Returns:
            Two marks for each node.
        """
        self.require(Kind.STOP, Kind.START)
        marks = []
        for node in self.running:
            marks += [self.stop(node), self.start(node)]
            self.await_all_led()
            self.await_all_hot()
            if between is not None:
                between(node)
        return marks

    # The network of one node

    def cut(self, node: str, from_: Side = "zookeeper", *, silent: bool = True) -> FaultMark:
        """Cuts one node off from ZooKeeper or Kafka, and no other.

        Args:
            node: Its name.
            from_: ``zookeeper`` or ``kafka``.
            silent: Nothing arrives any more, and nobody is told; else connections are reset and refused.

        Raises:
            FaultRefused: It wasn't started with a proxy there.
        """
        return self._cut(node, from_, None, silent)

    def cut_leader(self, partition: int, from_: Side = "zookeeper", *, silent: bool = True) -> FaultMark:
        """Cuts off the node that leads a partition; the mark's target is its name.

        Raises:
            DrillError: Nobody leads it now.
        """
        self.require(_kind_of(from_))
        return self._cut(self.await_leader(partition), from_, partition, silent)

    def delay(self, node: str, seconds: float, from_: Side = "zookeeper") -> FaultMark:
        """Makes one node's way to ZooKeeper or Kafka slower by so many seconds, in each direction."""
        ways = self._ways(node, from_)
        mark = self._log.note(Kind.DELAY, node)
        for proxy in ways:
            proxy.delay(seconds)
        return mark

    def mend(self, node: str, from_: Side | None = None) -> FaultMark:
        """Ends what `cut` and `delay` did; what was held back arrives now. None: on every side."""
        sides = (from_,) if from_ is not None else tuple(side for name, side in self._proxies if name == node)
        ways = [proxy for side in sides for proxy in self._ways(node, side)]
        mark = self._log.note(Kind.MEND, node)
        for proxy in ways:
            proxy.heal()
        return mark

    # ZooKeeper

    def stop_zookeeper(self) -> FaultMark:
        """Ends all ZooKeeper servers; returns when they are gone."""
        servers = self._for(Kind.ZOOKEEPER_STOP)
        mark = self._log.note(Kind.ZOOKEEPER_STOP, "zookeeper")
        with ThreadPoolExecutor(len(servers.local.zookeeper_servers)) as pool:
            for ended in [pool.submit(server.stop) for server in servers.local.zookeeper_servers]:
                ended.result()
        return mark

    def start_zookeeper(self) -> FaultMark:
        """Starts every ZooKeeper server that isn't running; returns when they serve clients.

        Raises:
            EngineError: One didn't start.
        """
        servers = self._for(Kind.ZOOKEEPER_START)
        mark = self._log.note(Kind.ZOOKEEPER_START, "zookeeper")
        servers.start_stopped(servers.local.zookeeper_servers)
        return mark

    def return_zookeeper(self) -> float:
        """Starts every ZooKeeper server that isn't running, as `start_zookeeper`.

        Returns:
            When the first of them served clients again, in Unix milliseconds: it may be long before all do.

        Raises:
            EngineError: One didn't start.
        """
        servers = self._for(Kind.ZOOKEEPER_START)
        with FirstAnswer([server.spec.ready for server in servers.local.zookeeper_servers]) as first:
            self.start_zookeeper()
            return first.at_wall()

    def restart_zookeeper(self) -> FaultMark:
        """Ends all ZooKeeper servers and starts them again; the mark is that of the end."""
        mark = self.stop_zookeeper()
        self.start_zookeeper()
        return mark

    def kill_zookeeper_leader(self) -> FaultMark:
        """``kill -9`` of the server that leads the ensemble; `start_zookeeper` brings it back.

        Raises:
            FaultRefused: There is one server only.
            NotInTime: They have no leader.
        """
        servers = self._for(Kind.ZOOKEEPER_KILL)
        leader = wait_for(servers.zookeeper_leader, "ZooKeeper has a leader", timeout_s=_ELECTION_S)
        if leader is None:
            raise DrillError("ZooKeeper has no leader")
        mark = self._log.note(Kind.ZOOKEEPER_KILL, leader.name)
        leader.kill()
        return mark

    # Kafka

    def kill_broker(self, number: int = 1) -> FaultMark:
        """``kill -9`` of a broker; they count from 1.

        Raises:
            DrillError: There is no such broker.
        """
        server = self._for(Kind.BROKER_KILL).broker(number)
        mark = self._log.note(Kind.BROKER_KILL, server.name)
        server.kill()
        return mark

    def start_broker(self, number: int = 1) -> FaultMark:
        """Starts a broker that was killed; returns when the others know it.

        Raises:
            EngineError: It didn't start.
        """
        servers = self._for(Kind.BROKER_START)
        server = servers.broker(number)
        mark = self._log.note(Kind.BROKER_START, server.name)
        servers.start_stopped([server])
        return mark

    def restart_broker(self, number: int = 1) -> FaultMark:
        """Ends a broker in order and starts it again; returns when the others know it.

        Raises:
            EngineError: It didn't start.
        """
        servers = self._for(Kind.BROKER_RESTART)
        server = servers.broker(number)
        mark = self._log.note(Kind.BROKER_RESTART, server.name)
        server.stop()
        servers.start_stopped([server])
        return mark

    def heal(self) -> None:
        """Undoes every fault: thaws, mends, starts what was ended, and waits until every partition is led.

        Raises:
            EngineError: A process didn't start.
            NotInTime: Some partition has no leader in time.
        """
        for node in sorted(self._frozen):
            self.thaw(node)
        for node in {name for name, _ in self._proxies}:
            self.mend(node)
        if self._servers is not None:
            self._servers.heal()
        for node in sorted(set(self.nodes) - set(self.running)):
            self.start(node)
        self.await_all_led()

    def _running_node(self, name: str) -> NodeHandle:
        handle = self.node(name)
        if not handle.running:
            raise DrillError(f"{name} is not running")
        return handle

    def _kill(self, node: str, partition: int | None) -> FaultMark:
        self.require(Kind.KILL)
        handle = self._running_node(node)
        mark = self._log.note(Kind.KILL, node, partition)
        handle.kill()
        self._frozen.discard(node)
        return mark

    def _freeze(self, node: str, partition: int | None) -> FaultMark:
        self.require(Kind.FREEZE)
        handle = self._running_node(node)
        self._frozen.add(node)  # before: a thaw too many does no harm, one too few leaves it frozen
        mark = self._log.note(Kind.FREEZE, node, partition)
        handle.freeze()
        return mark

    def _cut(self, node: str, from_: Side, partition: int | None, silent: bool) -> FaultMark:
        ways = self._ways(node, from_)
        mark = self._log.note(_kind_of(from_), node, partition)
        for proxy in ways:
            if silent:
                proxy.cut()
            else:
                proxy.refuse()
        return mark

    def _ways(self, node: str, side: Side) -> list[TcpProxy]:
        self.require(_kind_of(side))
        self.node(node)
        return self._proxies[node, side]

    def _for(self, kind: Kind) -> DrillServers:
        self.require(kind)
        return self._given_servers()

    def _given_servers(self) -> DrillServers:
        if self._servers is None:
            raise FaultRefused("the servers of this cluster were not started here")
        return self._servers


def _kind_of(side: str) -> Kind:
    if side not in _CUTS:
        raise DrillError(f"a node can be cut off from 'zookeeper' or 'kafka', not from {side!r}")
    return _CUTS[side]
