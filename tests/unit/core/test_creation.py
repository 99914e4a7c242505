"""Creating jobs: once per key, within limits, now or later."""

from __future__ import annotations

from typing import Any

import pytest

from relevo_engine.core.job import JobState
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.codec import encode
from relevo_schemas.partitioning import partition_of
from tests.unit.core.harness import START, Channels, Partition, refusals, rules, spec


def test_a_job_is_created_and_handed_out_in_one_step() -> None:
    p = Partition(rules())
    created, activated = p.create("k", retries=2, variables=b'{"to":"ada"}')
    assert isinstance(created, ev.JobCreated)
    assert (created.source, created.at, created.job.variables) == (0, START, b'{"to":"ada"}')
    assert isinstance(activated, ev.JobActivated)
    assert (activated.source, activated.attempt, activated.slot) == (-1, 1, 0)
    topic, slot, activation = p.activations[0]
    assert (topic, slot) == ("relevo.activations.email", 0)
    assert (activation.partition, activation.epoch, activation.attempt, activation.retries) == (0, 1, 1, 2)
    assert activation.job == created.job


def test_a_client_that_repeats_its_create_gets_the_same_job() -> None:
    """The reply was lost and the client sent again: a second job would do the work twice."""
    p = Partition(rules())
    p.create("k")
    assert refusals(p.create("k")) == [("ALREADY_EXISTS", "ACTIVE")]
    p.complete("k")
    assert refusals(p.create("k")) == [("ALREADY_EXISTS", "COMPLETED")]
    p.failover()
    assert refusals(p.create("k")) == [("ALREADY_EXISTS", "COMPLETED")]
    assert len(p.activations) == 1


def test_padding_in_a_jobs_encoding_goes_no_further() -> None:
    """With a checkpoint beside it an activation would outgrow a record, under every leader there will be."""
    p = Partition(rules())
    value = encode(cmd.CreateJob(spec("k", priority=0)))
    number = value.index(b"email") + len(b"email")
    assert value[number] == 0
    created, _ = p.send(value[:number] + b"\x80" * 950_000 + value[number:])
    assert isinstance(created, ev.JobCreated)
    assert created.job == spec("k", priority=0)
    p.send(cmd.CheckpointJob("k", 0, 1, b"x" * 60_000))
    p.fail("k", retry_in_ms=0)
    assert [activation.attempt for _, _, activation in p.activations] == [1, 2]


def test_two_creates_of_one_key_in_one_batch_make_one_job() -> None:
    p = Partition(rules())
    events = p.send(cmd.CreateJob(spec("k")), cmd.CreateJob(spec("k")))
    assert [type(event) for event in events] == [ev.JobCreated, ev.CommandRejected, ev.JobActivated]
    assert refusals(events) == [("ALREADY_EXISTS", "READY")]


def test_a_finished_key_is_forgotten_after_its_window_by_the_time_of_events() -> None:
    p = Partition(rules(finished_window_ms=60_000))
    p.create("k")
    p.complete("k")
    p.now += 60_000
    assert refusals(p.create("k")) == [("ALREADY_EXISTS", "COMPLETED")]
    assert p.where("k") is JobState.COMPLETED  # the refusal was an event, too
    p.step(1)
    p.create("other")  # any event moves the partition's time on
    assert p.where("k") is None
    assert isinstance(p.create("k")[0], ev.JobCreated)


def test_the_oldest_finished_keys_make_room_for_more() -> None:
    """Without a bound a busy partition would remember a day of keys, however many."""
    p = Partition(rules(finished_count_max=3))
    for n in range(5):
        p.create(f"k{n}")
        p.complete(f"k{n}")
    assert [p.where(f"k{n}") for n in range(5)] == [None, None, *[JobState.COMPLETED] * 3]
    assert p.replayed().state_hash() == p.owner.state_hash()


def test_a_long_pause_is_not_followed_by_a_long_forgetting() -> None:
    p = Partition(rules(finished_window_ms=1_000))
    for n in range(100):
        p.create(f"k{n}")
        p.complete(f"k{n}")
    p.now += 10_000
    before = len(p.state.finished)
    events = p.create("x")
    assert 0 < before - len(p.state.finished) <= 16 * len(events)
    for n in range(10):
        p.create(f"y{n}")
    assert not p.state.finished


def test_run_at_ahead_waits_and_run_at_past_does_not() -> None:
    p = Partition(rules())
    p.create("later", run_at=START + 5_000)
    p.create("past", run_at=START - 5_000)
    assert [type(event) for event in p.create("now", run_at=START)] == [ev.JobCreated, ev.JobActivated]
    assert [p.where(key) for key in ("later", "past", "now")] == [
        JobState.SCHEDULED,
        JobState.ACTIVE,
        JobState.ACTIVE,
    ]
    assert p.owner.wait_ms(p.now) == 5_000
    assert p.step(4_999) == []
    due, activated = p.step(1)
    assert isinstance(due, ev.JobDue)
    assert isinstance(activated, ev.JobActivated)
    assert p.owner.wait_ms(p.now) is not None


