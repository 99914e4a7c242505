"""A gate with everything around it faked, whose turns the test takes itself."""

from __future__ import annotations

from typing import cast

from relevo.consumer.offsets import Entry, OffsetTracker
from relevo.sender import Sender
from relevo.stats import WorkerStats
from relevo.worker.gate import CommitFirst, Gate
from relevo.worker.outcomes import Outcome
from relevo.worker.solitude import Solitude
from tests.unit.workers.fakes import FakeRunner, FakeSender, FakeStore

TOPIC = "c.activations.send-email"


class World:
    """A gate whose turns the test takes itself."""

    def __init__(
        self,
        concurrency: int = 10,
        *,
        at_most_once: bool = False,
        solitude: Solitude | None = None,
        suspect_after: int | None = 2,
        ordered: bool = False,
        commit_first: CommitFirst | None = None,
    ) -> None:
        self.tracker = OffsetTracker()
        self.sender = FakeSender()
        self.store = FakeStore()
        self.runner = FakeRunner()
        self.stats = WorkerStats()
        self.faults: list[bool] = []
        self.gate = Gate(
            commands="c.commands",
            namespace="c:dedup:",
            tracker=self.tracker,
            sender=cast("Sender", self.sender),
            store=None if at_most_once else self.store,
            concurrency=concurrency,
            claim_s=lambda lease_ms: lease_ms / 1_000,
            ttl=None,
            stats=self.stats,
            name="send-email",
            on_fault=lambda: self.faults.append(True),
            solitude=solitude,
            suspect_after=suspect_after,
            order_prefix="c:order:send-email:" if ordered else None,
            commit_first=commit_first,
        )
        self.gate._runner = self.runner
        for partition in (0, 1):
            self.tracker.assign(TOPIC, partition, 0)
        self.offsets = {0: 0, 1: 0}

    def arrive(self, *values: bytes, slot: int = 0) -> list[Entry]:
        entries = []
        for _ in values:
            entries += self.tracker.begin([(TOPIC, slot, self.offsets[slot])])
            self.offsets[slot] += 1
        arrived = [entry for entry in entries if entry is not None]
        self.gate.deliver(list(zip(arrived, values, strict=True)))
        self.turn()
        return arrived

    def turn(self) -> None:
        """One round, without waiting for what is due later."""
        self.gate._inbox.put(lambda: None)
        self.gate._turn()

    def later(self) -> None:
        """Bring forward what waits for its time, and take a turn."""
        later = self.gate._later
        for due, _, item in list(later._heap):
            if item.due == due:
                later.put(item, 0.001)
        link = self.gate._claims._store
        if link is not None:
            link.pause_until = 0.0
        self.turn()

    def end(self, outcome: Outcome, *keys: str) -> None:
        """All running handlers end alike, or those of ``keys``."""
        ended = [item for item in self.runner.running if not keys or item.key in keys]
        self.runner.running = [item for item in self.runner.running if item not in ended]
        for item in ended:
            item.outcome = outcome
        self.gate.finished(ended)
        self.turn()

    def acknowledge(self, error: object = None) -> None:
        self.sender.acknowledge(error)
        self.turn()

    def committable(self) -> dict[int, int]:
        return {owned.partition: offset for owned, offset in self.tracker.committable()}
