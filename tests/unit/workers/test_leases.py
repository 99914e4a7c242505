"""Leases and claims are kept alive from outside the handler, and their loss reaches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import cast

import pytest

from relevo.consumer.offsets import Ownership
from relevo.dedup.store import Answer, Claim, Mine
from relevo.follower import Follower, Interest
from relevo.sender import Sender
from relevo.stats import WorkerStats
from relevo.worker.claim_keeper import ClaimKeeper
from relevo.worker.item import Item
from relevo.worker.leases import LeaseKeeper
from relevo_schemas.commands import ExtendJobs, LeaseRef, StartJobs
from tests.unit.workers.fakes import CREATED, FakeRunner, FakeSender, FakeStore, activation

LONG_AGO = 3_600.0


class LateFollower:
    """Gets to its work when a test says so."""

    def __init__(self) -> None:
        self.asked: list[Future[Interest]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.cancelled = 0

    def follow(self, *_: object, **__: object) -> Future[Interest]:
        """See `Follower.follow`."""
        self.meanwhile()
        self.asked.append(Future())
        return self.asked[-1]

    def begin(self) -> None:
        """What was asked for is followed from now on."""
        self.asked.pop().set_result(cast("Interest", self))

    def cancel(self) -> None:
        """As an `Interest`."""
        self.cancelled += 1


class World:
    def __init__(
        self,
        *,
        lease_ms: int = 0,
        timeout: float | None = None,
        cancel_when_lost: bool = False,
        follower: LateFollower | None = None,
    ) -> None:
        self.sender = FakeSender()
        self.store = FakeStore()
        self.runner = FakeRunner()
        self.stats = WorkerStats()
        self.kept: dict[str, Item] = {}
        self.keeper = LeaseKeeper(
            commands="c.commands",
            identity="me",
            kept=self.kept,
            runner=self.runner,
            sender=cast("Sender", self.sender),
            lease_ms=lease_ms,
            timeout=timeout,
            follower=cast("Follower", follower) if follower is not None else None,
            superseded=lambda item, attempt: None,
            stats=self.stats,
            cancel_when_lost=cancel_when_lost,
        )
        self.claims = ClaimKeeper(
            namespace="c:dedup:",
            kept=self.kept,
            store=self.store,
            claim_s=lambda lease: (lease_ms or lease) / 1_000,
            lose=self.keeper.lose,
            stats=self.stats,
        )

    def run(self, key: str, *, age: float = LONG_AGO, partition: int = 0, renew_in: float = 1_000.0) -> Item:
        entry = Ownership("t", 0, 1, 0).begin(0)
        assert entry is not None
        item = Item(entry, activation(key, partition=partition), f"token-{key}")
        item.running = True
        item.started_at = time.monotonic() - age
        item.renew_at = item.claim_due = time.monotonic() + renew_in
        item.claim_until = time.monotonic() + 1_000
        self.store.claim([Claim(f"c:dedup:{key}", item.token, 30)])
        self.kept[key] = item
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
        StartJobs("me", (LeaseRef("a", CREATED, 1, 30_000), LeaseRef("c", CREATED, 1, 30_000))),
        StartJobs("me", (LeaseRef("b", CREATED, 1, 30_000),)),
    ]
    assert world.stats.started_sent == 3


def test_a_new_attempt_of_a_running_job_is_reported_too() -> None:
    """Else the engine waits for somebody to start it."""
    world = World()
    item = world.run("a")
    world.keeper.tick()
    item.attempt = 2
    world.keeper.tick()
    assert world.sender.sent[-1] == StartJobs("me", (LeaseRef("a", CREATED, 2, 30_000),))


def test_a_report_that_finds_no_room_is_made_later() -> None:
    world = World()
    world.run("a")
    world.sender.room = 0
    world.keeper.tick()
    world.sender.room = 10
    world.keeper.tick()
    assert world.sender.sent == [StartJobs("me", (LeaseRef("a", CREATED, 1, 30_000),))]


def test_lease_and_claim_are_renewed_when_due() -> None:
    world = World()
    item = world.run("a", renew_in=-1)
    for _ in range(2):
        world.keeper.tick()
        world.claims.tick()
    assert world.sender.sent[-1] == ExtendJobs("me", (LeaseRef("a", CREATED, 1, 30_000),))
    assert world.store.calls[1:] == [("renew", ["c:dedup:a"])]
    assert item.renew_at > time.monotonic()
    sent = len(world.sender.sent)
    world.keeper.tick()
    assert len(world.sender.sent) == sent


def test_a_claim_is_renewed_although_kafka_takes_no_report() -> None:
    world = World()
    item = world.run("a", renew_in=-1)
    world.sender.room = 0
    world.keeper.tick()
    world.claims.tick()
    assert item.reported == 0
    assert world.store.calls[-1] == ("renew", ["c:dedup:a"])


def test_a_renewal_that_comes_after_the_claim_was_given_back_leaves_none() -> None:
    """The next attempt would wait a whole claim for nobody."""
    world = World()
    item = world.run("a", renew_in=-1)
    renew = world.store.renew

    def late(claims: Sequence[Claim]) -> list[Answer]:
        item.given_back = True
        world.store.release([Claim("c:dedup:a", item.token, 30)])
        return renew(claims)

    world.store.renew = late  # type: ignore[method-assign]
    world.claims.tick()
    assert world.store.claim([Claim("c:dedup:a", "next", 30)]) == [Mine()]


@pytest.mark.parametrize("ends", ["before", "after"])
def test_a_job_that_ends_while_it_begins_to_be_watched_is_not_watched_for_ever(ends: str) -> None:
    """Each would keep a whole partition of the log being read, to the end of the process."""
    follower = LateFollower()
    world = World(follower=follower)
    item = world.run("a", renew_in=-1)
    item.reported = 1

    def end() -> None:
        """As the gate does it."""
        item.running = False
        item.unwatch()

    if ends == "before":
        end()  # the keeper has copied what runs, and doesn't know yet
        world.keeper.tick()
        assert follower.asked == []
        return
    follower.meanwhile = end
    world.keeper.tick()
    follower.begin()
    assert follower.cancelled == 1


def test_what_has_ended_and_waits_for_its_done_mark_keeps_lease_and_claim() -> None:
    """Its handler is over, however long its type lets one run: nobody is cancelled or told of a loss."""
    world = World(timeout=10)
    item = world.run("a", renew_in=-1)
    item.running = False
    world.store.silent = "down"
    for _ in range(2):
        item.renew_at = item.claim_due = item.claim_until = 0.0
        world.keeper.tick()
        world.claims.tick()
    assert [type(each) for each in world.sender.sent] == [StartJobs, ExtendJobs]
    assert world.store.calls[-2:] == [("renew", ["c:dedup:a"])] * 2
    assert (world.runner.cancelled, item.job.lost, item.timed_out) == ([], False, False)


def test_a_types_own_lease_is_asked_for_at_the_start() -> None:
    world = World(lease_ms=90_000)
    world.run("a")
    world.keeper.tick()
    assert world.sender.sent == [StartJobs("me", (LeaseRef("a", CREATED, 1, 90_000),))]


def test_a_lost_claim_reaches_the_handler() -> None:
    world = World()
    item = world.run("a", renew_in=-1)
    item.reported = 1
    world.store.now = 31
    world.store.claim([Claim("c:dedup:a", "other", 30)])
    world.claims.tick()
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
    world.claims.tick()
    item.claim_due = 0.0
    world.claims.tick()
    assert world.runner.cancelled == [item]


def test_a_silent_store_costs_a_claim_only_when_its_time_is_up() -> None:
    world = World()
    item = world.run("a", renew_in=-1)
    item.reported = 1
    world.store.silent = "down"
    world.claims.tick()
    assert not item.job.lost
    assert item.claim_due < time.monotonic() + 2, "asked again soon"
    item.claim_due = item.claim_until = time.monotonic() - 1
    world.claims.tick()
    assert item.job.lost


def test_a_handler_that_hangs_is_cancelled_and_its_lease_left_to_run_out() -> None:
    world = World(timeout=10)
    item = world.run("a", renew_in=-1)
    item.reported = 1
    for _ in range(2):
        world.keeper.tick()
        world.claims.tick()
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


@pytest.mark.parametrize("fault", ["raises", "says too little"])
def test_a_store_that_breaks_its_word_has_not_answered_and_its_texts_are_not_told(fault: str) -> None:
    """A driver's error may quote the store's address, password and all, and why a claim is lost is logged."""
    world = World()
    item = world.run("a", renew_in=-1)

    def renew(claims: Sequence[Claim]) -> list[Answer]:
        assert len(claims) == 1
        if fault == "raises":
            raise OSError("can't reach redis://:secret-word@host")
        return []

    world.store.renew = renew  # type: ignore[method-assign]
    item.claim_until = time.monotonic() - 1
    world.claims.tick()
    assert item.claim_due > time.monotonic(), "asked again, but not at once"
    assert item.job.lost_reason is not None
    assert "could not be renewed" in item.job.lost_reason
    assert "secret-word" not in item.job.lost_reason
