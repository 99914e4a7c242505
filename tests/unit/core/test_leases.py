"""Leases: from start to expiry, extended by signs of life, renewed by a failover."""

from __future__ import annotations

from itertools import pairwise

import pytest

from relevo_engine.core.job import JobState
from relevo_partitions.statemachine import Incoming
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.codec import encode
from tests.unit.core.harness import Channels, Partition, keys_of, only, refusals, rules

LEASE = 10_000


def test_waiting_in_kafka_costs_no_lease() -> None:
    """1,000 jobs wait longer than their lease for one slow worker: nothing may be handed out twice."""
    p = Partition(rules())
    for n in range(1_000):
        p.create(f"k{n}", lease_ms=LEASE)
    p.step(10 * LEASE)
    assert len(p.activations) == 1_000
    assert not only(p.events, ev.JobTimedOut)


def test_a_worker_that_falls_silent_loses_the_job() -> None:
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    (started,) = p.start("k", worker="w1")
    assert isinstance(started, ev.JobStarted)
    assert p.owner.wait_ms(p.now) == LEASE
    assert p.step(LEASE - 1) == []
    timed_out, activated = p.step(1)
    assert isinstance(timed_out, ev.JobTimedOut)
    assert (timed_out.cause, timed_out.attempt, timed_out.expiries) == ("LEASE", 1, 1)
    assert isinstance(activated, ev.JobActivated)
    assert activated.attempt == 2
    assert p.job("k").retries == 3, "a lease expiry is no failure"


def test_signs_of_life_keep_the_job_and_leave_no_trace() -> None:
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    p.start("k")
    before = len(p.log)
    for _ in range(10):
        p.now += LEASE - 1
        assert p.extend("k", lease_ms=LEASE) == []
    assert len(p.log) == before
    assert len(p.step(LEASE)) == 2


def test_an_extension_may_also_shorten() -> None:
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    p.start("k")
    p.extend("k", lease_ms=1_000)
    assert p.owner.wait_ms(p.now) == 1_000
    assert p.step(999) == []
    assert only(p.step(1), ev.JobTimedOut)


def test_an_extension_of_an_attempt_whose_start_went_astray_starts_it() -> None:
    """Otherwise a worker that is busy would have its job taken away as one that nobody took up."""
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    (event,) = p.extend("k")
    assert isinstance(event, ev.JobStarted)
    assert "k" in p.state.started


def test_a_worker_may_ask_for_another_lease_than_the_jobs_own() -> None:
    """Its handler takes longer: neither a start nor a failover may cut it to the job's own lease."""
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    (event,) = p.send(cmd.StartJobs("w1", (cmd.LeaseRef("k", 0, 1, 5 * LEASE),)))
    assert isinstance(event, ev.JobStarted)
    assert p.step(5 * LEASE - 1) == []
    p.failover()
    assert p.step(5 * LEASE - 1) == []
    assert only(p.step(1), ev.JobTimedOut)


@pytest.mark.parametrize("first", [cmd.StartJobs, cmd.ExtendJobs])
def test_start_and_extension_in_either_order_give_the_lease_that_was_asked_for(
    first: type[cmd.StartJobs | cmd.ExtendJobs],
) -> None:
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    refs = (cmd.LeaseRef("k", 0, 1, 5 * LEASE),)
    for command in (first, cmd.ExtendJobs if first is cmd.StartJobs else cmd.StartJobs):
        p.send(command("w1", refs))
    assert p.step(5 * LEASE - 1) == []


def test_extensions_that_are_refused_say_which() -> None:
    p = Partition(rules())
    p.create("a", lease_ms=LEASE)
    p.create("b")
    p.start("a")
    refs = (
        cmd.LeaseRef("a", 0, 1, LEASE),
        cmd.LeaseRef("a", 0, 1, 5),
        cmd.LeaseRef("b", 0, 2, LEASE),
        cmd.LeaseRef("c", 0, 1, LEASE),
    )
    assert refusals(p.send(cmd.ExtendJobs("w1", refs))) == [
        ("INVALID", "5"),
        ("INVALID", "2"),
        ("NOT_FOUND", "none"),
    ]
    p.complete("a")
    p.fail("b")
    later = (cmd.LeaseRef("a", 0, 1, LEASE), cmd.LeaseRef("b", 0, 1, LEASE))
    assert refusals(p.send(cmd.ExtendJobs("w1", later))) == [
        ("ALREADY_COMPLETED", "COMPLETED"),
        ("NOT_ACTIVE", "SCHEDULED"),
    ]


