"""What an earlier owner of a partition may have started is asked about before it runs."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from relevo.consumer.offsets import Ownership
from relevo.follower import Follower, Interest
from relevo.sender import Sender
from relevo.worker.inquiries import Inquiries
from relevo.worker.item import Item
from relevo.worker.outcomes import Completed
from relevo_schemas.commands import CompleteJob, LeaseRef, StartJobs
from relevo_schemas.events import CommandRejected, JobStarted, JobTimedOut
from relevo_schemas.records import Event
from tests.unit.workers.fakes import CREATED, FakeSender, activation, activation_bytes
from tests.unit.workers.gate_world import TOPIC, World


class Engine:
    """Answers inquiries when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Item] = []

    def ask(self, items: Iterable[Item]) -> None:
        self.asked += items


class Log:
    """A follower whose events the test makes up."""

    def __init__(self) -> None:
        self.sinks: dict[str, Any] = {}

    def follow(self, key: str, on_event: Any, on_failure: Any, *, partition: int) -> Future[Interest]:
        self.sinks[key] = on_event
        following: Future[Interest] = Future()
        following.set_result(Interest(cast("Follower", self), key, partition, 0, on_event, on_failure))
        return following

    def _drop(self, interest: Interest) -> None:
        """The wait is over."""


OFFSET = 7
"""Of whatever `FakeSender` has sent."""


