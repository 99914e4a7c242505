"""A worker process: the SDK's real gate, claims, endings, leases and offsets, on fibers.

Simulated are the threads around them: the consumer and its group, the producer, the handlers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from relevo.consumer.offsets import OffsetTracker, Ownership
from relevo.stats import WorkerStats
from relevo.worker.claim_keeper import ClaimKeeper
from relevo.worker.gate import Gate
from relevo.worker.item import Item
from relevo.worker.keeper_thread import Keeper
from relevo.worker.leases import LeaseKeeper
from relevo.worker.outcomes import Completed, Errored, Failed
from relevo.worker.slot_reports import SlotReports
from tests.simulation.world.kafka import NotMember
from tests.simulation.world.kafka_client import COMMANDS, KafkaClient, Producer
from tests.simulation.world.network import NoAnswer
from tests.simulation.world.oracle import ACTIVATIONS
from tests.simulation.world.runtime import SimMailbox
from tests.simulation.world.scheduler import Process
from tests.simulation.world.store import RemoteStore

if TYPE_CHECKING:
    from tests.simulation.world.world import World

BUFFER: Final = 12
HEARTBEAT_S: Final = 0.5
COMMIT_S: Final = 0.25
IDLE_S: Final = 0.3
DRAIN_S: Final = 1.0
CLAIM_MIN_S: Final = 1.0


@dataclass(frozen=True)
class Unacknowledged:
    """What the producer says of a record without an acknowledgement."""

    def code(self) -> int:
        return -192  # as librdkafka says of a record that timed out

    def str(self) -> str:
        return "no acknowledgement"


class SimSender:
    """The producer of a worker, as `relevo.sender.Sender` looks to those who use it."""

    def __init__(self, client: KafkaClient, who: str) -> None:
        self._producer = Producer(client, who)
        self._queue = SimMailbox(client.process)
        self._hooks: list[Callable[[], None]] = []

    def after_reports(self, hook: Callable[[], None]) -> None:
        self._hooks.append(hook)

    def try_send(self, topic: str, key: bytes, value: bytes, report: Any, partition: int = -1) -> bool:
        self._queue.put((topic, partition, key, value, report))
        return True

    def send_batch(self, topic: str, messages: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        for each in messages:
            self._queue.put((topic, each["partition"], each["key"], each["value"], each["callback"]))
        return [], []

    def run(self) -> None:
        """The producer's thread."""
        while True:
            try:
                topic, partition, key, value, report = self._queue.get(60.0)
            except Exception as error:
                if type(error).__name__ != "Empty":
                    raise
                continue
            acknowledged = self._producer.send(topic, partition, key, value)
            report(None if acknowledged else Unacknowledged(), _NoOffset())
            for hook in self._hooks:
                hook()


class _NoOffset:
    def offset(self) -> None:
        return None


