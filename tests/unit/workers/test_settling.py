"""What a handler's end leaves to be done: its mark, its claim, its report, each as often as it takes."""

from __future__ import annotations

from typing import cast

import pytest

from relevo.dedup.store import Claim, Done
from relevo.errors import InvalidRequest, NotSent
from relevo.sender import Sender
from relevo.worker.claim_keeper import ClaimKeeper
from relevo.worker.dedup_key import DedupKey
from relevo.worker.job import Job
from relevo.worker.leases import LeaseKeeper
from relevo.worker.outcomes import Completed, Errored, Failed, Outcome
from relevo_schemas.commands import CompleteJob, ExtendJobs, FailJob, LeaseRef, StartJobs, ThrowError
from tests.unit.workers.fakes import CREATED, FakeError, activation_bytes
from tests.unit.workers.gate_world import World


class Kept(World):
    """With the keepers of leases and claims, which a test lets look after what is due."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = LeaseKeeper(
            commands="c.commands",
            identity="me",
            kept=self.gate.kept,
            runner=self.runner,
            sender=cast("Sender", self.sender),
            lease_ms=0,
            timeout=None,
            follower=None,
            superseded=self.gate.superseded,
            stats=self.stats,
        )
        self.claims = ClaimKeeper(
            namespace="c:dedup:",
            kept=self.gate.kept,
            store=self.store,
            claim_s=lambda lease_ms: lease_ms / 1_000,
            lose=self.leases.lose,
            stats=self.stats,
        )

    def tick(self) -> None:
        """A third of the lease has passed."""
        for item in self.gate.kept.values():
            item.started_at, item.renew_at, item.claim_due = -1_000.0, 0.0, 0.0
        self.leases.tick()
        self.claims.tick()


@pytest.mark.parametrize("ends", ["after a while", "at once"])
def test_an_effect_that_the_store_has_not_noted_keeps_its_lease_and_its_claim(ends: str) -> None:
    """Else the engine takes the worker for dead, and the next one's claim is granted: the effect again."""
    world = Kept()
    world.arrive(activation_bytes("a"))
    if ends == "after a while":
        world.tick()
    world.store.silent = "down"
    world.end(Completed(b"1"))
    for _ in range(2):
        world.tick()
        world.later()
    lease = (LeaseRef("a", CREATED, 1, 30_000),)
    renewals = [ExtendJobs("me", lease)] * (2 if ends == "after a while" else 1)
    assert world.sender.sent == [StartJobs("me", lease), *renewals]
    assert world.store.calls.count(("renew", ["c:dedup:a"])) == (3 if ends == "after a while" else 2)
    world.store.silent = None
    world.tick()
    world.later()
    assert world.sender.sent[-1] == CompleteJob("a", CREATED, 1, b"1")
    sent = len(world.sender.sent)
    world.tick()
    assert (world.gate.kept, len(world.sender.sent)) == ({}, sent)


def test_a_worker_that_drains_waits_for_the_mark_and_keeps_the_claim() -> None:
    world = Kept()
    world.arrive(activation_bytes("a"))
    world.store.silent = "down"
    world.end(Completed(b"1"))
    world.gate.stop()
    assert world.gate._turn()
    world.tick()
    assert world.store.calls[-1] == ("renew", ["c:dedup:a"])
    world.store.silent = None
    world.later()
    world.acknowledge()
    assert not world.gate._turn()
    assert world.committable() == {0: 1}


@pytest.mark.parametrize("outcome", [Failed("boom"), Errored("NO", "no")])
def test_what_leaves_no_mark_is_not_kept(outcome: Outcome) -> None:
    world = Kept()
    world.arrive(activation_bytes("a"))
    world.store.silent = "down"
    world.end(outcome)
    assert world.gate.kept == {}


# Reports


def refuse(job: Job) -> str:
    raise InvalidRequest("this job has none")


