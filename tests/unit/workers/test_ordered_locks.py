"""How the locks of correlation ids live in the dedup store: taken, renewed, given back, ended."""

from __future__ import annotations

import time

import pytest

from relevo.dedup.store import Claim, Held, Mine
from relevo.worker import lanes
from relevo.worker.item import Item
from relevo.worker.locks import is_lock, lock_prefix
from tests.unit.workers.fakes import activation_bytes
from tests.unit.workers.test_gate_inquiries import doubtful
from tests.unit.workers.test_leases import World as LeaseWorld
from tests.unit.workers.test_ordered import DONE, LOCK_X, is_free, lock, of, unlock, world_of


def test_a_lock_whose_answer_got_lost_is_asked_for_again_by_its_owner() -> None:
    """With another token it would wait for itself."""
    world = world_of()
    world.arrive(*of("z", "z"))
    claim = world.store.claim

    def lost(claims: list[Claim]) -> list[object]:
        claim(claims)
        world.store.silent = "the answer got lost"
        return claim(claims)  # type: ignore[return-value]

    world.store.claim = lost  # type: ignore[method-assign, assignment]
    world.arrive(*of("x", "a"))
    assert world.runner.started == ["z"]
    world.store.claim = claim  # type: ignore[method-assign]
    world.store.silent = None
    world.arrive(*of("x", "retried", attempt=2))
    world.later()
    assert world.runner.started == ["z", "a"]


def test_a_lock_that_could_not_be_given_back_is_given_back_later() -> None:
    """The store was away for a moment: nobody shall wait for a whole lease after it."""
    world = world_of()
    world.arrive(*of("x", "a"))
    world.end(DONE)
    world.store.silent = "away"
    world.acknowledge()
    world.store.silent = None
    world.arrive(*of("x", "b"))
    world.later()
    assert world.runner.started == ["a", "b"]
    world.end(DONE)
    world.acknowledge()
    assert is_free(world)


def test_what_the_engine_has_moved_on_from_gives_its_lock_back() -> None:
    """One that goes back among the waiting, for its later attempt, has none while it waits."""
    world = world_of()
    engine = doubtful(world)
    world.arrive(*of("x", "a"))
    engine.asked[0].reported = 1
    world.arrive(*of("x", "a", attempt=2))
    world.store.calls.clear()
    world.gate.decided(engine.asked[0], False)
    world.turn()
    assert world.store.calls[:2] == [("release", [LOCK_X]), ("claim", [LOCK_X])]
    engine.asked[1].reported = 2
    world.gate.decided(engine.asked[1], False)
    world.turn()
    assert is_free(world)


def test_types_have_locks_of_their_own() -> None:
    assert lock_prefix("c", "send-email") == "c:order:send-email:"
    assert is_lock(Claim(lock_prefix("c", "t") + "x", "t", 1.0))
    assert not is_lock(Claim("c:dedup:order:x", "t", 1.0))


def test_a_process_with_many_jobs_of_an_id_gives_other_workers_a_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gives the lock back and takes it again within a moment; who asks twice a second never gets it."""
    world = world_of()
    world.arrive(*of("x", "a", "b", "c"))
    monkeypatch.setattr(lanes, "TURN_S", 0.0)
    world.end(DONE)
    world.acknowledge()
    world.turn()
    assert (world.runner.started, is_free(world)) == (["a"], True)
    world.later()
    assert world.runner.started == ["a", "b"]


# Suspects


def suspect(key: str) -> bytes:
    return activation_bytes(key, correlation_id="x", attempt=3, expiries=2)


def test_a_suspect_in_line_keeps_nobody_from_beginning() -> None:
    world = world_of()
    world.arrive(*of("x", "a"))
    world.arrive(suspect("s"), *of("y", "b"))
    assert world.runner.started == ["a", "b"]
    world.end(DONE, "a")
    world.acknowledge()
    world.turn()
    assert world.runner.started == ["a", "b"]
    world.end(DONE, "b")
    world.turn()
    assert world.runner.started == ["a", "b", "s"]


def test_nobody_waits_for_a_suspect_whose_id_another_worker_has() -> None:
    world = world_of()
    lock(world)
    world.arrive(*of("y", "a"))
    world.arrive(suspect("s"), *of("y", "b"), *of(None, "c"))
    world.turn()
    assert world.runner.started == ["a", "c"]
    unlock(world)
    world.end(DONE)
    world.acknowledge()
    world.end(DONE)
    world.acknowledge()
    world.later()
    world.turn()
    assert world.runner.started == ["a", "c", "b", "s"]


def test_a_suspect_that_waits_for_the_process_holds_no_lock() -> None:
    world = world_of()
    world.arrive(*of(None, "a"))
    world.arrive(suspect("s"))
    assert is_free(world)
    world.end(DONE)
    assert world.runner.started == ["a", "s"]


# Renewal


def locked(world: LeaseWorld, key: str, renew_in: float) -> Item:
    item = world.run(key, renew_in=renew_in)
    item.reported = item.attempt
    item.lock = Claim(LOCK_X, f"lock-{key}", 30.0)
    assert world.store.claim([item.lock]) == [Mine()]
    world.store.calls.clear()
    return item


def test_a_lock_is_renewed_with_the_claim_of_its_job() -> None:
    world = LeaseWorld()
    locked(world, "a", renew_in=-1.0)
    world.store.now = 29.0
    world.claims.tick()
    assert world.store.calls == [("renew", ["c:dedup:a", LOCK_X])]
    world.store.now = 58.0
    assert isinstance(world.store.claim([Claim(LOCK_X, "other", 1.0)])[0], Held)


def test_a_lock_that_another_job_got_is_told_to_the_handler() -> None:
    world = LeaseWorld()
    item = locked(world, "a", renew_in=-1.0)
    world.store.now = 31.0
    world.store.claim([Claim(LOCK_X, "other", 30.0)])
    world.claims.tick()
    assert item.job.lost_reason == "another job of its correlation id has begun"
    assert world.stats.lost == 1


def test_a_renewal_that_comes_after_the_lock_was_given_back_leaves_none() -> None:
    """A lock that nobody has and nobody gives back would hold up its id for a whole lease."""
    world = LeaseWorld()
    item = locked(world, "a", renew_in=-1.0)
    renew = world.store.renew

    def late(claims: list[Claim]) -> list[object]:
        world.store.release([Claim(LOCK_X, "lock-a", 30.0)])
        item.lock = None
        return renew(claims)  # type: ignore[return-value]

    world.store.renew = late  # type: ignore[method-assign, assignment]
    world.claims.tick()
    assert world.store.claim([Claim(LOCK_X, "other", 1.0)]) == [Mine()]


def test_an_unclear_answer_about_the_lock_is_asked_again_soon() -> None:
    world = LeaseWorld()
    item = locked(world, "a", renew_in=-1.0)
    world.store.silent = "away"
    world.claims.tick()
    assert not item.job.lost
    assert item.claim_due <= time.monotonic() + 1.0
