"""One job of a correlation id at a time, in order, holding up nobody else: one gate, all else faked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

import relevo
from relevo.consumer.offsets import Entry
from relevo.dedup.store import Claim, Finish, Mine
from relevo.errors import ConfigurationError
from relevo.worker import lanes
from relevo.worker.dedup_key import DedupKey
from relevo.worker.outcomes import Completed, Errored, Failed, NotOurs
from relevo.worker.worker import JobType
from relevo_schemas.commands import CompleteJob
from tests.unit.workers.fakes import CREATED, FakeError, activation_bytes
from tests.unit.workers.gate_world import TOPIC, World

DONE = Completed(b"")
LOCK_X = "c:order:send-email:x"


def of(correlation_id: str | None, *keys: str, **fields: int) -> list[bytes]:
    return [activation_bytes(key, correlation_id=correlation_id, **fields) for key in keys]


def world_of(concurrency: int = 10) -> World:
    return World(concurrency, ordered=True)


def lock(world: World, token: str = "another worker", seconds: float = 10.0) -> None:
    assert world.store.claim([Claim(LOCK_X, token, seconds)]) == [Mine()]
    world.store.calls.clear()


def unlock(world: World, token: str = "another worker") -> None:
    assert world.store.release([Claim(LOCK_X, token, 0.0)]) == [Mine()]


def is_free(world: World) -> bool:
    free = world.store.claim([Claim(LOCK_X, "a look", 1.0)]) == [Mine()]
    world.store.release([Claim(LOCK_X, "a look", 1.0)])
    return free


def test_one_at_a_time_in_the_order_of_the_hand_over() -> None:
    """Two at once overwrite each other's balance; the later one first sets back what was newer."""
    world = world_of()
    world.arrive(*of("x", "a", "b", "c"))
    for expected in (["a"], ["a", "b"], ["a", "b", "c"]):
        assert world.runner.started == expected
        world.end(DONE)
        assert world.runner.started == expected, "its completion is not in Kafka yet"
        world.acknowledge()
    assert world.committable() == {0: 3}
    assert is_free(world)


def test_without_the_setting_all_run_at_once() -> None:
    world = World()
    world.arrive(*of("x", "a", "b"))
    assert world.runner.started == ["a", "b"]
    assert world.store.calls == [("claim", ["c:dedup:a", "c:dedup:b"])]


@pytest.mark.parametrize("nothing", [None, ""])
def test_jobs_without_a_correlation_id_run_as_ever(nothing: str | None) -> None:
    world = world_of()
    world.arrive(*of(nothing, "a", "b"))
    assert world.runner.started == ["a", "b"]
    assert world.store.calls == [("claim", ["c:dedup:a", "c:dedup:b"])]


def test_those_in_line_hold_no_slot_and_no_claim_and_hold_up_no_other_id() -> None:
    world = world_of(concurrency=2)
    world.arrive(*of("x", *(f"x{n}" for n in range(50))), *of("y", "y0"))
    assert world.runner.started == ["x0", "y0"]
    assert [call for call in world.store.calls if call[0] == "claim"] == [
        ("claim", [LOCK_X, "c:order:send-email:y"]),
        ("claim", ["c:dedup:x0", "c:dedup:y0"]),
    ]


def test_an_id_with_many_jobs_leaves_a_single_slot_to_others_in_turn() -> None:
    world = world_of(concurrency=1)
    world.arrive(*of("x", "x0", "x1", "x2"), *of("y", "y0", "y1"), *of(None, "z"))
    for _ in range(6):
        world.end(DONE)
        world.acknowledge()
    assert world.runner.started == ["x0", "y0", "z", "x1", "y1", "x2"]


def test_the_order_between_partitions_is_the_time_of_the_hand_over() -> None:
    world = world_of()
    world.arrive(*of("x", "first", at=1))
    world.arrive(*of("x", "c", at=30), slot=0)
    world.arrive(*of("x", "b", at=20), *of("x", "d", at=40), slot=1)
    for _ in range(4):
        world.end(DONE)
        world.acknowledge()
    assert world.runner.started == ["first", "b", "c", "d"]