def test_a_batch_of_starts_is_answered_job_by_job() -> None:
    p = Partition(rules())
    p.create("a")
    p.create("b")
    p.complete("b")
    events = p.send(
        cmd.StartJobs(
            "w1", (cmd.LeaseRef("a", 0, 1, 0), cmd.LeaseRef("b", 0, 1, 0), cmd.LeaseRef("a", 0, 1, 0))
        )
    )
    assert [type(event) for event in events] == [ev.JobStarted, ev.CommandRejected, ev.JobStarted]
    assert {event.source for event in events} == {3}
    assert p.replayed().position == 4


def test_a_worker_that_starts_an_attempt_again_goes_on_with_it() -> None:
    """It may ask twice: only another worker's start says that the first one is gone."""
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    p.start("k", worker="w1")
    p.now += LEASE - 1
    (event,) = p.start("k", worker="w1")
    assert isinstance(event, ev.JobStarted)
    assert p.step(LEASE - 1) == []


def test_a_start_of_the_same_attempt_by_another_worker_ends_it_and_another_follows() -> None:
    """Were it just started once more, a job that kills its workers would never be counted."""
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    p.start("k", worker="w1")
    timed_out, activated = p.start("k", worker="w2")
    assert isinstance(timed_out, ev.JobTimedOut)
    assert (timed_out.cause, timed_out.attempt, timed_out.expiries, timed_out.source) == (
        "TAKEN_OVER",
        1,
        1,
        2,
    )
    assert isinstance(activated, ev.JobActivated)
    assert [(each.attempt, each.expiries) for _, _, each in p.activations] == [(1, 0), (2, 1)]
    assert refusals(p.extend("k", 1)) == [("STALE_ATTEMPT", "attempt 1")], "the first worker hears of it"
    assert isinstance(p.start("k", 2, worker="w2")[0], ev.JobStarted)
    assert isinstance(p.complete("k", 1)[0], ev.JobCompleted), "its result counts all the same"


def test_a_sign_of_life_by_another_worker_ends_nothing() -> None:
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    p.start("k", worker="w2")
    assert p.extend("k") == []


def test_a_job_redelivered_before_its_lease_runs_out_is_counted_too() -> None:
    """Kafka may be quicker than the lease each time; a failover in between forgets nothing."""
    p = Partition(rules(lease_expiries_max=3))
    p.create("k", lease_ms=LEASE)
    for attempt in (1, 2, 3):
        p.start("k", attempt, worker=f"w{attempt}")
        p.failover()
        p.start("k", attempt, worker=f"w{attempt + 1}")
    assert p.where("k") is JobState.INCIDENT
    (incident,) = only(p.events, ev.JobIncident)
    assert (incident.cause, incident.message) == (
        "LEASES_EXHAUSTED",
        "3 attempts fell silent, the last one at worker w3",
    )
    assert [each.expiries for _, _, each in p.activations] == [0, 1, 2]
    assert p.replayed().state_hash() == p.owner.state_hash()


def test_a_batch_takes_over_each_attempt_once() -> None:
    """A second mention must not end the attempt again: the partition's leader would stop over it."""
    p = Partition(rules(lease_expiries_max=1))
    for key in ("a", "b", "c"):
        p.create(key)
    p.start("a", worker="w1")
    p.start("b", worker="w1")
    refs = tuple(cmd.LeaseRef(key, 0, 1, 0) for key in ("a", "c", "b", "a"))
    events = p.send(cmd.StartJobs("w2", refs))
    assert [type(event).__name__ for event in events] == [
        "JobTimedOut", "JobIncident", "JobStarted", "JobTimedOut", "JobIncident", "CommandRejected",
    ]  # fmt: skip
    assert refusals(events) == [("NOT_ACTIVE", "READY")]
    assert p.replayed().state_hash() == p.owner.state_hash()


def test_a_log_in_which_attempts_were_started_twice_is_replayed_as_it_was_written() -> None:
    """Earlier versions wrote that, and snapshots hold what it led to."""
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    p.start("k", worker="w1")
    machine = p.replayed()
    last = p.events[-1]
    again = ev.JobStarted(last.seq + 1, last.epoch, last.at, 2, "k", 1, "w2", LEASE)
    machine.replay([Incoming(len(p.log), b"k", encode(again))])
    job = machine._machine.state.jobs["k"]
    assert (job.worker, job.lease_expiries, job.attempt, job.state) == ("w2", 0, 1, JobState.ACTIVE)


def test_jobs_of_one_dead_worker_all_go_to_other_slots_with_their_count() -> None:
    p = Partition(rules(), Channels({"email": 4}))
    for n in range(40):
        p.create(f"k{n}", lease_ms=LEASE)
        p.start(f"k{n}")
    first = {each.job.key: slot for _, slot, each in p.activations}
    del p.activations[:]
    p.step(LEASE)
    second = {each.job.key: slot for _, slot, each in p.activations}
    assert second.keys() == first.keys()
    assert all(second[key] != first[key] for key in first)
    assert {each.expiries for _, _, each in p.activations} == {1}