class SimRunner:
    """Runs the handlers; see `relevo.worker.execution.Runner`."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker

    def submit(self, items: Sequence[Item]) -> None:
        for item in items:
            self._worker.process.spawn("handler", partial(self._worker.handle, item))

    def cancel(self, item: Item) -> None:
        """The handler sees that its attempt is lost."""

    def close(self) -> None:
        """Nothing is held."""


class SimWorker:
    """One incarnation of a worker process, for one job type."""

    def __init__(self, world: World, name: str, job_type: str) -> None:
        self.world = world
        self.name = name
        self.topic = ACTIVATIONS + job_type
        self.process = Process(world.scheduler, name)
        self.who = f"{name}-{world.scheduler.token()}"
        self.client = KafkaClient(world.kafka, world.network, self.process, world.rng)
        self._link = world.network.link(name, "kafka")
        self.tracker = OffsetTracker()
        self.stopping = False
        self._places: dict[int, tuple[Ownership, int]] = {}
        """Per partition: the ownership and the group's generation of it."""
        self._positions: dict[int, int] = {}
        sender: Any = SimSender(self.client, self.who)
        store = RemoteStore(world.store, world.network, self.process, self.who)
        runner: Any = SimRunner(self)
        stats = WorkerStats()
        self.gate = Gate(
            commands=COMMANDS,
            namespace="",
            tracker=self.tracker,
            sender=sender,
            store=store,
            concurrency=4,
            claim_s=lambda lease_ms: max(CLAIM_MIN_S, lease_ms / 1000),
            ttl=None,
            stats=stats,
            name=name,
            on_fault=lambda: None,
        )
        inbox: Any = SimMailbox(self.process)
        self.gate._inbox = inbox
        self.gate._runner = runner
        self._leases = LeaseKeeper(
            commands=COMMANDS,
            identity=self.who,
            kept=self.gate.kept,
            runner=runner,
            sender=sender,
            lease_ms=0,
            timeout=None,
            follower=None,
            superseded=self.gate.superseded,
            stats=stats,
            slots=SlotReports(COMMANDS, self.who, job_type, self.tracker, sender),
        )
        self._claims = ClaimKeeper(
            namespace="",
            kept=self.gate.kept,
            store=store,
            claim_s=lambda lease_ms: max(CLAIM_MIN_S, lease_ms / 1000),
            lose=self._leases.lose,
            stats=stats,
        )
        self.process.spawn("sender", sender.run)
        self.process.spawn("gate", self._run_gate)
        self.process.spawn("leases", lambda: self._run_keeper(self._leases))
        self.process.spawn("claims", lambda: self._run_keeper(self._claims))
        self.process.spawn("consumer", self._run_consumer)

    def stop(self) -> None:
        """SIGTERM."""
        self.stopping = True

    # -- threads

    def _run_gate(self) -> None:
        while self.gate._turn():
            pass

    def _run_keeper(self, keeper: Keeper) -> None:
        while True:
            self.world.scheduler.block(0.1)
            keeper.tick()

    def handle(self, item: Item) -> None:
        """The user's handler: thinks, has its effect, thinks again."""
        world, scheduler = self.world, self.world.scheduler
        plan = world.plan_of(item.key)
        if plan.failures:
            item.job.checkpoint({"attempt": item.attempt, "before": item.job.progress})
        scheduler.block(plan.before_s)
        if item.job.lost:
            item.outcome = Failed("lost")
        elif item.attempt <= plan.failures:
            item.outcome = Failed("on purpose", retry_in_ms=plan.retry_in_ms)
        elif plan.error:
            item.outcome = Errored("NO", "on purpose")
        else:
            world.oracle.effect(self.who, item.key)
            scheduler.block(plan.after_s)
            item.outcome = Completed(b"{}")
        self.gate.finished([item])

    # -- the consumer

    def _run_consumer(self) -> None:
        scheduler = self.world.scheduler
        heartbeat_at = commit_at = 0.0
        while not self.stopping:
            if scheduler.now >= heartbeat_at:
                heartbeat_at = scheduler.now + HEARTBEAT_S
                self._heartbeat()
            if scheduler.now >= commit_at:
                commit_at = scheduler.now + COMMIT_S
                self._commit(None)
            if not self._poll():
                self._await_records(IDLE_S * (0.5 + self.world.rng.random() / 2))
        self._leave()

    def _await_records(self, seconds: float) -> None:
        """A fetch is answered as soon as there is something, or after a while."""
        scheduler = self.world.scheduler
        ticket = scheduler.ticket()
        places = [self.client.kafka.partition(self.topic, number) for number in self._places]
        for place in places:
            place.waiting.append(ticket)
        if scheduler.block(seconds):
            scheduler.block(self.client.network.delay(self._link))
        for place in places:
            if ticket in place.waiting:
                place.waiting.remove(ticket)

    def _heartbeat(self) -> None:
        group = self.world.groups
        try:
            told = self.client.call("heartbeat", lambda: group.heartbeat(self.topic, self.who))
        except NoAnswer:
            return
        for number, (_, generation) in list(self._places.items()):
            if told.owned.get(number) != generation:
                self.tracker.end([(self.topic, number)])
                del self._places[number]
        revoked = [number for number in told.revoked if number in self._places]
        if revoked:
            self._give_back(revoked)
        for number, generation in sorted(told.owned.items()):
            if number not in self._places and number not in told.revoked:
                self._take_over(number, generation)
            elif number in told.revoked and number not in revoked:
                self._release(number)

    def _take_over(self, number: int, generation: int) -> None:
        kafka = self.client.kafka
        try:
            start = self.client.call("committed", lambda: kafka.read_offset(self.topic, number))
            end = self.client.call("bounds", lambda: kafka.bounds(self.topic, number)[1])
        except NoAnswer:
            return
        owned = self.tracker.assign(self.topic, number, start, end)
        self._places[number] = owned, generation
        self._positions[number] = start

    def _give_back(self, numbers: list[int]) -> None:
        """Drain, commit, let go: as the consumer does in its revoke callback."""
        scheduler = self.world.scheduler
        closed = self.tracker.close([(self.topic, number) for number in numbers])
        deadline = scheduler.now + DRAIN_S
        while any(owned.running for owned in closed) and scheduler.now < deadline:
            scheduler.block(0.05)
        self._commit(closed)
        self.tracker.end([(self.topic, number) for number in numbers])
        for number in numbers:
            self._places.pop(number, None)
            self._release(number)

    def _release(self, number: int) -> None:
        group = self.world.groups
        with contextlib.suppress(NoAnswer):  # asked for again with the next heartbeat
            self.client.call("release", lambda: group.release(self.topic, self.who, number))

    def _leave(self) -> None:
        self._give_back(sorted(self._places))
        group = self.world.groups
        with contextlib.suppress(NoAnswer):  # the group notices by itself
            self.client.call("leave", lambda: group.leave(self.topic, self.who))
        self.world.ended(self)

    def _poll(self) -> bool:
        if not self.client.reachable:
            return False
        room = BUFFER - self.tracker.unfinished
        got = False
        for number in sorted(self._places):
            if room <= 0:
                break
            place = self.client.kafka.partition(self.topic, number)
            found, self._positions[number] = place.committed(self._positions[number], room)
            entries = self.tracker.begin([(self.topic, number, record.offset) for record in found])
            arrivals = [
                (entry, record.value or b"")
                for entry, record in zip(entries, found, strict=True)
                if entry is not None
            ]
            if arrivals:
                got = True
                room -= len(arrivals)
                self.gate.deliver(arrivals)
        if got:
            self.world.scheduler.block(0.001)
        return got

    def _commit(self, only: list[Ownership] | None) -> None:
        group = self.world.groups
        for owned, offset in self.tracker.committable(only):
            place = self._places.get(owned.partition)
            if place is None or place[0] is not owned:
                continue
            commit = partial(group.commit, self.topic, owned.partition, self.who, place[1], offset)
            try:
                self.client.call("commit-offset", commit)
            except (NoAnswer, NotMember):
                continue
            self.tracker.committed(owned, offset)