def test_a_job_without_a_dedup_key_is_reported_until_kafka_has_it() -> None:
    """It never had a claim: asking for its key once more raised in the gate's thread, and ended the type."""
    world = World()
    world.gate._claims._key_of = DedupKey("c", "send-email", refuse)
    world.arrive(activation_bytes("a"))
    world.acknowledge(FakeError())
    world.later()
    told = [(each.key, each.retriable) for each in world.sender.sent if isinstance(each, FailJob)]
    assert told == [("a", False)] * 2
    assert world.store.calls == []
    world.acknowledge()
    assert (world.committable(), world.stats.failures["dedup_key"]) == ({0: 1}, 1)


@pytest.mark.parametrize("outcome", [Completed(b"1"), Failed("boom"), Errored("NO", "no")])
def test_what_is_sent_again_is_not_taken_to_the_store_again(outcome: Outcome) -> None:
    """The store has heard of it, and may be silent by now: the report needn't wait for it."""
    world = World()
    world.arrive(activation_bytes("a"))
    world.end(outcome)
    calls = list(world.store.calls)
    world.acknowledge(FakeError())
    world.store.silent = "down"
    world.later()
    assert world.store.calls == calls
    assert len(world.sender.sent) == 2
    assert world.sender.sent[0] == world.sender.sent[1]


# Claims


def test_a_job_that_ended_with_a_business_error_leaves_its_dedup_key_to_the_next() -> None:
    """The caller has corrected the order and creates it again: it would wait an hour for a dead claim."""
    world = World()
    world.gate._claims._key_of = DedupKey("c", "send-email", "correlation_id")
    world.arrive(activation_bytes("a", correlation_id="order-1", lease_ms=3_600_000))
    world.arrive(activation_bytes("b", correlation_id="order-1"))
    world.end(Errored("NO_SUCH_ARTICLE", "no"))
    world.later()
    assert world.runner.started == ["a"], "until Kafka has the report, a is not over"
    world.acknowledge()
    assert world.sender.sent == [ThrowError("a", CREATED, 1, "NO_SUCH_ARTICLE", "no")]
    assert len(world.store) == 0
    world.later()
    assert world.runner.started == ["a", "b"]


def test_a_renewal_under_way_does_not_take_the_claim_of_an_error_again() -> None:
    world = World()
    world.arrive(activation_bytes("a"))
    (errored,) = world.runner.running
    world.end(Errored("NO", "no"))
    world.acknowledge()
    assert errored.given_back


# A producer that was given up


def test_when_nothing_can_be_reported_any_more_it_starts_nothing_and_marks_what_still_ends() -> None:
    """What it ran on would all be run again elsewhere; what is marked is not."""
    world = World(concurrency=2)
    world.arrive(*(activation_bytes(key) for key in "abc"))
    world.sender.room = 0
    world.end(Completed(b"1"), "a")
    assert world.runner.started == ["a", "b", "c"]
    world.arrive(activation_bytes("d"))
    world.gate.give_up(NotSent("given up"))
    world.turn()
    world.end(Completed(b"1"), "b")
    assert world.gate._turn(), "c is at work"
    world.end(Completed(b"1"), "c")
    assert not world.gate._turn(), "what can't be sent is not waited for"
    assert (str(world.gate.fault), world.faults) == ("given up [outcome=not_done retry=same]", [True])
    assert world.runner.started == ["a", "b", "c"]
    marked = [keys[0] for name, keys in world.store.calls if name == "done"]
    assert marked == ["c:dedup:a", "c:dedup:b", "c:dedup:c"]
    assert world.committable() == {}


def test_given_up_while_the_store_is_silent_it_waits_for_the_mark() -> None:
    world = World()
    world.arrive(activation_bytes("a"))
    world.store.silent = "down"
    world.end(Completed(b"1"))
    world.gate.give_up(NotSent("given up"))
    assert world.gate._turn()
    world.store.silent = None
    world.later()
    assert not world.gate._turn()
    assert world.store.claim([Claim("c:dedup:a", "next", 1.0)]) == [Done(b"1")]