@pytest.mark.parametrize(
    ("answer", "may_run"),
    [
        (JobStarted(1, 1, 1, OFFSET, "a", 1, "me", 30_000), True),
        (JobTimedOut(1, 1, 1, OFFSET, "a", 1, "TAKEN_OVER", 1), False),
        (CommandRejected(1, 1, 1, OFFSET, "a", "StartJobs", "STALE_ATTEMPT", "2", "1"), False),
        (CommandRejected(1, 1, 1, OFFSET, "a", "StartJobs", "INVALID", "a name", "none"), True),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_engine_says_whether_an_attempt_may_run(answer: Event, may_run: bool) -> None:
    """Where it has counted the attempt as lost, another follows: running this one too would be twice."""
    log, sender = Log(), FakeSender()
    answers: list[tuple[str, bool]] = []
    inquiries = Inquiries(
        cast("Follower", log), cast("Sender", sender), "c.commands", "me",
        lambda item, allowed: answers.append((item.key, allowed)),
    )  # fmt: skip
    entry = Ownership("t", 0, 1, 0).begin(0)
    assert entry is not None
    inquiries.ask([Item(entry, activation("a"), "token")])
    assert sender.sent == [StartJobs("me", (LeaseRef("a", CREATED, 1, 30_000),))]
    sender.acknowledge()
    log.sinks["a"](0, answer)
    assert answers == [("a", may_run)]


def doubtful(world: World, below: int = 100) -> Engine:
    """All that comes, up to an offset, may have been started by an earlier owner."""
    engine = Engine()
    world.gate._inquiries = cast("Inquiries", engine)
    for owned in world.tracker.owned():
        owned.doubtful_below = below
    return engine


def test_what_an_earlier_owner_may_have_started_is_asked_about_first() -> None:
    """A job that kills its worker at once would never be counted, and circulate for ever."""
    world = World()
    engine = doubtful(world)
    world.arrive(activation_bytes("a"), activation_bytes("b"))
    assert (world.runner.started, [item.key for item in engine.asked]) == ([], ["a", "b"])
    world.gate.decided(engine.asked[0], True)
    world.turn()
    assert world.runner.started == ["a"]


def test_what_the_engine_has_moved_on_from_is_dropped_unstarted() -> None:
    world = World()
    engine = doubtful(world)
    world.arrive(activation_bytes("a"))
    engine.asked[0].reported = 1
    world.gate.decided(engine.asked[0], False)
    world.turn()
    assert world.runner.started == []
    assert world.store.calls[-1] == ("release", ["c:dedup:a"])
    assert (world.committable(), world.stats.stale_dropped) == ({0: 1}, 1)


def test_a_later_attempt_is_not_dropped_with_the_one_before() -> None:
    """It came while the engine was asked about the earlier one, and nobody else will get it."""
    world = World()
    engine = doubtful(world)
    world.arrive(activation_bytes("a"))
    engine.asked[0].reported = 1
    world.arrive(activation_bytes("a", attempt=2))
    world.gate.decided(engine.asked[0], False)
    world.turn()
    engine.asked[1].reported = 2
    world.gate.decided(engine.asked[1], True)
    world.turn()
    assert world.runner.started == ["a"]
    world.end(Completed(b""))
    world.acknowledge()
    assert world.sender.sent == [CompleteJob("a", CREATED, 2, b"")]
    assert world.committable() == {0: 2}


def test_messages_of_a_later_attempt_stay_when_an_earlier_one_is_given_up() -> None:
    world = World()
    world.arrive(activation_bytes("a"))
    world.arrive(activation_bytes("a", attempt=2), slot=1)
    world.gate.superseded(world.runner.running[0], 1)
    world.turn()
    assert world.committable() == {}


def test_without_an_answer_it_is_run_all_the_same() -> None:
    """At least once: an engine that is silent must not keep a job from running for ever."""
    world = World()
    engine = doubtful(world)
    world.arrive(activation_bytes("a"))
    world.later()
    assert world.runner.started == ["a"]
    world.gate.decided(engine.asked[0], True)
    world.turn()
    assert world.runner.started == ["a"]


def test_what_is_asked_about_takes_a_slot() -> None:
    world = World(concurrency=2)
    engine = doubtful(world)
    world.arrive(*(activation_bytes(key) for key in "abc"))
    assert [item.key for item in engine.asked] == ["a", "b"]


def answer_all(world: World, engine: Engine) -> int:
    """The engine says yes to whatever it was asked; how much that was."""
    asked, engine.asked = engine.asked, []
    for each in asked:
        each.reported = each.attempt
        world.gate.decided(each, True)
    world.turn()
    return len(asked)


def work_off(world: World, engine: Engine, jobs: int, per_answer: int) -> list[int]:
    """So many handlers end while the engine answers once; how many it was asked about each time."""
    asked = []
    while len(world.runner.started) < jobs or world.runner.running:
        asked.append(answer_all(world, engine))
        for _ in range(per_answer):
            if world.runner.running:
                world.end(Completed(b""), world.runner.running[0].key)
        world.acknowledge()
    return asked


def test_fast_handlers_do_not_wait_for_one_answer_after_the_other() -> None:
    """After a crash with a large backlog nearly all of the time would be spent asking."""
    world = World(concurrency=4)
    engine = doubtful(world, below=10_000)
    world.arrive(*(activation_bytes(f"job-{n}") for n in range(3_000)))
    asked = work_off(world, engine, 3_000, per_answer=1_000)
    assert asked[0] == 4
    assert max(asked) <= 504
    assert len(asked) < 40, "750 with four at a time"
    assert world.runner.started == [f"job-{n}" for n in range(3_000)]


def test_slow_handlers_ask_about_no_more_than_they_have_slots_for() -> None:
    """What is asked about counts as begun: a deployment would have to wait for all of it."""
    world = World(concurrency=4)
    engine = doubtful(world)
    world.arrive(*(activation_bytes(f"job-{n}") for n in range(100)))
    while len(world.runner.started) < 50:
        answer_all(world, engine)
        assert len(world.runner.running) <= 4
        assert len(world.gate.kept) + len(engine.asked) <= 6
        world.end(Completed(b""), world.runner.running[0].key)


def test_what_may_run_and_waits_for_a_slot_keeps_its_claim_and_its_turn() -> None:
    world = World(concurrency=1)
    engine = doubtful(world)
    world.gate._doubts.ahead = 2
    world.arrive(*(activation_bytes(key) for key in "abcd"))
    assert answer_all(world, engine) == 3
    assert (world.runner.started, list(world.gate.kept)) == (["a"], ["a", "b", "c"])
    waiting = world.gate.kept["b"]
    assert waiting.started_at == 0.0 < waiting.claim_due < waiting.renew_at
    world.end(Completed(b""), "a")
    assert world.runner.started == ["a", "b"]


def test_who_is_not_asked_about_needs_a_slot() -> None:
    world = World(concurrency=1)
    engine = doubtful(world, below=1)
    world.gate._doubts.ahead = 10
    world.arrive(*(activation_bytes(key) for key in "abc"))
    assert [each.key for each in engine.asked] == ["a"]
    assert [keys for name, keys in world.store.calls if name == "claim"] == [["c:dedup:a"]]


def test_what_was_asked_about_is_waited_for_when_its_partition_is_handed_over() -> None:
    """For the engine it has begun: asked by the next owner it would count it as one that fell silent."""
    world = World(concurrency=1)
    engine = doubtful(world)
    world.gate._doubts.ahead = 1
    world.arrive(activation_bytes("a"), activation_bytes("b"), activation_bytes("c"))
    (owned, _) = world.tracker.close([(TOPIC, 0), (TOPIC, 1)])
    assert owned.running == 2
    answer_all(world, engine)
    world.end(Completed(b""))
    world.end(Completed(b""))
    world.acknowledge()
    assert (world.runner.started, owned.running) == (["a", "b"], 0)
    assert world.committable() == {0: 2}


def test_what_waits_for_a_slot_is_given_up_when_others_have_its_partition() -> None:
    """They would wait for its claim until a slot is free here, which may take hours."""
    world = World(concurrency=1)
    engine = doubtful(world)
    world.gate._doubts.ahead = 1
    world.arrive(activation_bytes("a"), activation_bytes("b"))
    answer_all(world, engine)
    world.tracker.end([(TOPIC, 0)])
    world.turn()
    assert world.store.calls[-1] == ("release", ["c:dedup:b"])
    assert (list(world.gate.kept), world.gate._free()) == (["a"], 0)


def test_a_later_attempt_that_goes_back_among_the_waiting_is_not_waited_for() -> None:
    world = World()
    engine = doubtful(world)
    world.arrive(activation_bytes("a"))
    engine.asked[0].reported = 1
    world.arrive(activation_bytes("a", attempt=2))
    world.store.silent = "down"
    world.gate.decided(engine.asked[0], False)
    world.turn()
    (owned, _) = world.tracker.close([(TOPIC, 0), (TOPIC, 1)])
    assert owned.running == 0


def test_a_gate_that_ends_gives_back_the_claims_of_what_it_asked_about() -> None:
    world = World(concurrency=1)
    doubtful(world)
    world.arrive(activation_bytes("a"))
    world.gate.stop()
    assert not world.gate._turn()
    assert world.store.calls[-1] == ("release", ["c:dedup:a"])
