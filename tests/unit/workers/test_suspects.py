"""A job that may be what kills its workers runs alone: it must take no other along."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from relevo import ConfigurationError, WorkerApp
from relevo.dedup.store import Claim, Finish
from relevo.errors import StoreUnsafe
from relevo.worker.outcomes import Completed, Failed
from relevo.worker.solitude import Desk, Solitude
from relevo_schemas.commands import CompleteJob
from tests.unit.workers.fakes import CREATED, activation_bytes
from tests.unit.workers.gate_world import TOPIC, World
from tests.unit.workers.test_gate_inquiries import Engine

DONE = Completed(b"")


def suspect(key: str, **fields: Any) -> bytes:
    return activation_bytes(key, attempt=3, expiries=2, **fields)


def test_a_suspect_waits_until_nothing_runs_and_nothing_is_started_meanwhile() -> None:
    world = World()
    world.arrive(activation_bytes("a"), activation_bytes("b"))
    world.arrive(suspect("s"), activation_bytes("c"))
    assert world.runner.started == ["a", "b"]
    world.end(DONE, "a")
    assert world.runner.started == ["a", "b"], "b still runs, and c must not begin before s"
    world.end(DONE, "b")
    assert world.runner.started == ["a", "b", "s"]
    world.arrive(activation_bytes("d"))
    assert world.runner.started == ["a", "b", "s"], "s runs alone"
    world.end(DONE)
    world.turn()
    assert world.runner.started == ["a", "b", "s", "c", "d"]
    world.end(DONE)
    world.acknowledge()
    assert world.committable() == {0: 5}
    assert (world.stats.suspects, world.stats.started) == (1, 5)


def test_one_silent_attempt_is_anybodys_bad_luck() -> None:
    world = World()
    world.arrive(activation_bytes("a"), activation_bytes("b", attempt=2, expiries=1))
    assert world.runner.started == ["a", "b"]
    assert world.stats.suspects == 0


def test_whoever_wants_no_suspects_has_none() -> None:
    world = World(suspect_after=None)
    world.arrive(activation_bytes("a"), suspect("b"))
    assert world.runner.started == ["a", "b"]


def test_several_suspects_run_one_after_the_other() -> None:
    world = World()
    world.arrive(suspect("s"), suspect("t"), activation_bytes("a"))
    for expected in (["s"], ["s", "t"], ["s", "t", "a"]):
        assert world.runner.started == expected
        world.end(DONE)
        world.turn()


def test_a_suspect_that_waits_holds_no_claim() -> None:
    """Its lease and its claim would run out before it begins."""
    world = World()
    world.arrive(activation_bytes("a"))
    world.arrive(suspect("s"))
    assert world.store.calls[-2:] == [("claim", ["c:dedup:s"]), ("release", ["c:dedup:s"])]
    for _ in range(3):
        world.turn()
    assert len(world.store.calls) == 3, "asked once, not each time round"
    world.end(DONE)
    assert world.runner.started == ["a", "s"]


def test_nobody_waits_for_a_suspect_whose_claim_another_worker_has() -> None:
    world = World()
    world.store.claim([Claim("c:dedup:s", "other", 10)])
    world.arrive(activation_bytes("a"))
    world.arrive(suspect("s"), activation_bytes("b"))
    world.turn()
    assert world.runner.started == ["a", "b"]
    world.store.now = 11
    world.end(DONE)
    world.later()
    assert world.runner.started == ["a", "b", "s"]


def test_a_suspect_that_was_done_already_is_not_waited_for() -> None:
    world = World()
    world.store.done([Finish("c:dedup:s", "somebody", b"1")])
    world.arrive(activation_bytes("a"))
    world.arrive(suspect("s"), activation_bytes("b"))
    world.turn()
    assert world.runner.started == ["a", "b"]
    assert world.sender.sent == [CompleteJob("s", CREATED, 3, b"1")]


def test_a_suspect_is_reported_before_it_runs() -> None:
    """It may kill the process within a moment: unreported, that death would not be counted."""
    world = World()
    engine = Engine()
    world.gate._inquiries = engine  # type: ignore[assignment]
    world.arrive(suspect("s"), activation_bytes("a"))
    assert (world.runner.started, [item.key for item in engine.asked]) == ([], ["s"])
    world.gate.decided(engine.asked[0], True)
    world.turn()
    assert world.runner.started == ["s"], "a waits while s is asked about, and while it runs"
    world.end(DONE)
    world.turn()
    assert world.runner.started == ["s", "a"]


def test_a_suspect_that_the_engine_has_given_up_makes_room() -> None:
    world = World()
    engine = Engine()
    world.gate._inquiries = engine  # type: ignore[assignment]
    world.arrive(suspect("s"), activation_bytes("a"))
    engine.asked[0].reported = 3
    world.gate.decided(engine.asked[0], False)
    world.turn()
    world.turn()
    assert world.runner.started == ["a"]


def test_a_suspect_that_hangs_and_lost_its_lease_makes_room() -> None:
    world = World()
    world.arrive(suspect("s"), activation_bytes("a"))
    world.gate.superseded(world.runner.running[0], 3)
    world.turn()
    world.turn()
    assert world.runner.started == ["s", "a"]


def test_a_suspect_does_not_wait_for_a_handler_that_hangs_and_lost_its_lease() -> None:
    world = World()
    world.arrive(activation_bytes("hangs"))
    world.arrive(suspect("s"))
    world.gate.superseded(world.runner.running[0], 1)
    world.turn()
    world.turn()
    assert world.runner.started == ["hangs", "s"]
    world.end(DONE, "hangs")
    world.arrive(activation_bytes("a"))
    assert world.runner.started == ["hangs", "s"], "the end of what was given up doesn't count twice"


def test_a_waiting_job_becomes_a_suspect_by_its_next_activation() -> None:
    world = World(concurrency=1)
    world.arrive(activation_bytes("a"), activation_bytes("s"), activation_bytes("b"))
    world.arrive(suspect("s"), slot=1)
    world.end(DONE)
    world.turn()
    assert (world.runner.started, world.stats.suspects) == (["a", "s"], 1)


def test_a_suspect_of_a_revoked_partition_holds_nobody_up() -> None:
    world = World()
    world.arrive(activation_bytes("a"))
    world.arrive(suspect("s"), slot=1)
    world.arrive(activation_bytes("b"))
    assert world.runner.started == ["a"]
    world.tracker.close([(TOPIC, 1)])
    world.turn()
    assert world.runner.started == ["a", "b"]


def test_revoked_between_claim_and_start_it_holds_nobody_up() -> None:
    world = World()
    claim = world.store.claim

    def claim_and_lose(claims: list[Claim]) -> object:
        answers = claim(claims)
        world.tracker.close([(TOPIC, 1)])
        return answers

    world.store.claim = claim_and_lose  # type: ignore[assignment,method-assign]
    world.arrive(suspect("s"), slot=1)
    world.arrive(activation_bytes("b"))
    assert world.runner.started == ["b"]


def test_a_suspect_that_fails_makes_room_and_comes_back_as_one() -> None:
    world = World()
    world.arrive(suspect("s"), activation_bytes("a"))
    world.end(Failed("boom"))
    world.turn()
    assert world.runner.started == ["s", "a"]
    world.acknowledge()
    world.arrive(activation_bytes("s", attempt=4, expiries=2))
    assert world.runner.started == ["s", "a"]
    world.end(DONE)
    world.turn()
    assert (world.runner.started, world.stats.suspects) == (["s", "a", "s"], 2)


def test_it_says_which_job_runs_alone_and_why(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "relevo.worker"):
        world.arrive(suspect("s"))
    (entry,) = caplog.records
    assert entry.getMessage().startswith("send-email job 's' runs alone: 2 attempts of it fell silent")


# --- Several job types in one process ---


def test_a_suspect_waits_for_the_other_types_of_its_process_too() -> None:
    """What it kills is the process, whoever runs there."""
    shared = Solitude()
    mail, print_ = World(solitude=shared), World(solitude=shared)
    print_.arrive(activation_bytes("p"))
    mail.arrive(suspect("s"))
    print_.arrive(activation_bytes("q"))
    mail.turn()
    assert (mail.runner.started, print_.runner.started) == ([], ["p"])
    print_.end(DONE)
    mail.turn()
    print_.turn()
    assert (mail.runner.started, print_.runner.started) == (["s"], ["p"])
    mail.end(DONE)
    assert print_.gate._inbox.qsize() == 1, "it is woken, and needn't come round by itself"
    print_.turn()
    assert print_.runner.started == ["p", "q"]


def test_suspects_of_two_types_take_turns_in_the_order_of_asking() -> None:
    shared = Solitude()
    mail, print_ = World(solitude=shared), World(solitude=shared)
    mail.arrive(activation_bytes("a"))
    print_.arrive(suspect("t"))
    mail.arrive(suspect("s"))
    mail.end(DONE)
    assert mail.runner.started == ["a"]
    assert print_.gate._inbox.qsize() == 1, "it is woken"
    print_.turn()
    mail.turn()
    assert (mail.runner.started, print_.runner.started) == (["a"], ["t"])
    print_.end(DONE)
    mail.turn()
    assert mail.runner.started == ["a", "s"]


def test_a_suspect_that_cannot_run_now_holds_no_other_type_up() -> None:
    """Another worker has its claim, or its partition: nothing of it is here to be waited for."""
    shared = Solitude()
    mail, print_ = World(solitude=shared), World(solitude=shared)
    mail.store.claim([Claim("c:dedup:s", "other", 10)])
    mail.arrive(suspect("s"))
    print_.arrive(activation_bytes("p"))
    assert print_.runner.started == ["p"], "asked for alone"
    mail.later()
    print_.arrive(activation_bytes("q"))
    assert print_.runner.started == ["p", "q"], "asked for while others run"
    mail.arrive(suspect("t"), slot=1)
    print_.arrive(activation_bytes("r"))
    assert print_.runner.started == ["p", "q"], "t waits for p and q"
    mail.tracker.close([(TOPIC, 1)])
    mail.turn()
    print_.turn()
    assert print_.runner.started == ["p", "q", "r"]


def test_a_type_that_stops_or_fails_holds_no_other_up() -> None:
    shared = Solitude()
    mail, print_ = World(solitude=shared), World(solitude=shared)
    mail.arrive(activation_bytes("a"))
    mail.arrive(suspect("s"))
    print_.arrive(activation_bytes("p"))
    assert print_.runner.started == []
    mail.gate.stop()
    mail.turn()
    print_.turn()
    assert print_.runner.started == ["p"]
    print_.arrive(suspect("t"))

    def refuse() -> None:
        raise StoreUnsafe("maxmemory-policy allkeys-lru")

    mail.store.check = refuse  # type: ignore[method-assign]
    mail.gate._stopping = False
    mail.gate.thread.start()
    mail.gate.deliver([(mail.tracker.begin([(TOPIC, 0, 9)])[0], activation_bytes("b"))])  # type: ignore[list-item]
    mail.gate.abandon()
    mail.gate.thread.join(30)
    print_.end(DONE)
    assert print_.runner.started == ["p", "t"], "what the ended gate left running is waited for by nobody"


# --- The gate's own thread ---


def test_a_gate_that_is_shut_out_does_not_spin() -> None:
    """It waits to be woken, at the cost of no processor."""
    shared = Solitude()
    mail, print_ = World(solitude=shared), World(solitude=shared)
    mail.arrive(suspect("s"))
    print_.arrive(activation_bytes("p"))
    assert print_.gate._pause() > 0.1
    print_.gate.start(print_.runner)
    mail.end(DONE)
    deadline = time.monotonic() + 30
    while not print_.runner.started and time.monotonic() < deadline:
        time.sleep(0.005)
    print_.gate.abandon()
    print_.gate.thread.join(30)
    assert print_.runner.started == ["p"]


def test_leaving_twice_is_leaving_once() -> None:
    shared = Solitude()
    world = World(solitude=shared)
    desk = Desk(shared, lambda: None)
    world.arrive(activation_bytes("a"), activation_bytes("b"))
    first, second = world.runner.running
    world.gate._desk.leave([first])
    world.gate._desk.leave([first])
    assert not desk.enter_alone(second), "b is still at work"
    world.gate._desk.leave([second])
    assert desk.enter_alone(second)


# --- The setting ---


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_a_number_of_silent_attempts_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="suspect_after must be a whole number"):
        WorkerApp("localhost:1", suspect_after=value)


@pytest.mark.parametrize("value", [1, 7, None])
def test_a_number_of_silent_attempts_reaches_the_gates(value: int | None) -> None:
    assert WorkerApp("localhost:1", suspect_after=value)._workers._suspect_after == value
