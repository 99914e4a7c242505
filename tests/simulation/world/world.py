"""A whole system from one seed: nodes, workers, a client, Kafka, ZooKeeper, a dedup store, and the faults."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import relevo.dedup.link
import relevo.dedup.memory
import relevo.worker.claim_keeper
import relevo.worker.claims
import relevo.worker.endings
import relevo.worker.gate
import relevo.worker.leases
from relevo_engine.core.channels import FixedChannels
from relevo_engine.machine import PartitionMachine
from relevo_partitions.snapshots import snapshotter
from tests.simulation.world.client import SimClient
from tests.simulation.world.faults import Fates, faults_of
from tests.simulation.world.group import Coordinator
from tests.simulation.world.invariants import Violation
from tests.simulation.world.kafka import Kafka
from tests.simulation.world.kafka_client import CLUSTER, COMMANDS, LOG
from tests.simulation.world.network import Network
from tests.simulation.world.node import SimNode, make_rules
from tests.simulation.world.oracle import ACTIVATIONS, Oracle
from tests.simulation.world.plans import CALM_AT_S, JobPlan, shape_of
from tests.simulation.world.pulse import PulseNet
from tests.simulation.world.runtime import EPOCH_S
from tests.simulation.world.scheduler import Process, Scheduler
from tests.simulation.world.snapshots import Shelves
from tests.simulation.world.store import StoreServer
from tests.simulation.world.worker import SimWorker
from tests.simulation.world.zookeeper import Ensemble

WHOLE_EVERY: Final = 20
"""Every so many-th seed compares all that can be compared, the others a third of it."""
DRAIN_S: Final = 120.0
"""So long after the last fault everything must be done."""
_TIMED: Final = (
    relevo.worker.gate,
    relevo.worker.claims,
    relevo.worker.endings,
    relevo.worker.claim_keeper,
    relevo.worker.leases,
    relevo.dedup.link,
    relevo.dedup.memory,
)
"""Modules that ask the module `time`."""


@dataclass
class Report:
    """How a world ended."""

    seed: int
    violation: Violation | None
    trace: list[str]
    digest: str
    seconds: float
    """Virtual time that passed."""
    steps: int
    counts: Counter[str] = field(default_factory=Counter)
    """Of jobs, commits, reads, takeovers."""
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """Steps that processes came to."""
    struck: Counter[str] = field(default_factory=Counter)
    """Steps that a fault struck in."""


class World:
    """Everything, made from ``seed``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        shape = shape_of(random.Random(f"shape {seed}"))
        self.shape = shape
        self.scheduler = Scheduler(self.rng)
        self.scheduler.digest = hashlib.blake2b(digest_size=16)
        self.network = Network(self.scheduler, self.rng)
        self.kafka = Kafka(self.scheduler, self.rng)
        self.zookeeper = Ensemble(self.scheduler, self.rng)
        self.groups = Coordinator(self.scheduler, self.kafka)
        self.pulses = PulseNet(self.network)
        self.wall_offsets: dict[str, float] = {}
        self.calm = False
        partitions = shape.knobs.partitions
        self.kafka.create(LOG, partitions)
        self.kafka.create(COMMANDS, partitions)
        for job_type in shape.types:
            self.kafka.create(ACTIVATIONS + job_type, shape.knobs.slots)
            self.groups.create(ACTIVATIONS + job_type)
        self.shelves = Shelves(partitions)
        self.oracle = Oracle(
            self.scheduler, self.kafka, self.shelves, partitions, self._plain_machine, seed % WHOLE_EVERY == 0
        )
        self.store = StoreServer(lambda: self.scheduler.now + 1000.0, self.oracle)
        self._plans = {plan.key: plan for plan in shape.jobs}
        self.nodes: dict[str, SimNode] = {}
        self.workers: dict[str, SimWorker] = {}
        self._restart_at: dict[str, float] = {}
        self.fates = Fates(self, faults_of(random.Random(f"faults {seed}")))
        self.network.on_step = self.fates.step
        for name in shape.nodes:
            self.network.link(name, "kafka").slow_fetch_s = shape.knobs.fetch_lag_s
            self.scheduler.at(self.rng.random() * 0.5, partial(self.start, name))
        for name in shape.workers:
            self.scheduler.at(self.rng.random(), partial(self.start, name))
        self.client = SimClient(self, shape.jobs, partitions)

    def _plain_machine(self, partition: int) -> PartitionMachine:
        return PartitionMachine(make_rules(partition, self.shape.knobs), FixedChannels(), cluster=CLUSTER)

    def plan_of(self, key: str) -> JobPlan:
        """What the handler of this job does."""
        return self._plans[key]

    # -- processes come and go

    def process(self, name: str) -> Process | None:
        """The present incarnation's."""
        each = self.nodes.get(name) or self.workers.get(name)
        return each.process if each is not None else None

    def start(self, name: str) -> None:
        """Start a process, unless it runs."""
        process = self.process(name)
        if process is not None and process.alive:
            return
        self.scheduler.note(name, "starts")
        if name in self.shape.nodes:
            self.nodes[name] = SimNode(self, name, self.shape.knobs)
        else:
            types = self.shape.types
            number = self.shape.workers.index(name)
            self.workers[name] = SimWorker(self, name, types[number % len(types)])

    def crash(self, name: str, seconds: float) -> None:
        """Kill -9, and start anew after a while."""
        process = self.process(name)
        if process is not None and process.alive:
            self.scheduler.note(name, "is killed")
            process.kill()
            self.mourn(name)
        self.scheduler.after(seconds, partial(self.start, name))

    def mourn(self, name: str) -> None:
        """The operating system closes a dead process' sockets, and its peers see it."""
        node = self.nodes.get(name)
        if node is not None:
            self.pulses.died(name, node.incarnation)

    def freeze(self, name: str, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        process = self.process(name)
        if process is None:
            return
        process.freeze()
        self.scheduler.after(seconds, partial(self._thaw, name, process))

    def _thaw(self, name: str, process: Process) -> None:
        if process.alive and process.frozen:
            self.scheduler.note(name, "goes on")
            process.thaw()

    def terminate(self, name: str, seconds: float) -> None:
        """SIGTERM, and start anew some time after the end."""
        self._restart_at[name] = self.scheduler.now + seconds
        each = self.nodes.get(name) or self.workers.get(name)
        if each is not None and each.process.alive:
            self.scheduler.note(name, "is asked to stop")
            each.stop()

    def ended(self, each: SimNode | SimWorker) -> None:
        """A process has ended by itself. It is taken away once its fiber has run out."""
        at = max(self._restart_at.get(each.name, 0.0), self.scheduler.now)
        self.scheduler.at(self.scheduler.now, each.process.kill)
        self.scheduler.at(self.scheduler.now, partial(self.mourn, each.name))
        self.scheduler.at(at + 0.001, partial(self.start, each.name))

    def again(self, node: SimNode) -> None:
        """A node could not start: whoever watches over it tries again."""
        self._restart_at[node.name] = self.scheduler.now + 0.5
        self.ended(node)

    # -- the run

    def run(self) -> Report:
        """Let it all happen, then see that everything ends well."""
        with _simulated_time(self.scheduler):
            violation = self._run()
            self._bury()
        scheduler = self.scheduler
        trace = [f"{at:9.4f} {who:10} {what}" for at, who, what in scheduler.trace]
        counts = Counter(
            jobs=len(self.oracle.acknowledged),
            commits=self.oracle.commits,
            reads=self.oracle.reads,
            snapshots=self.oracle.snapshots,
            trims=self.oracle.trims,
            hashes=self.oracle.hashes_compared,
            epochs=sum(truth.fold.epoch for truth in self.oracle.truths),
            effects=sum(len(each) for each in self.oracle.effects.values()),
            repeated=sum(len(each) - 1 for each in self.oracle.effects.values()),
        )
        digest = scheduler.digest.hexdigest()
        fates = self.fates
        return Report(
            self.seed, violation, trace, digest, scheduler.now, scheduler.steps, counts, fates.counts,
            fates.seen, fates.struck,
        )  # fmt: skip

    def _run(self) -> Violation | None:
        scheduler = self.scheduler
        try:
            scheduler.run(CALM_AT_S, lambda: False)
            self._be_calm()
            scheduler.run(CALM_AT_S + DRAIN_S, self._drained)
            self._judge()
        except Violation as violation:
            return violation
        except AssertionError as error:
            return Violation("no bug", f"{type(error).__name__}: {error}")
        except Exception as error:
            logging.getLogger(__name__).exception("a fiber raised")
            return Violation("no bug", f"{type(error).__name__}: {error}")
        return None

    def _be_calm(self) -> None:
        self.calm = True
        self.scheduler.note("world", "no more faults")
        self.fates.calm()
        self.network.clear()
        self.kafka.unblock()
        for name in (*self.shape.nodes, *self.shape.workers):
            process = self.process(name)
            if process is not None and process.frozen:
                self._thaw(name, process)
            self.start(name)
        for node in self.nodes.values():
            node.unclear.clear()

    def _drained(self) -> bool:
        if self.client.left:
            return False
        return not self.oracle.unfinished() and not self.oracle.unanswered()

    def _judge(self) -> None:
        if self.client.left:
            raise Violation("liveness", f"{self.client.left} creators haven't come through")
        lost = self.oracle.unanswered()
        led = [truth.fold.epoch for truth in self.oracle.truths]
        if not all(led):
            raise Violation("liveness", f"a partition was never led: epochs {led}")
        if lost:
            raise Violation("no accepted job lost", "; ".join(lost[:5]))
        self.oracle.check_snapshots()
        if self.scheduler.failure is not None:
            raise self.scheduler.failure
        open_jobs = self.oracle.unfinished()
        if open_jobs:
            raise Violation("liveness", f"{DRAIN_S:g} s after the last fault: {'; '.join(open_jobs[:5])}")

    def _bury(self) -> None:
        names = (*self.nodes, *self.workers)
        for process in (*(self.process(name) for name in names), self.client.process):
            if process is not None:
                process.kill()


class _SimTime:
    """The module `time`, as far as workers use it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now + 1000.0

    def time(self) -> float:
        return EPOCH_S + self._scheduler.now


@contextlib.contextmanager
def _simulated_time(scheduler: Scheduler) -> Iterator[None]:
    """The SDK asks the module `time`: here it gets the world's."""
    before: list[tuple[Any, Any]] = [(module, vars(module)["time"]) for module in _TIMED]
    quiet = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    items = snapshotter.ITEMS_PER_PIECE
    try:
        for module, _ in before:
            module.time = _SimTime(scheduler)
        vars(snapshotter)["ITEMS_PER_PIECE"] = 2  # several slices for a handful of jobs
        yield
    finally:
        vars(snapshotter)["ITEMS_PER_PIECE"] = items
        for module, original in before:
            module.time = original
        logging.disable(quiet)
        gc.unfreeze()  # a node that loads a snapshot sets its objects apart, for a life that is over here