def test_a_job_that_is_born_expired_ends_with_the_next_tick() -> None:
    p = Partition(rules())
    kinds = [type(event) for event in p.create("k", expires_at=START - 1)]
    assert kinds == [ev.JobCreated, ev.JobExpired]
    assert p.activations == []


LIMITS: list[tuple[dict[str, Any], str, str]] = [
    ({"key": ""}, "INVALID", "key of 1 to 512 bytes"),
    ({"key": "k" * 513}, "INVALID", "key of 1 to 512 bytes"),
    ({"key": "ü" * 257}, "INVALID", "key of 1 to 512 bytes"),
    ({"type": ""}, "INVALID", "type of"),
    ({"type": "../etc"}, "INVALID", "type of"),
    ({"type": "e" * 101}, "INVALID", "type of"),
    ({"type": "email\n"}, "INVALID", "type of"),
    ({"priority": 101}, "INVALID", "priority from -100 to 100"),
    ({"priority": -101}, "INVALID", "priority from -100 to 100"),
    ({"retries": -1}, "INVALID", "retries from 0 to 1000"),
    ({"retries": 1_001}, "INVALID", "retries from 0 to 1000"),
    ({"lease_ms": 999}, "INVALID", "lease_ms from 1000 to 86400000"),
    ({"lease_ms": 86_400_001}, "INVALID", "lease_ms from 1000 to 86400000"),
    ({"backoff_ms": -1}, "INVALID", "backoff_ms from 0"),
    ({"backoff_max_ms": 2_592_000_001}, "INVALID", "backoff_max_ms from 0"),
    ({"run_at": -1}, "INVALID", "run_at from 0"),
    ({"run_at": 1 << 60}, "INVALID", "run_at from 0"),
    ({"expires_at": -5}, "INVALID", "expires_at from 0"),
    ({"variables": b"x" * 900_001}, "TOO_LARGE", "variables of at most 900000 bytes"),
    ({"correlation_id": "c" * 513}, "TOO_LARGE", "correlation_id of at most 512 bytes"),
    ({"headers": {f"h{n}": "" for n in range(65)}}, "TOO_LARGE", "headers: at most 64"),
    ({"headers": {"h": "x" * 16_384}}, "TOO_LARGE", "headers of at most 16384 bytes"),
    ({"type": "nobody"}, "UNKNOWN_TYPE", "a declared type"),
]


@pytest.mark.parametrize(("fields", "reason", "expected"), LIMITS, ids=lambda value: str(value)[:40])
def test_a_field_out_of_bounds_is_refused_by_name(fields: dict[str, Any], reason: str, expected: str) -> None:
    p = Partition(rules())
    (event,) = p.create(**fields)
    assert isinstance(event, ev.CommandRejected)
    assert event.reason == reason
    assert event.expected.startswith(expected)
    assert len(event.found) < 200
    assert not p.state.jobs
    assert isinstance(p.create("next")[0], ev.JobCreated)


def test_the_largest_job_that_is_allowed_fits_into_every_record_about_it() -> None:
    """A job that is accepted but can't be handed out would stand in the way of its partition for ever."""
    p = Partition(rules())
    p.create(
        "k" * 512, type="email", variables=b"x" * 900_000, correlation_id="c" * 512,
        headers={f"{n:03}" + "h" * 100: "x" * 153 for n in range(64)},
    )  # fmt: skip
    assert len(p.activations) == 1
    assert isinstance(p.complete("k" * 512, result=b"y" * 900_000)[0], ev.JobCompleted)


def test_a_key_on_the_wrong_partition_is_refused() -> None:
    """A client with another partitioner would spread one key over two partitions, and so over two jobs."""
    key = next(f"k{n}" for n in range(100) if partition_of(f"k{n}", 4) == 3)
    p = Partition(rules(partition=1, partitions=4), Channels({"email": 4}))
    (event,) = p.create(key)
    assert isinstance(event, ev.CommandRejected)
    assert (event.reason, event.expected, event.found) == (
        "WRONG_PARTITION",
        "partition 3 of 4",
        "partition 1",
    )
    assert refusals(p.complete(key)) == [("WRONG_PARTITION", "partition 1")]


def test_a_job_of_a_type_that_may_be_made_waits_for_its_topic() -> None:
    p = Partition(rules(), Channels({}, makeable=["fresh"]))
    assert [type(event) for event in p.create("k", type="fresh")] == [ev.JobCreated]
    assert p.where("k") is JobState.READY
    assert p.owner.wait_ms(p.now) == p.rules.recheck_ms
    assert isinstance(p.channels, Channels)
    p.channels.open("fresh", 1)
    assert p.owner.wait_ms(p.now) == 0
    assert [type(event) for event in p.step()] == [ev.JobActivated]
