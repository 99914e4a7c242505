"""After a lease expiry a job goes to a slot that somebody else reads, as far as workers have told."""

from __future__ import annotations

import pytest

from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from tests.unit.core.harness import Channels, Partition, keys_of, only, refusals, rules

LEASE = 10_000


def partition(partitions: int = 4, slots: int = 4, number: int = 0) -> tuple[Partition, list[str]]:
    p = Partition(rules(partition=number, partitions=partitions), Channels({"email": slots}))
    return p, keys_of(number, partitions, 40)


def tell(p: Partition, worker: str, *slots: int, job_type: str = "email") -> list[ev.CommandRejected]:
    return only(p.send(cmd.ReportSlots(worker, job_type, slots)), ev.CommandRejected)


def retried_at(p: Partition, keys: list[str], worker: str) -> list[int]:
    """Slots to which jobs go whose lease runs out at ``worker``."""
    for key in keys:
        p.create(key, lease_ms=LEASE)
        p.start(key, attempt=1, worker=worker)
    del p.activations[:]
    p.step(LEASE)
    found = {each.job.key: slot for _, slot, each in p.activations}
    return [found[key] for key in keys]


def test_a_dead_workers_jobs_do_not_wait_in_another_slot_of_its_own() -> None:
    """They would until Kafka has noticed its death as well: seconds more than the lease."""
    p, keys = partition()
    p.create(keys[0])
    tell(p, "dead", 0, 1)
    assert set(retried_at(p, keys[1:9], "dead")) == {2, 3}, "to others, and to all of them"


def test_what_nobody_has_told_is_guessed_as_ever() -> None:
    p, keys = partition()
    assert set(retried_at(p, keys[:4], "dead")) == {1}


def test_a_worker_that_has_all_slots_gets_its_job_back_elsewhere() -> None:
    p, keys = partition()
    p.create(keys[0])
    tell(p, "only", 0, 1, 2, 3)
    assert set(retried_at(p, keys[1:4], "only")) == {1}


def test_the_partitions_own_slots_come_first() -> None:
    """A leader's open transaction holds up the readers of every partition it touches."""
    p, keys = partition(partitions=2, slots=6, number=1)
    p.create(keys[0], lease_ms=LEASE)
    first = p.activations[0][1]
    tell(p, "dead", 0, first)
    tell(p, "alive", 2, 4, *({1, 3, 5} - {first}))
    p.start(keys[0], worker="dead")
    p.step(LEASE)
    assert p.activations[-1][1] in {1, 3, 5} - {first}


def test_another_workers_slots_are_used_when_all_own_ones_are_the_dead_ones() -> None:
    p, keys = partition(partitions=2, slots=4, number=1)
    p.create(keys[0])
    tell(p, "dead", 1, 3)
    assert {*retried_at(p, keys[1:9], "dead")} == {0, 2}


def test_workers_that_fell_silent_are_all_avoided_until_they_are_heard() -> None:
    p, keys = partition()
    p.create(keys[0])
    tell(p, "w0", 0)
    tell(p, "w1", 1)
    p.create(keys[1], lease_ms=LEASE)
    p.start(keys[1], worker="w1")  # got there by an earlier retry
    assert set(retried_at(p, keys[2:10], "w0")) == {2, 3}
    tell(p, "w0", 0)
    tell(p, "w1", 1)
    assert set(retried_at(p, keys[10:20], "w0")) == {1, 2, 3}


def test_the_last_word_about_a_slot_counts() -> None:
    """After a rebalance; and a worker whose slots have all gone to others is forgotten."""
    p, keys = partition()
    p.create(keys[0])
    tell(p, "old", 0, 1, 2)
    tell(p, "new", 1, 2)
    tell(p, "old", 0)
    assert set(retried_at(p, keys[1:9], "old")) == {1, 2, 3}
    tell(p, "new", 0, 1, 2, 3)
    readers = p.machine._turn.readers
    assert (set(readers._owner.values()), readers._counts, readers._silent) == ({"new"}, {"new": 4}, set())


def test_memory_is_bounded_by_the_slots_whatever_is_told() -> None:
    """Names of workers are new after every restart."""
    p, keys = partition()
    p.create(keys[0])
    for n in range(200):
        tell(p, f"w{n}", n % 4, (n + 1) % 4)
    tell(p, "far", 99, -1)
    readers = p.machine._turn.readers
    assert len(readers._owner) == 4
    assert len(readers._counts) <= 4


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (cmd.ReportSlots("w", "other", (0,)), "UNKNOWN_TYPE"),
        (cmd.ReportSlots("w" * 300, "email", (0,)), "INVALID"),
        (cmd.ReportSlots("w", "email", (0, 1, 2, 3, 4)), "INVALID"),
    ],
)
def test_what_makes_no_sense_is_refused(command: cmd.ReportSlots, reason: str) -> None:
    p, keys = partition()
    p.create(keys[0])
    assert [found for found, _ in refusals(p.send(command))] == [reason]


def test_it_is_no_matter_of_the_log() -> None:
    """What a leader was told chooses the slot, which the log then tells: replay needs no more."""
    p, keys = partition()
    p.create(keys[0])
    before = len(p.log)
    assert tell(p, "dead", 0, 1) == []
    assert len(p.log) == before
    retried_at(p, keys[1:5], "dead")
    assert p.replayed().state_hash() == p.owner.state_hash()
