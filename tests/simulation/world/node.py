"""A node: the real host, supervisor, terms and state machine on simulated surroundings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relevo_engine.core.channels import Channel, ChannelState
from relevo_engine.core.rules import Rules
from relevo_engine.machine import PartitionMachine
from relevo_partitions.errors import PartitionsError
from relevo_partitions.host import PartitionHost
from relevo_partitions.observer import Observer
from relevo_partitions.settings import HostSettings, StandbySettings, TermSettings
from relevo_partitions.snapshots.snapshotter import SnapshotSettings
from relevo_partitions.statemachine import Heard, Incoming, Term, Write
from tests.simulation.world.kafka_client import CLUSTER, KafkaClient, SimIO
from tests.simulation.world.oracle import ACTIVATIONS
from tests.simulation.world.pulse import SimPulse
from tests.simulation.world.runtime import SimRuntime, SimSignal
from tests.simulation.world.scheduler import Process
from tests.simulation.world.truth import Belief
from tests.simulation.world.zookeeper_client import SimZooKeeper

if TYPE_CHECKING:
    from tests.simulation.world.world import World

BLOCKED_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKnobs:
    """What differs between worlds."""

    partitions: int
    slots: int
    window: int
    session_timeout_s: float
    settle_s: float
    batch_max: int
    redispatch_after_ms: int
    replicas: int
    rebuild_max: int
    pulse: bool
    give_back_after_s: float
    snapshot_events: int
    """0: none are taken."""
    log_keep_s: float
    fetch_lag_s: float
    """How long a record takes to those who stand by, at most."""


class SimChannels:
    """Which types can be handed out; one that failed rests for a while."""

    def __init__(self, process: Process, slots: int) -> None:
        self._process = process
        self._open = Channel(ChannelState.OPEN, slots)
        self._blocked: dict[str, float] = {}

    def channel(self, job_type: str) -> Channel:
        until = self._blocked.get(job_type, 0.0)
        if until > self._process.scheduler.now:
            return Channel(ChannelState.BLOCKED, 0, "a write failed")
        return self._open

    def may_create(self, job_type: str) -> bool:
        return False

    def failed(self, topic: str) -> None:
        self._blocked[topic.removeprefix(ACTIVATIONS)] = self._process.scheduler.now + BLOCKED_S


class SimMachine(PartitionMachine):
    """The real machine; the node knows which one leads."""

    def __init__(self, node: SimNode, rules: Rules) -> None:
        super().__init__(rules, node.channels, cluster=CLUSTER, report_bug=node.report_bug)
        self._node = node
        self._announced = False
        self._decided: deque[Belief] = deque()

    def lead(self, term: Term, now: int) -> Any:
        self._node.leading[self._partition] = self
        self._announced = True
        return super().lead(term, now)

    def step(self, commands: Sequence[Incoming], now: int, heard: Heard | None = None) -> Sequence[Write]:
        writes = super().step(commands, now, heard)
        self._node.world.oracle.given_up(self._node.name, self, writes)
        if writes or self._announced:
            self._announced = False
            self._decided.append(self._node.world.oracle.belief(self))
        return writes

    def committed(self) -> Belief | None:
        """What the memory was when the transaction that has just committed was decided; None: a mere barrier.

        It may be ahead of it by one transaction now.
        """
        return self._decided.popleft() if self._decided else None


class NodeObserver(Observer):
    """Follows a node for the trace and the invariants."""

    def __init__(self, node: SimNode) -> None:
        self._node = node

    def role_changed(self, partition: int, before: str, after: str, reason: str) -> None:
        if after in ("FENCING", "REPLAYING", "ENDING"):
            self._node.leading.pop(partition, None)  # its memory may be ahead of the log
        if self._node.process.alive:
            self._node.note(f"p{partition}: {before} -> {after} {reason}")

    def committed(self, partition: int, commands: int, records: int, seconds: float) -> None:
        node = self._node
        machine = node.leading.get(partition)
        if machine is not None and node.process.alive:
            belief = machine.committed()
            if belief is not None:
                node.world.oracle.leader_committed(node.name, partition, belief)

    def note(self, event: str, **fields: Any) -> None:
        node = self._node
        if node.process.alive and event.startswith("snapshot"):
            # How long a slice took is of the machine this runs on, and no part of the world.
            said = {
                name: value for name, value in sorted(fields.items()) if not name.endswith(("_ms", "seconds"))
            }
            node.note(f"{event} {said}")

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        node = self._node
        if not node.process.alive:
            return
        node.note(f"p{partition} fault {kind}: {detail}")
        bug = kind in ("supervisor", "term_machine_failed", "standby_machine_failed")
        # Nothing is ever damaged here: a former leader that misses what its successor has deleted must know.
        bug = bug or kind in ("term_log_damaged", "log_tail_lost")
        if bug:
            node.world.oracle.violate("no bug", f"{node.name}: {kind}: {detail}")


class SimNode:
    """One incarnation of a node. Also its `Surroundings`."""

    def __init__(self, world: World, name: str, knobs: NodeKnobs) -> None:
        self.world = world
        self.name = name
        self.process = Process(world.scheduler, name)
        self.process.wall_offset = world.wall_offsets.get(name, 0.0)
        self.runtime = SimRuntime(self.process)
        self.kafka = KafkaClient(world.kafka, world.network, self.process, world.rng)
        self.channels = SimChannels(self.process, knobs.slots)
        self.leading: dict[int, SimMachine] = {}
        self.unclear: list[str] = []
        self.up = False
        self.incarnation = world.scheduler.token()
        self._knobs = knobs
        settings = HostSettings(
            node=name,
            address=f"{name}:1",
            kafka="kafka:1",
            zookeeper="zookeeper:1",
            partitions=knobs.partitions,
            cluster=CLUSTER,
            incarnation=self.incarnation,
            session_timeout_s=knobs.session_timeout_s,
            settle_s=knobs.settle_s,
            replicas=knobs.replicas,
            give_back_after_s=knobs.give_back_after_s,
            snapshots=_snapshots(knobs),
            standby=StandbySettings(idle_wait_s=0.25, stall_s=3.0),
            checkpoint=self._checkpoint,
            term=TermSettings(
                batch_max=knobs.batch_max, idle_wait_s=0.25, stall_s=3.0, rebuild_max=knobs.rebuild_max
            ),
        )
        self.host = PartitionHost(settings, self._make_machine, NodeObserver(self), self._topic_failed, self)
        self.process.spawn("main", self._main)

    def _main(self) -> None:
        try:
            self.host.start()
        except PartitionsError as error:
            self.note(f"doesn't start: {error}")
            self.world.again(self)
            return
        self.up = True

    def note(self, text: str) -> None:
        """A line of the trace."""
        self.world.scheduler.note(self.name, text)

    def report_bug(self, partition: int, offset: int, error: Exception) -> None:
        """A command whose decision failed."""
        self.world.oracle.violate("no bug", f"{self.name}: command {offset} of {partition}: {error!r}")

    def _make_machine(self, partition: int) -> SimMachine:
        return SimMachine(self, make_rules(partition, self._knobs))

    def _topic_failed(self, topic: str, reason: str) -> None:
        self.channels.failed(topic)

    def _checkpoint(self, partition: int, name: str) -> None:
        """A term is between two steps: a fault may strike as soon as its fiber lets others run."""
        scheduler = self.world.scheduler
        scheduler.at(scheduler.now, lambda: self.world.fates.step(self.name, name))

    # -- surroundings

    def zookeeper(self, on_state: Callable[[str], None], on_watch: Callable[[str], None]) -> SimZooKeeper:
        world = self.world
        return SimZooKeeper(
            world.zookeeper, world.network, self.process, world.rng,
            self._knobs.session_timeout_s, on_state, on_watch,
        )  # fmt: skip

    def partition(self, number: int) -> SimIO:
        return SimIO(self.kafka, number, self.unclear, self.world.shelves)

    def pulse(self, on_death: Callable[[str, str, float], None]) -> SimPulse | None:
        return SimPulse(self.world.pulses, self.process, on_death) if self._knobs.pulse else None

    # -- what clients and operators do

    def stop(self) -> None:
        """SIGTERM."""
        self.up = False

        def stop() -> None:
            self.note(f"stopped cleanly: {self.host.stop(10.0)}")
            self.world.ended(self)

        self.process.spawn("stop", stop)

    def read(self, partition: int) -> None:
        """A proven read, as the HTTP API makes one."""
        self.process.spawn("read", lambda: self._read(partition))

    def _read(self, partition: int) -> None:
        oracle = self.world.oracle
        floor = oracle.truths[partition].decided_seq
        answered = SimSignal(self.process)
        future = self.host.read(
            partition, lambda machine: oracle.answer(self.name, partition, machine, floor)
        )
        future.add_done_callback(lambda _: answered.set())
        answered.wait(30.0)


def _snapshots(knobs: NodeKnobs) -> SnapshotSettings | None:
    if not knobs.snapshot_events:
        return None
    return SnapshotSettings(events=knobs.snapshot_events, interval_s=1.0, log_keep_s=knobs.log_keep_s)


def make_rules(partition: int, knobs: NodeKnobs) -> Rules:
    """The rules of a small world."""
    return Rules(
        partition=partition,
        partitions=knobs.partitions,
        window=knobs.window,
        lease_expiries_max=4,
        redispatch_after_ms=knobs.redispatch_after_ms,
        recheck_ms=500,
    )