def test_one_that_another_worker_has_is_waited_for_and_holds_up_nobody() -> None:
    world = world_of(concurrency=1)
    lock(world)
    world.arrive(*of("x", "a", "b"), *of("y", "other"))
    world.turn()
    assert world.runner.started == ["other"]
    assert world.store.calls[0] == ("claim", [LOCK_X]), "the first in line alone asks"
    assert not any("c:dedup:a" in keys for _, keys in world.store.calls), "a claim without the lock"
    assert world.stats.claim_waits == 1
    unlock(world)
    world.end(DONE)
    world.acknowledge()
    world.later()
    assert world.runner.started == ["other", "a"]


def test_the_lock_of_a_worker_that_died_ends_by_itself() -> None:
    world = world_of()
    lock(world, seconds=30.0)
    world.arrive(*of("x", "a"))
    world.later()
    assert world.runner.started == []
    world.store.now = 31.0
    world.later()
    assert world.runner.started == ["a"]


def test_the_lock_is_kept_until_kafka_has_the_completion() -> None:
    world = world_of()
    world.arrive(*of("x", "a", "b"))
    world.end(DONE)
    assert not is_free(world)
    world.acknowledge(FakeError())
    assert (world.runner.started, is_free(world)) == (["a"], False)
    world.later()
    world.acknowledge()
    assert world.runner.started == ["a", "b"]
    assert world.sender.sent[:2] == [CompleteJob("a", CREATED, 1, b"")] * 2


def test_a_business_error_lets_the_next_one_begin() -> None:
    world = world_of()
    world.arrive(*of("x", "a", "b"))
    world.end(Errored("NO", "no"))
    world.acknowledge()
    assert world.runner.started == ["a", "b"]


def test_a_failed_attempt_lets_others_pass_and_its_next_one_goes_first() -> None:
    """Nobody knows when it comes, or whether a person has to see to it before."""
    world = world_of()
    world.arrive(*of("x", "a", "b", "c", "d"))
    world.end(Failed("boom", 1_000))
    world.acknowledge()
    assert world.runner.started == ["a", "b"]
    world.arrive(*of("x", "a", attempt=2, at=1_800_000_000_000))
    for _ in range(3):
        world.end(DONE)
        world.acknowledge()
    assert world.runner.started == ["a", "b", "a", "c", "d"]


def test_an_attempt_that_comes_before_its_report_is_through_goes_first_too() -> None:
    world = world_of()
    world.arrive(*of("x", "a", "b"))
    world.end(Failed("boom", 0))
    world.arrive(*of("x", "a", attempt=2))
    world.acknowledge()
    assert world.runner.started == ["a", "a"]


def test_a_job_that_was_done_before_lets_the_next_one_begin() -> None:
    world = world_of()
    world.store.done([Finish("c:dedup:a", "somebody", b"1")])
    world.arrive(*of("x", "a", "b"))
    assert (world.runner.started, world.sender.sent) == ([], [CompleteJob("a", CREATED, 1, b"1")])
    world.acknowledge()
    assert world.runner.started == ["b"]


def test_the_lock_is_given_back_while_another_worker_has_the_job_itself() -> None:
    """Else two workers, each with one of the two, wait for each other until a lease runs out."""
    world = world_of()
    world.store.claim([Claim("c:dedup:a", "other", 10)])
    world.arrive(*of("x", "a"))
    assert (world.runner.started, is_free(world)) == ([], True)
    world.store.now = 11.0
    world.later()
    assert world.runner.started == ["a"]


def test_an_attempt_that_turns_out_to_be_anothers_gives_the_lock_back() -> None:
    world = world_of()
    world.arrive(*of("x", "a", "b"))
    world.end(NotOurs())  # type: ignore[arg-type]
    assert is_free(world)
    assert world.runner.started == ["a"]
    world.later()
    assert world.runner.started == ["a", "a"], "it is the first in line still"


