"""The seven steps of an activation, with all around them faked: who may start, and what is told when."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from relevo.dedup.store import Answer, Claim, Finish, Unknown
from relevo.errors import StoreUnsafe
from relevo.worker.outcomes import Completed, Errored, Failed
from relevo_schemas.codec import encode
from relevo_schemas.commands import CancelJob, CompleteJob, FailJob, ThrowError
from tests.unit.workers.fakes import CREATED, FakeError, FakeMessage, activation_bytes
from tests.unit.workers.gate_world import TOPIC, World

MSG_SIZE_TOO_LARGE = 10


def test_the_steps_come_in_their_order() -> None:
    world = World()
    world.arrive(activation_bytes("a"))
    assert world.runner.started == ["a"]
    assert world.store.calls == [("claim", ["c:dedup:a"])]
    world.end(Completed(b"1"))
    assert world.store.calls[-1] == ("done", ["c:dedup:a"])
    assert world.sender.sent == [CompleteJob("a", CREATED, 1, b"1")]
    assert world.committable() == {}
    world.acknowledge()
    assert world.committable() == {0: 1}


def test_no_more_run_than_there_are_slots_and_the_rest_holds_no_claim() -> None:
    """A claim held while waiting in a buffer would keep other workers from the job."""
    world = World(concurrency=2)
    world.arrive(*(activation_bytes(key) for key in "abcde"))
    assert world.runner.started == ["a", "b"]
    assert world.store.calls == [("claim", ["c:dedup:a", "c:dedup:b"])]
    world.end(Completed(b""))
    assert world.runner.started == ["a", "b", "c", "d"]


def test_a_silent_store_is_not_taken_for_a_duplicate() -> None:
    """No effect without a claim, no commit, and it shows."""
    world = World()
    world.store.silent = "TimeoutError"
    world.arrive(activation_bytes("a"), activation_bytes("b"))
    for _ in range(3):
        world.later()
    assert (world.runner.started, world.sender.sent, world.committable()) == ([], [], {})
    assert world.stats.unknown_claims >= 4
    world.store.silent = None
    world.later()
    world.later()
    assert sorted(world.runner.started) == ["a", "b"]


def test_a_store_that_raises_is_a_silent_store() -> None:
    world = World()
    world.store.raises = RuntimeError("a bug in somebody's store")
    world.arrive(activation_bytes("a"))
    assert (world.runner.started, world.committable()) == ([], {})
    world.store.raises = None
    world.later()
    assert world.runner.started == ["a"]


def test_while_the_store_is_silent_it_is_asked_for_one_job_at_a_time() -> None:
    world = World()
    world.store.silent = "down"
    world.arrive(*(activation_bytes(str(n)) for n in range(9)))
    world.later()
    assert [len(keys) for _, keys in world.store.calls] == [9, 1]


def test_what_is_done_already_is_not_run_and_its_result_is_sent_again() -> None:
    world = World()
    world.store.done([Finish("c:dedup:a", "somebody", b'{"paid":true}')])
    world.arrive(activation_bytes("a", attempt=2))
    assert world.runner.started == []
    assert world.sender.sent == [CompleteJob("a", CREATED, 2, b'{"paid":true}')]
    world.acknowledge()
    assert world.committable() == {0: 1}
    assert world.stats.duplicates_suppressed == 1


def test_a_claim_of_another_worker_is_waited_for_and_holds_up_nobody_else() -> None:
    world = World()
    world.store.claim([Claim("c:dedup:a", "other", 10)])
    world.arrive(activation_bytes("a"), activation_bytes("b"))
    assert world.runner.started == ["b"]
    assert (world.stats.claim_waits, world.committable()) == (1, {})
    world.store.now = 11
    world.later()
    assert world.runner.started == ["b", "a"]


def test_a_job_that_runs_here_already_is_not_run_twice() -> None:
    """Its second message counts as finished when the first run is, not before."""
    world = World()
    world.arrive(activation_bytes("a"))
    world.arrive(activation_bytes("a", attempt=2), slot=1)
    assert world.runner.started == ["a"]
    assert world.committable() == {}
    world.end(Completed(b""))
    world.acknowledge()
    assert world.sender.sent == [CompleteJob("a", CREATED, 2, b"")]
    assert world.committable() == {0: 1, 1: 1}


def test_a_failure_gives_the_claim_back_before_it_is_reported() -> None:
    """The next attempt may be here before the acknowledgement is."""
    world = World()
    world.arrive(activation_bytes("a"))
    world.end(Failed("boom", 50))
    assert world.store.calls[-1] == ("release", ["c:dedup:a"])
    assert world.sender.sent == [FailJob("a", CREATED, 1, "boom", 50, True)]
    world.arrive(activation_bytes("a", attempt=2))
    assert world.runner.started == ["a"], "the attempt that answers our report waits for its acknowledgement"
    world.acknowledge()
    world.turn()
    assert world.runner.started == ["a", "a"]
    assert world.committable() == {0: 1}


def test_a_business_error_ends_the_job() -> None:
    world = World()
    world.arrive(activation_bytes("a"))
    world.end(Errored("NO_FUNDS", "declined"))
    world.acknowledge()
    assert world.sender.sent == [ThrowError("a", CREATED, 1, "NO_FUNDS", "declined")]
    assert (world.committable(), world.stats.errored) == ({0: 1}, 1)


def test_an_outcome_that_is_not_acknowledged_is_sent_again() -> None:
    world = World()
    world.arrive(activation_bytes("a"))
    world.end(Completed(b"1"))
    world.acknowledge(FakeError())
    assert world.committable() == {}
    world.later()
    assert world.sender.sent == [CompleteJob("a", CREATED, 1, b"1")] * 2
    world.acknowledge()
    assert (world.committable(), world.stats.resent, world.stats.done) == ({0: 1}, 1, 1)


def test_a_full_send_queue_loses_no_outcome() -> None:
    world = World()
    world.arrive(*(activation_bytes(key) for key in "abc"))
    world.sender.room = 1
    world.end(Completed(b""))
    assert len(world.sender.sent) == 1
    world.sender.room = 10
    world.turn()
    assert sorted(each.key for each in world.sender.sent if isinstance(each, CompleteJob)) == ["a", "b", "c"]


def test_done_that_the_store_does_not_confirm_is_not_reported() -> None:
    """Completed without a done mark, a redelivery would run it again."""
    world = World()
    world.arrive(activation_bytes("a"))
    world.store.silent = "down"
    world.end(Completed(b"1"))
    assert (world.sender.sent, world.stats.unknown_done) == ([], 1)
    world.store.silent = None
    world.later()
    assert world.sender.sent == [CompleteJob("a", CREATED, 1, b"1")]


def test_a_claim_that_ended_too_early_leaves_one_result() -> None:
    """Another worker took over while the first still ran: what it stored counts."""
    world = World()
    world.arrive(activation_bytes("a", lease_ms=1_000))
    world.store.now = 2
    world.store.claim([Claim("c:dedup:a", "other", 100)])
    job = world.runner.running[0].job
    world.end(Completed(b"mine"))
    assert world.sender.sent == []
    assert job.lost
    world.store.done([Finish("c:dedup:a", "other", b"theirs")])
    world.later()
    assert world.sender.sent == [CompleteJob("a", CREATED, 1, b"theirs")]


def test_work_of_a_revoked_partition_is_not_started_and_its_claims_are_given_back() -> None:
    world = World(concurrency=1)
    world.arrive(activation_bytes("a"), activation_bytes("b"))
    world.tracker.close([(TOPIC, 0)])
    world.end(Completed(b""))
    assert world.runner.started == ["a"]
    assert world.stats.stale_dropped == 1
    world.acknowledge()
    assert world.committable() == {0: 1}, "what ran is committed, what was dropped is left to the next owner"


def test_revoked_between_claim_and_start() -> None:
    world = World()
    claim = world.store.claim

    def claim_and_lose(claims: list[Claim]) -> object:
        answers = claim(claims)
        world.tracker.close([(TOPIC, 0)])
        return answers

    world.store.claim = claim_and_lose  # type: ignore[assignment,method-assign]
    world.arrive(activation_bytes("a"))
    assert world.runner.started == []
    assert world.store.calls[-1] == ("release", ["c:dedup:a"])


def test_a_job_whose_first_message_is_revoked_runs_for_its_second() -> None:
    world = World(concurrency=1)
    world.arrive(activation_bytes("a"), activation_bytes("b"))
    world.arrive(activation_bytes("b", attempt=2), slot=1)
    world.tracker.close([(TOPIC, 0)])
    world.end(Completed(b""))
    assert world.runner.started == ["a", "b"]


@pytest.mark.parametrize(
    "value", [b"", b"garbage", encode(CancelJob("a", ""))], ids=["empty", "garbage", "command"]
)
def test_a_message_that_is_no_activation_is_skipped_and_counted(value: bytes) -> None:
    world = World()
    world.arrive(value, activation_bytes("b"))
    world.end(Completed(b""))
    world.acknowledge()
    assert (world.committable(), world.stats.damaged) == ({0: 2}, 1)


def test_an_unsafe_store_ends_the_worker_with_its_reason() -> None:
    world = World()

    def refuse() -> None:
        raise StoreUnsafe("maxmemory-policy allkeys-lru")

    world.store.check = refuse  # type: ignore[method-assign]
    world.gate.thread.start()
    world.gate.deliver([(world.tracker.begin([(TOPIC, 0, 0)])[0], activation_bytes("a"))])  # type: ignore[list-item]
    world.gate.thread.join(30)
    assert isinstance(world.gate.fault, StoreUnsafe)
    assert (world.faults, world.runner.started) == ([True], [])


def test_at_most_once_claims_nothing_and_never_runs_a_second_hand_over() -> None:
    world = World(at_most_once=True)
    world.arrive(activation_bytes("a"), activation_bytes("b", attempt=2))
    assert world.runner.started == ["a"]
    world.end(Failed("boom"))
    assert world.store.calls == []
    assert sorted(map(repr, world.sender.sent)) == sorted(
        map(
            repr,
            [
                FailJob("a", CREATED, 1, "boom", -1, False),
                ThrowError(
                    "b", CREATED, 2, "MAYBE_RUN", "handed over before, and this type runs a job at most once"
                ),
            ],
        )
    )


def test_an_attempt_the_engine_has_given_up_stops_holding_the_commit() -> None:
    """A handler that hangs must not keep all jobs behind it from ever being committed."""
    world = World()
    world.arrive(activation_bytes("hangs"), activation_bytes("b"))
    hanging = next(item for item in world.runner.running if item.key == "hangs")
    world.gate.superseded(hanging, 1)
    world.turn()
    assert world.committable() == {0: 1}


def test_the_gate_ends_when_nothing_is_under_way() -> None:
    world = World()
    world.gate.start(world.runner)
    world.gate.deliver([(world.tracker.begin([(TOPIC, 0, 0)])[0], activation_bytes("a"))])  # type: ignore[list-item]
    deadline = time.monotonic() + 30
    while not world.runner.running and time.monotonic() < deadline:
        time.sleep(0.005)
    world.gate.stop()
    item = world.runner.running[0]
    item.outcome = Completed(b"")
    world.gate.finished([item])
    while not world.sender.unacknowledged and time.monotonic() < deadline:
        time.sleep(0.005)
    world.sender.acknowledge()
    world.gate.thread.join(30)
    assert not world.gate.thread.is_alive()
    assert world.committable() == {0: 1}


def test_a_result_that_kafka_will_never_take_becomes_an_incident_and_is_not_sent_for_ever() -> None:
    """Whatever stands behind it in its partition would wait for an acknowledgement that can't come."""
    world = World()
    world.arrive(activation_bytes("large"), activation_bytes("next"))
    world.end(Completed(b"x" * 1_000))
    too_large = [each for each in world.sender.unacknowledged if each["key"] == b"large"]
    for message in too_large:
        world.sender.unacknowledged.remove(message)
        message["callback"](FakeError(MSG_SIZE_TOO_LARGE), FakeMessage())
    world.acknowledge()
    world.later()
    told = world.sender.sent[-1]
    assert isinstance(told, FailJob)
    assert not told.retriable
    assert "1000 bytes is more than" in told.error
    world.acknowledge()
    assert world.committable()[0] == 2