def test_after_a_retry_by_request_the_count_begins_anew() -> None:
    p = Partition(rules(lease_expiries_max=1))
    p.create("k", lease_ms=LEASE)
    p.start("k")
    p.step(LEASE)
    p.send(cmd.RetryJob("k", 3))
    assert [(each.attempt, each.expiries) for _, _, each in p.activations] == [(1, 0), (2, 0)]


def test_batches_and_names_are_bounded() -> None:
    p = Partition(rules(batch_jobs_max=2))
    refs = tuple(cmd.LeaseRef(f"k{n}", 0, 1, 0) for n in range(3))
    assert refusals(p.send(cmd.StartJobs("w", refs))) == [("INVALID", "3 jobs")]
    assert refusals(p.send(cmd.StartJobs("w", ()))) == [("INVALID", "0 jobs")]
    assert refusals(p.send(cmd.StartJobs("w" * 257, refs[:1]))) == [("INVALID", "257 bytes")]


def test_a_failover_gives_every_started_job_a_full_fresh_lease() -> None:
    """A failover by itself must never cause a duplicate, whatever the new leader's clock says."""
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    p.start("k")
    p.now += LEASE - 1
    p.failover()
    assert p.step(LEASE - 1) == []
    assert only(p.step(1), ev.JobTimedOut)


def test_a_new_leader_whose_clock_is_behind_does_not_cut_leases() -> None:
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    p.start("k")
    p.now -= 3_600_000
    p.failover()
    assert p.state.last_at == p.now + 3_600_000, "time on the log never goes back"
    p.now += 3_600_000
    assert p.step(LEASE - 1) == []
    assert only(p.step(1), ev.JobTimedOut)


def test_a_job_that_kills_its_workers_ends_up_before_a_person() -> None:
    p = Partition(rules(lease_expiries_max=3))
    p.create("k", lease_ms=LEASE)
    for attempt in (1, 2, 3):
        p.start("k", attempt)
        p.step(LEASE)
    assert p.where("k") is JobState.INCIDENT
    (incident,) = only(p.events, ev.JobIncident)
    assert incident.cause == "LEASES_EXHAUSTED"
    assert incident.message == "3 attempts fell silent, the last one at worker w1"
    assert len(p.activations) == 3
    assert p.owner.wait_ms(p.now) is None


def test_after_a_lease_expiry_the_job_goes_to_another_partition_of_its_topic() -> None:
    """Behind the worker that is stuck it would wait as long as that one hangs."""
    (key,) = keys_of(1, 3, 1)
    p = Partition(rules(partition=1, partitions=3, lease_expiries_max=9), Channels({"email": 9}))
    p.create(key, lease_ms=LEASE)
    slots = [p.activations[0][1]]
    for attempt in (1, 2, 3):
        p.start(key, attempt)
        p.step(LEASE)
        slots.append(p.activations[-1][1])
    assert {slot % 3 for slot in slots} == {1}, "only the partition's own"
    assert all(before != after for before, after in pairwise(slots))
    assert set(slots) == {1, 4, 7}


def test_with_one_slot_per_partition_the_neighbour_helps_out() -> None:
    (key,) = keys_of(2, 3, 1)
    p = Partition(rules(partition=2, partitions=3, lease_expiries_max=9), Channels({"email": 3}))
    p.create(key, lease_ms=LEASE, retries=5)
    p.start(key)
    p.step(LEASE)
    assert [slot for _, slot, _ in p.activations] == [2, 0]
    p.start(key, 2)
    p.failover()
    p.step(LEASE)
    assert [slot for _, slot, _ in p.activations] == [2, 0, 1], "past the second stuck worker too"
    for attempt in (3, 4):
        p.fail(key, attempt, retry_in_ms=0)
        assert p.activations[-1][1] == 2, "a failure is no reason to stay away"


def test_activations_are_spread_over_the_partitions_own_slots() -> None:
    p = Partition(rules(), Channels({"email": 4}))
    for n in range(40):
        p.create(f"k{n}")
    slots = [slot for _, slot, _ in p.activations]
    assert [slots.count(slot) for slot in range(4)] == [10, 10, 10, 10]


def test_a_finished_job_leaves_no_lease_behind() -> None:
    p = Partition(rules())
    for n in range(100):
        p.create(f"k{n}", lease_ms=86_400_000)
        p.start(f"k{n}")
        p.complete(f"k{n}")
    assert len(p.machine._leases) == 0
    assert p.machine._leases.footprint <= 33
