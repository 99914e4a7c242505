"""Who goes first: priority, then age, and nobody waits for ever."""

from __future__ import annotations

from relevo_engine.core.job import JobState
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from tests.unit.core.harness import Channels, Partition, keys_of, only, rules


def order(p: Partition) -> list[str]:
    return [each.job.key for _, _, each in p.activations]


def waiting(**changes: int) -> Partition:
    """A partition with room for one job at a time, which is taken."""
    p = Partition(rules(window=1, **changes), Channels({"email": 1}))
    p.create("first")
    return p


def drain(p: Partition) -> list[str]:
    while (key := order(p)[-1]) in p.state.jobs:
        p.complete(key)
    return order(p)[1:]


def test_higher_priority_goes_first_then_age() -> None:
    p = waiting()
    for key, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -3)):
        p.create(key, priority=priority)
        p.now += 1
    assert drain(p) == ["b", "d", "a", "c", "e"]


def test_a_low_job_is_overtaken_for_a_bounded_time_only() -> None:
    """Under a steady stream of higher priority, a strict order would starve it."""
    p = waiting(aging_ms=10_000)
    p.create("low", priority=0)
    for n in range(60):
        p.now += 1_000
        p.create(f"high{n}", priority=2)
        p.complete(order(p)[-1])
        if order(p)[-1] == "low":
            break
    assert 18 <= n <= 21, "two steps of 10 s"


def test_a_priority_that_is_changed_counts_at_once() -> None:
    p = waiting()
    for key in "abc":
        p.create(key)
    p.send(cmd.UpdateJob("c", 1, None))
    p.send(cmd.UpdateJob("a", -1, None))
    p.send(cmd.UpdateJob("b", 7, None))
    p.send(cmd.UpdateJob("b", 0, None))
    p.failover()
    assert drain(p) == ["c", "b", "a"]


def test_a_priority_that_is_changed_back_costs_no_place() -> None:
    p = waiting()
    p.create("a")
    p.create("b")
    p.send(cmd.UpdateJob("a", 5, None))
    p.send(cmd.UpdateJob("a", 0, None))
    assert drain(p) == ["a", "b"]


def test_the_window_bounds_what_is_outstanding() -> None:
    p = Partition(rules(window=3))
    for n in range(10):
        p.create(f"k{n}")
    assert order(p) == ["k0", "k1", "k2"]
    assert p.state.lanes["email"].counts[JobState.READY] == 7
    assert p.owner.wait_ms(p.now) != 0
    p.complete("k1")
    assert order(p) == ["k0", "k1", "k2", "k3"]


def test_a_type_without_workers_does_not_disturb_another() -> None:
    p = Partition(rules(window=5), Channels({"dead": 1, "email": 1}))
    for n in range(1_000):
        p.create(f"d{n}", type="dead")
    events = p.create("k", type="email")
    assert [event.key for event in only(events, ev.JobActivated)] == ["k"]


def test_a_type_whose_topic_cannot_be_written_holds_up_only_itself() -> None:
    channels = Channels({"email": 1, "broken": 1})
    p = Partition(rules(), channels)
    channels.block("broken")
    p.create("b", type="broken")
    p.create("e", type="email")
    assert order(p) == ["e"]
    assert p.where("b") is JobState.READY
    channels.open("broken", 1)
    p.step()
    assert order(p) == ["e", "b"]


def test_a_topic_with_too_few_partitions_is_as_good_as_none() -> None:
    (key,) = keys_of(0, 4, 1)
    p = Partition(rules(partitions=4), Channels({"email": 3}))
    p.create(key)
    assert p.where(key) is JobState.READY
    assert order(p) == []


def test_types_share_a_step_fairly() -> None:
    """A type with a long backlog would otherwise use up every step."""
    channels = Channels({})
    channels.makeable = {"big", "small"}
    p = Partition(rules(window=1_000, step_activations=10), channels)
    for n in range(50):
        p.create(f"b{n}", type="big")
    for n in range(3):
        p.create(f"s{n}", type="small")
    channels.open("big", 1)
    channels.open("small", 1)
    p.step()
    assert sum(key.startswith("s") for key in order(p)) == 3
    assert len(order(p)) <= 10


def test_what_earlier_attempts_have_stored_counts_as_bytes_of_a_step() -> None:
    """Hundreds of small jobs with checkpoints made a transaction too large to be taken in time, for ever."""
    p = Partition(rules(step_activation_bytes=200_000))
    for n in range(10):
        p.create(f"k{n}")
        p.send(cmd.CheckpointJob(f"k{n}", 0, 1, b"x" * 60_000))
    p.send(*(cmd.FailJob(f"k{n}", 0, 1, "boom", 0, True) for n in range(10)))
    assert [activation.attempt for _, _, activation in p.activations].count(2) == 4
    assert p.owner.wait_ms(p.now) == 0


def test_a_step_hands_out_bounded_bytes_and_goes_on_at_once() -> None:
    channels = Channels({}, makeable=["email"])
    p = Partition(rules(step_activation_bytes=1_000_000), channels)
    for n in range(5):
        p.create(f"k{n}", variables=b"x" * 600_000)
    channels.open("email", 1)
    p.step()
    assert len(order(p)) == 2
    assert p.owner.wait_ms(p.now) == 0
    p.step()
    p.step()
    assert len(order(p)) == 5
