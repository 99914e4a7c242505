"""A client: creates jobs, sends again what was not acknowledged, cancels some, and asks for reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relevo_schemas.codec import encode, job_spec
from relevo_schemas.commands import CancelJob, CreateJob, RetryJob, UpdateJob
from relevo_schemas.partitioning import partition_of
from tests.simulation.world.kafka_client import COMMANDS, KafkaClient, Producer
from tests.simulation.world.plans import JobPlan
from tests.simulation.world.runtime import EPOCH_S
from tests.simulation.world.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world.world import World

SEND_S: Final = 2.0


class SimClient:
    """The one client of a world; it never dies, but its link may."""

    def __init__(self, world: World, plans: tuple[JobPlan, ...], partitions: int) -> None:
        self._world = world
        self._partitions = partitions
        self.process = Process(world.scheduler, "client")
        self._client = KafkaClient(world.kafka, world.network, self.process, world.rng)
        self._producers = 0
        self.left = len(plans)
        for plan in plans:
            self.process.spawn(f"creator-{plan.key}", lambda plan=plan: self._create(plan))  # type: ignore[misc]
        self.process.spawn("reader", self._ask)
        self.process.spawn("operator", self._operate)

    def _send(self, key: str, value: bytes) -> None:
        """Until it is acknowledged; each try is a producer's own, which may double the record."""
        partition = partition_of(key, self._partitions)
        while True:
            self._producers += 1
            producer = Producer(self._client, f"client-{self._producers}")
            if producer.send(COMMANDS, partition, key.encode(), value, SEND_S):
                return

    def _create(self, plan: JobPlan) -> None:
        world, scheduler = self._world, self._world.scheduler
        scheduler.block(plan.at_s)
        run_at = int((EPOCH_S + scheduler.now + plan.run_in_s) * 1000) if plan.run_in_s else 0
        spec = job_spec(
            key=plan.key,
            type=plan.type,
            priority=plan.priority,
            retries=plan.retries,
            backoff_ms=100,
            backoff_max_ms=1_000,
            lease_ms=plan.lease_ms,
            run_at=run_at,
        )
        value = encode(CreateJob(spec))
        self._send(plan.key, value)
        world.oracle.acknowledged[plan.key] = "create"
        scheduler.note("client", f"{plan.key} is acknowledged")
        if plan.twice:
            scheduler.block(world.rng.random() ** 2 * 6)
            self._send(plan.key, value)
        if plan.cancel_after_s >= 0:
            scheduler.block(plan.cancel_after_s)
            self._send(plan.key, encode(CancelJob(plan.key, "no longer wanted")))
        self.left -= 1

    def _operate(self) -> None:
        """Retry each incident once, and change a job's priority now and then."""
        world, tried = self._world, set[str]()
        while not world.calm:
            world.scheduler.block(1.0 + world.rng.random())
            jobs = [each for truth in world.oracle.truths for each in truth.fold.jobs.items()]
            stuck = next((key for key, job in jobs if job.state == "INCIDENT" and key not in tried), None)
            if stuck is not None:
                tried.add(stuck)
                self._send(stuck, encode(RetryJob(stuck, 1)))
            elif jobs and world.rng.random() < 0.3:
                key = jobs[int(world.rng.random() * len(jobs))][0]
                self._send(key, encode(UpdateJob(key, int(world.rng.random() * 10), None)))

    def _ask(self) -> None:
        world = self._world
        while True:
            world.scheduler.block(0.1 + world.rng.random() * 0.4)
            nodes = [node for node in world.nodes.values() if node.up and node.process.alive]
            leaders = [node for node in nodes if node.leading]
            choice = leaders if leaders and world.rng.random() < 0.8 else nodes
            if choice:
                node = choice[int(world.rng.random() * len(choice))]
                node.read(int(world.rng.random() * self._partitions))
