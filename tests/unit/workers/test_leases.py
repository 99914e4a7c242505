"""Leases and claims are kept alive from outside the handler, and their loss reaches it."""

from __future__ import annotations

import time
from typing import cast

from relevo.consumer.offsets import Ownership
from relevo.dedup.store import Claim
from relevo.sender import Sender
from relevo.stats import WorkerStats
from relevo.worker.item import Item
from relevo.worker.leases import LeaseKeeper
from relevo_schemas.commands import ExtendJobs, LeaseRef, StartJobs
from tests.unit.workers.fakes import FakeRunner, FakeSender, FakeStore, activation

LONG_AGO = 3_600.0


class World:
    def __init__(
        self, *, lease_ms: int = 0, timeout: float | None = None, cancel_when_lost: bool = False
    ) -> None:
        self.sender = FakeSender()
        self.store = FakeStore()
        self.runner = FakeRunner()
        self.stats = WorkerStats()
        self.running: dict[str, Item] = {}
        self.keeper = LeaseKeeper(
            commands="c.commands",
            namespace="c:dedup:",
            identity="me",
            running=self.running,
            runner=self.runner,
            sender=cast("Sender", self.sender),
            store=self.store,
            lease_ms=lease_ms,
            claim_s=lambda lease: (lease_ms or lease) / 1_000,
            timeout=timeout,
            follower=None,
            superseded=lambda item, attempt: None,
            stats=self.stats,
            cancel_when_lost=cancel_when_lost,
        )

    def run(self, key: str, *, age: float = LONG_AGO, partition: int = 0, renew_in: float = 1_000.0) -> Item:
        entry = Ownership("t", 0, 1, 0).begin(0)
        assert entry is not None
        item = Item(entry, activation(key, partition=partition), f"token-{key}")
        item.running = True
        item.started_at = time.monotonic() - age
        item.renew_at = time.monotonic() + renew_in
        item.claim_until = time.monotonic() + 1_000
        self.store.claim([Claim(f"c:dedup:{key}", item.token, 30)])
        self.running[key] = item
        return item


def test_short_jobs_are_not_reported_as_started() -> None:
    """They just complete: it would double the commands of a busy worker."""
    world = World()
    world.run("short", age=0.0)
    world.keeper.tick()
    assert world.sender.sent == []


def test_long_jobs_are_reported_once_in_one_batch_per_partition() -> None:
    world = World()
    for key, partition in (("a", 0), ("b", 1), ("c", 0)):
        world.run(key, partition=partition)
    world.keeper.tick()
    world.keeper.tick()
    assert world.sender.sent == [
        StartJobs("me", (LeaseRef("a", 1, 30_000), LeaseRef("c", 1, 30_000))),
        StartJobs("me", (LeaseRef("b", 1, 30_000),)),
    ]
    assert world.stats.started_sent == 3


def test_a_new_attempt_of_a_running_job_is_reported_too() -> None:
    """Else the engine waits for somebody to start it."""
    world = World()
    item = world.run("a")
    world.keeper.tick()
    item.attempt = 2
    world.keeper.tick()
    assert world.sender.sent[-1] == StartJobs("me", (LeaseRef("a", 2, 30_000),))


def test_a_report_that_finds_no_room_is_made_later() -> None:
    world = World()
    world.run("a")
    world.sender.room = 0
    world.keeper.tick()
    world.sender.room = 10
    world.keeper.tick()
    assert world.sender.sent == [StartJobs("me", (LeaseRef("a", 1, 30_000),))]


def test_lease_and_claim_are_renewed_when_due() -> None:
    world = World()
    item = world.run("a", renew_in=-1)
    world.keeper.tick()
    world.keeper.tick()
    assert world.sender.sent[-1] == ExtendJobs("me", (LeaseRef("a", 1, 30_000),))
    assert world.store.calls[-1] == ("renew", ["c:dedup:a"])
    assert item.renew_at > time.monotonic()
    sent = len(world.sender.sent)
    world.keeper.tick()
    assert len(world.sender.sent) == sent


def test_a_types_own_lease_is_asked_for_at_the_start() -> None:
    world = World(lease_ms=90_000)
    world.run("a")
    world.keeper.tick()
    assert world.sender.sent == [StartJobs("me", (LeaseRef("a", 1, 90_000),))]


def test_a_lost_claim_reaches_the_handler() -> None:
    world = World()
    item = world.run("a", renew_in=-1)
    item.reported = 1
    world.store.now = 31
    world.store.claim([Claim("c:dedup:a", "other", 30)])
    world.keeper.tick()
    assert item.job.lost_reason == "another worker has claimed the job"
    assert world.stats.lost == 1
    assert world.runner.cancelled == []


def test_a_lost_claim_cancels_a_handler_whose_author_asked_for_it() -> None:
    """Once: what it does about it must not be cancelled again and again."""
    world = World(cancel_when_lost=True)
    item = world.run("a", renew_in=-1)
    item.reported = 1
    world.store.now = 31
    world.store.claim([Claim("c:dedup:a", "other", 30)])
    world.keeper.tick()
    item.renew_at = 0.0
    world.keeper.tick()
    assert world.runner.cancelled == [item]


def test_a_silent_store_costs_a_claim_only_when_its_time_is_up() -> None:
    world = World()
    item = world.run("a", renew_in=-1)
    item.reported = 1
    world.store.silent = "down"
    world.keeper.tick()
    assert not item.job.lost
    assert item.renew_at < time.monotonic() + 2, "asked again soon"
    item.renew_at = item.claim_until = time.monotonic() - 1
    world.keeper.tick()
    assert item.job.lost


def test_a_handler_that_hangs_is_cancelled_and_its_lease_left_to_run_out() -> None:
    world = World(timeout=10)
    item = world.run("a", renew_in=-1)
    item.reported = 1
    world.keeper.tick()
    world.keeper.tick()
    assert world.runner.cancelled == [item]
    assert item.job.lost
    assert world.sender.sent == []
    assert ("renew", ["c:dedup:a"]) not in world.store.calls


def test_a_lease_shorter_than_a_claim_is_renewed_in_time() -> None:
    """Renewed at a third of the claim it would have run out already, with the handler at work."""
    world = World(lease_ms=1_000)
    item = world.run("a")
    world.keeper.tick()
    assert item.renew_at <= time.monotonic() + 1 / 3