def test_a_job_that_no_key_can_be_made_for_lets_the_next_one_begin() -> None:
    def refuse(job: relevo.Job) -> str:
        return "" if job.key == "a" else job.key

    world = world_of()
    world.gate._claims._key_of = DedupKey("c", "send-email", refuse)
    world.arrive(*of("x", "a", "b"))
    world.acknowledge()
    assert world.runner.started == ["b"]


# Partitions


def test_what_went_to_another_worker_leaves_the_line() -> None:
    world = world_of()
    world.arrive(*of("x", "a"))
    world.arrive(*of("x", "gone", at=5), slot=1)
    world.arrive(*of("x", "c", at=6))
    world.tracker.close([(TOPIC, 1)])
    world.end(DONE)
    world.acknowledge()
    world.turn()
    assert world.runner.started == ["a", "c"]
    assert world.stats.stale_dropped == 1


def test_a_revocation_between_claim_and_start_gives_the_lock_back() -> None:
    world = world_of()
    start = world.tracker.start

    def revoked(entries: list[Entry]) -> list[bool]:
        world.tracker.close([(TOPIC, 0)])
        return start(entries)

    world.tracker.start = revoked  # type: ignore[method-assign, assignment]
    world.arrive(*of("x", "a", "b"))
    world.turn()
    assert (world.runner.started, is_free(world)) == ([], True)


def test_a_running_job_of_a_lost_partition_keeps_its_lock_until_it_has_ended() -> None:
    """Its new owner must not run the next one beside it."""
    world = world_of()
    world.arrive(*of("x", "a"))
    world.tracker.end([(TOPIC, 0)])
    world.turn()
    assert not is_free(world)
    world.end(DONE)
    world.acknowledge()
    assert is_free(world)


def test_stopping_starts_nobody_in_line_and_leaves_no_lock() -> None:
    world = world_of()
    world.arrive(*of("x", "a", "b"))
    world.gate.stop()
    world.end(DONE)
    world.acknowledge()
    assert (world.runner.started, is_free(world)) == (["a"], True)
    world.gate._inbox.put(lambda: None)
    assert not world.gate._turn(), "those in line keep no worker from stopping"


# The buffer


def test_those_in_line_do_not_fill_the_buffer() -> None:
    """A worker that stops reading because of one busy id starves all others."""
    world = world_of()
    world.arrive(*of("x", *(str(n) for n in range(100))))
    assert world.tracker.unfinished == 1
    world.end(DONE)
    world.acknowledge()
    assert world.tracker.unfinished == 1
    assert world.tracker.wait_below(2, 0.0)


def test_so_many_may_stand_in_line_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker keeps in memory has a bound."""
    monkeypatch.setattr(lanes, "ASIDE_MAX", 30)
    world = world_of()
    world.arrive(*of("x", *(str(n) for n in range(100))))
    assert world.tracker.unfinished == 70


# Settings


def handle(job: relevo.Job) -> None:
    """A handler."""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"delivery": "at-most-once"}, "needs the dedup store"),
        ({"dedup_by": "correlation_id"}, "nothing to put in order"),
        ({"ordered": "yes"}, "must be True or False"),
    ],
)
def test_what_makes_no_sense_together_is_refused(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        JobType("transfer", handle, **{"ordered": True, **fields})  # type: ignore[arg-type]


def test_both_faces_take_the_setting() -> None:
    app = relevo.WorkerApp("localhost:1", "c")
    app.job("transfer", ordered=True, dedup_by=lambda job: job.key)(handle)
    place = SimpleNamespace(bootstrap="localhost:1", cluster="c", kafka_options={})
    worker = relevo.JobWorker(
        client=cast(relevo.Client, place), job_type="transfer", handler=handle, ordered=True
    )
    assert [each.ordered for each in (*app.types, *worker._workers.types)] == [True, True]
