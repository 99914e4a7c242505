"""A key that is used anew: a worker keeps the two jobs apart, and tells the engine which one it speaks of."""

from __future__ import annotations

from relevo.dedup.store import Finish
from relevo.worker.outcomes import Completed, Errored, Failed
from relevo_schemas.codec import MARKER, fingerprint
from relevo_schemas.commands import CheckpointJob, CompleteJob, FailJob, ThrowError
from relevo_schemas.files import load_retired
from tests.unit.workers.fakes import CREATED, FakeError, activation_bytes
from tests.unit.workers.gate_world import World

LATER = CREATED + 100


def test_the_next_job_of_a_key_is_no_repeat_of_the_one_that_runs() -> None:
    """It would end with what the earlier one returned, as that one's second message."""
    world = World(at_most_once=True)
    world.arrive(activation_bytes("a"))
    world.arrive(activation_bytes("a", created_seq=LATER), slot=1)
    assert world.runner.started == ["a"]
    world.end(Completed(b"1"))
    assert world.sender.sent == [CompleteJob("a", CREATED, 1, b"1")]
    world.acknowledge()
    world.turn()
    assert (world.runner.started, world.committable()) == (["a", "a"], {0: 1})
    world.end(Completed(b"2"))
    world.acknowledge()
    assert world.sender.sent[1:] == [CompleteJob("a", LATER, 1, b"2")]
    assert (world.committable(), world.stats.duplicates_suppressed) == ({0: 1, 1: 1}, 0)


def test_a_late_message_of_the_earlier_job_is_dropped() -> None:
    """Its job had ended before the one that runs was created, so nobody waits for it."""
    world = World()
    world.arrive(activation_bytes("a", created_seq=LATER))
    world.arrive(activation_bytes("a", attempt=3), slot=1)
    assert (world.committable(), world.stats.stale_dropped) == ({1: 1}, 1)
    world.end(Completed(b"2"))
    world.acknowledge()
    assert world.sender.sent == [CompleteJob("a", LATER, 1, b"2")]
    assert (world.runner.started, world.committable()) == (["a"], {0: 1, 1: 1})


def test_messages_that_do_not_say_belong_to_the_job_that_is_here() -> None:
    """They are by a node of an earlier version."""
    world = World()
    world.arrive(activation_bytes("a"))
    world.arrive(activation_bytes("a", created_seq=0, attempt=2), slot=1)
    world.end(Completed(b"1"))
    world.acknowledge()
    assert world.sender.sent == [CompleteJob("a", CREATED, 2, b"1")]
    assert world.committable() == {0: 1, 1: 1}


def test_every_end_says_which_job_has_ended_when_it_is_sent_again_too() -> None:
    world = World()
    for key, outcome in (("a", Failed("boom")), ("b", Errored("NO", "no")), ("c", Completed(b"1"))):
        world.arrive(activation_bytes(key))
        if key == "a":
            world.runner.running[0].job.checkpoint(7)
        world.end(outcome)
    world.store.done([Finish("c:dedup:d", "somebody", b"before")])
    world.arrive(activation_bytes("d"))
    expected = [
        CheckpointJob("a", CREATED, 1, b"7"),
        FailJob("a", CREATED, 1, "boom", -1, True),
        ThrowError("b", CREATED, 1, "NO", "no"),
        CompleteJob("c", CREATED, 1, b"1"),
        CompleteJob("d", CREATED, 1, b"before"),
    ]
    assert world.sender.sent == expected
    world.acknowledge(FakeError())
    world.later()
    assert world.sender.sent[5:] == expected[1:]


def test_an_activation_that_does_not_say_is_answered_as_its_node_understands() -> None:
    """A node of an earlier version can't read today's completion: it would refuse it."""
    world = World()
    world.arrive(activation_bytes("a", created_seq=0))
    world.end(Completed(b"1"))
    (message,) = world.sender.unacknowledged
    (schema,) = [each for each in load_retired() if each["name"] == "relevo.CompleteJob"]
    assert message["value"].startswith(MARKER + fingerprint(schema))
    assert world.sender.sent == [CompleteJob("a", 0, 1, b"1")]