def test_a_result_that_the_client_will_not_even_take_becomes_an_incident_too() -> None:
    """It isn't a full queue, which would have room later: offering it again goes on for ever."""
    world = World()
    world.sender.most = 500
    world.arrive(activation_bytes("large"))
    world.end(Completed(b"x" * 1_000))
    world.turn()
    world.later()
    told = world.sender.sent[-1]
    assert isinstance(told, FailJob)
    assert not told.retriable
    world.acknowledge()


def test_one_key_of_a_batch_without_an_answer_is_asked_for_again() -> None:
    """A shard of the store is away, or a row is in use: the others go on, and this one isn't forgotten."""
    world = World()
    ask = world.store.claim

    def claim(claims: Sequence[Claim]) -> list[Answer]:
        answers = ask(claims)
        return [
            Unknown("no shard") if each.key.endswith(":a") else said
            for each, said in zip(claims, answers, strict=True)
        ]

    world.store.claim = claim  # type: ignore[method-assign]
    world.arrive(activation_bytes("a"), activation_bytes("b"))
    assert world.runner.started == ["b"]
    world.later()
    assert world.runner.started == ["b"], "no answer is no claim, however often"
    world.store.claim = ask  # type: ignore[method-assign]
    world.later()
    assert world.runner.started == ["b", "a"]
    world.end(Completed(b"1"))
    world.acknowledge()
    assert world.committable()[0] == 2
