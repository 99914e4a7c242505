"""Copies of a state: whole, unaffected by what happens meanwhile, refused where they aren't whole."""

from __future__ import annotations

import pytest

from relevo_engine.core import snapshot
from relevo_engine.core.errors import CopyUnfit, InvariantBroken
from relevo_engine.core.job import JobState
from relevo_engine.core.machine import JobMachine
from relevo_engine.core.snapshot import END, HEADER, JOBS, StateRecord
from relevo_schemas import commands as cmd
from tests.unit.core.harness import START, Channels, Partition, check_consistent, rules
from tests.unit.core.test_state import busy


def records(p: Partition) -> list[StateRecord]:
    return list(p.machine.copy().records())


def restored(p: Partition, copied: list[StateRecord]) -> JobMachine:
    machine = JobMachine(p.rules, p.channels)
    machine.restore(copied)
    return machine


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BATCH", 2)


def test_a_copy_of_nothing_is_restored() -> None:
    empty = JobMachine(rules(), Channels({}))
    machine = JobMachine(rules(), Channels({}))
    machine.restore(list(empty.copy().records()))
    assert machine.state_hash() == empty.state_hash()


def test_what_is_restored_is_what_was_there() -> None:
    p = busy()
    machine = restored(p, records(p))
    assert machine.state_hash() == p.machine.state_hash()
    check_consistent(machine, leading=False)
    assert list(machine.state.jobs) == list(p.state.jobs)
    for key, job in p.state.jobs.items():
        assert all(getattr(machine.state.jobs[key], name) == getattr(job, name) for name in job.__slots__)
    assert list(machine.state.unclaimed.items()) == list(p.state.unclaimed.items())
    assert list(machine.state.started.items()) == list(p.state.started.items())
    assert list(machine.state.finished_order) == list(p.state.finished_order)
    assert len(machine.state.timers) == len(p.state.timers)


def test_types_are_served_in_the_order_in_which_they_began_to_wait() -> None:
    """Another order after a restart would let one type overtake another, and replay find other events."""
    p = Partition(rules(window=1), Channels({}))
    p.channels._channels.update(Channels({"zebra": 1, "ant": 1, "email": 1})._channels)
    for n, name in enumerate(("zebra", "ant", "email", "zebra", "ant", "email")):
        p.create(f"k{n}", type=name)
    p.complete("k0", 1)
    assert list(p.state.waiting) == ["ant", "email"]
    p.create("k9", type="zebra")
    p.create("k10", type="zebra")
    assert list(p.state.waiting) == ["ant", "email", "zebra"]
    assert list(restored(p, records(p)).state.waiting) == ["ant", "email", "zebra"]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("taken", range(8))
def test_what_happens_while_a_copy_is_taken_does_not_show_in_it(taken: int) -> None:
    """Each job changed at any moment of the copy, before and after its turn: the copy shows it as it was."""
    p = busy()
    before = p.machine.state_hash()
    copy = p.machine.copy()
    under_way = copy.records()
    copied = [next(under_way) for _ in range(taken)]
    for key in list(p.state.jobs):
        p.send(cmd.UpdateJob(key, 5, 9))
        p.send(cmd.CancelJob(key, "gone"))
        p.send(cmd.UpdateJob(key, 6, 1))
    p.now += p.rules.finished_window_ms + 1
    p.create("later")
    for n in range(40):
        p.create(f"k{n}")  # those finished before are forgotten by now, and their keys used again
    copied += under_way
    assert copied[-1] == (END, {"state_hash": before})
    machine = restored(p, copied)
    assert machine.state_hash() == before
    check_consistent(machine, leading=False)


@pytest.mark.usefixtures("small_batches")
def test_only_what_waits_for_its_turn_is_kept_twice() -> None:
    """A copy that takes long must not hold every job that passes through meanwhile."""
    p = Partition(rules())
    for n in range(10):
        p.now += 1
        p.create(f"old{n}")
    copy = p.machine.copy()
    under_way = copy.records()
    for _ in range(4):  # the header, and six jobs
        next(under_way)
    p.now += 1
    for n in range(20):
        p.create(f"new{n}")
        p.complete(f"new{n}")
    assert copy.kept == 0
    for n in range(10):
        p.complete(f"old{n}")
    assert copy.kept <= 5
    list(under_way)
    assert copy.kept <= 1


def test_one_copy_at_a_time() -> None:
    p = busy()
    p.machine.copy()
    with pytest.raises(InvariantBroken, match="once at a time"):
        p.machine.copy()
    p.machine.release()
    p.machine.copy()


def test_a_copy_needs_an_empty_machine() -> None:
    p = busy()
    copied = records(p)
    with pytest.raises(CopyUnfit, match="empty"):
        p.machine.restore(copied)


@pytest.mark.usefixtures("small_batches")
def test_a_copy_that_is_cut_short_or_out_of_order_is_refused() -> None:
    p = busy()
    copied = records(p)
    assert len(copied) > 6
    for end in range(len(copied)):
        with pytest.raises(CopyUnfit):
            restored(p, copied[:end])
    for at in range(len(copied)):
        with pytest.raises(CopyUnfit):
            restored(p, copied[:at] + copied[at + 1 :])
        with pytest.raises(CopyUnfit):
            restored(p, copied[: at + 1] + copied[at:])
    for at in range(len(copied) - 1):
        swapped = [*copied[:at], copied[at + 1], copied[at], *copied[at + 2 :]]
        with pytest.raises(CopyUnfit):
            restored(p, swapped)


def test_a_copy_of_a_newer_format_is_refused_by_name() -> None:
    p = busy()
    (name, header), *rest = records(p)
    with pytest.raises(CopyUnfit, match="expected format 1, found format 2"):
        restored(p, [(name, header | {"format": 2}), *rest])


@pytest.mark.parametrize(
    ("which", "field", "value", "why"),
    [
        (HEADER, "partitions", 7, "a cluster of 1 partitions"),
        (HEADER, "count", 8, "8 entries in SnapshotJobs"),
        (HEADER, "seq", 5, "state hash"),
        (JOBS, "retries", [1] * 6, "state hash"),
        (JOBS, "states", [9] * 6, "contradicts itself"),
        (JOBS, "types", [9] * 6, "contradicts itself"),
    ],
)
def test_a_copy_that_contradicts_itself_is_refused(which: str, field: str, value: object, why: str) -> None:
    p = busy()
    assert len(p.state.jobs) == 6
    copied = [(name, {**fields, field: value} if name == which else fields) for name, fields in records(p)]
    with pytest.raises(CopyUnfit, match=why):
        restored(p, copied)


def test_a_restored_leader_gives_started_jobs_a_fresh_lease() -> None:
    """Otherwise a restart would expire whatever runs."""
    p = Partition(rules())
    p.create("k", lease_ms=5_000)
    p.start("k")
    machine = restored(p, records(p))
    machine.elected("n2", "i2", START + 60_000)
    assert machine._leases.until("k") == START + 65_000
    assert machine.tick(START + 64_999, 10) == []
    assert [type(event).__name__ for event in machine.tick(START + 65_000, 10)] == ["JobTimedOut"]
    assert machine.state.jobs["k"].state is JobState.READY
