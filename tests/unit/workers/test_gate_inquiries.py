"""What an earlier owner of a partition may have started is asked about before it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from relevo.inquiries import Inquiries
from relevo.item import Item
from relevo.outcomes import Completed
from relevo_schemas.commands import CompleteJob
from tests.unit.workers.fakes import activation_bytes
from tests.unit.workers.gate_world import World


class Engine:
    """Answers inquiries when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Item] = []

    def ask(self, items: Iterable[Item]) -> None:
        self.asked += items


def doubtful(world: World) -> Engine:
    """All that comes may have been started by an earlier owner."""
    engine = Engine()
    world.gate._inquiries = cast("Inquiries", engine)
    for owned in world.tracker.owned():
        owned.doubtful_below = 100
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
    assert world.sender.sent == [CompleteJob("a", 2, b"")]
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
