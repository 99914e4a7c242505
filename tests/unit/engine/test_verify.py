"""Each promise of the job log by itself: a log that breaks it, and one that comes close and doesn't."""

from __future__ import annotations

from typing import Any

import pytest

from relevo_engine.verify import Invariant, Remembered, Violation
from relevo_schemas import events as ev
from relevo_schemas.partitioning import partition_of
from relevo_schemas.records import Event
from tests.unit.core.harness import START, keys_of
from tests.unit.engine.verify_logs import STEP, TOPIC, Written, verify


def first_of(log: Written, **options: Any) -> Violation:
    report = verify(log.records, partitions=log.partitions, **options)
    violation = report.partitions[log.partition].first_violation
    assert violation is not None, "nothing was found"
    assert violation.topic == TOPIC
    return violation


def assert_sound(log: Written, **options: Any) -> None:
    report = verify(log.records, partitions=log.partitions, **options)
    assert report.ok, [str(each) for each in report.violations]


@pytest.fixture
def log() -> Written:
    """A term in which a job was created, and is ready."""
    written = Written()
    written.add(ev.LeaderElected)
    written.add(ev.JobCreated, "a")
    return written


def run(log: Written, *kinds: type[Event]) -> int:
    """Append events about job a; gives the offset of the last."""
    return [log.add(kind, "a") for kind in kinds][-1]


def test_a_jobs_life_is_sound(log: Written) -> None:
    run(log, ev.JobActivated, ev.JobStarted)
    log.add(ev.JobFailed, "a", retry_at=log.at + 100)
    run(log, ev.JobUpdated, ev.JobDue)
    log.add(ev.JobActivated, "a", attempt=2)
    log.add(ev.JobTimedOut, "a", attempt=2)
    log.add(ev.LeaderElected)
    log.add(ev.JobActivated, "a", attempt=3)
    log.add(ev.JobFailed, "a", attempt=3, retry_at=-1)
    log.add(ev.JobIncident, "a", attempt=3)
    log.add(ev.JobRetried, "a")
    log.add(ev.JobActivated, "a", attempt=4)
    log.add(ev.JobCompleted, "a", attempt=2)  # late, and welcome
    assert_sound(log)


# --- SEQ ---


def test_the_first_event_has_number_one() -> None:
    """Whoever deletes the beginning of a log from Kafka deletes jobs."""
    log = Written(first_seq=5)
    where = log.add(ev.LeaderElected)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.SEQ, where)
    assert (first_of(log).expected, first_of(log).seq) == ("seq 1", 5)


@pytest.mark.parametrize(("seq", "says"), [(4, "missing"), (6, "3 events are missing"), (2, "second writer")])
def test_numbers_have_no_hole_and_no_repeat(log: Written, seq: int, says: str) -> None:
    where = log.add(ev.JobUpdated, "a", seq=seq)
    violation = first_of(log)
    assert (violation.invariant, violation.offset, violation.expected) == (Invariant.SEQ, where, "seq 3")
    assert says in violation.found


def test_after_a_repeat_the_log_goes_on(log: Written) -> None:
    """One record too many is one violation, not one for each that follows."""
    log.records.append(log.records[-1]._replace(offset=len(log.records) * STEP))
    run(log, ev.JobActivated, ev.JobCompleted)
    assert verify(log.records).violation_count == 1


def test_after_a_stray_record_the_log_goes_on(log: Written) -> None:
    log.add(ev.JobUpdated, "a", seq=900)
    log.add(ev.JobActivated, "a", seq=3)
    run(log, ev.JobStarted, ev.JobCompleted)
    assert verify(log.records).by_invariant == {"SEQ": 2}


# --- A log that was trimmed ---


def test_a_trimmed_log_begins_where_it_begins() -> None:
    """A log that is trimmed below its snapshots is as sound as before."""
    log = Written(first_seq=41)
    log.epoch = 3
    for kind in (ev.JobStarted, ev.JobCompleted):
        log.add(kind, "old", attempt=2)
    log.add(ev.LeaderElected)
    log.add(ev.JobCreated, "new")
    log.add(ev.JobUpdated, "older")
    report = verify(log.records, start=7)
    assert report.ok, report.violations
    where = report.partitions[0]
    assert (where.trimmed, where.first_seq, where.last_seq, where.epoch) == (True, 41, 45, 4)
    assert report.counts.open == {"SCHEDULED": 0, "READY": 1, "ACTIVE": 0, "INCIDENT": 0, "UNKNOWN": 1}
    assert report.takeovers[0].previous_node is None


def test_what_is_known_of_a_trimmed_log_is_checked() -> None:
    log = Written(first_seq=41)
    log.epoch = 3
    log.add(ev.JobCompleted, "old", attempt=2)
    where = log.add(ev.JobCompleted, "old", attempt=2)
    violation = first_of(log, start=7)
    assert (violation.invariant, violation.offset) == (Invariant.COMPLETED_ONCE, where)


# --- EPOCH ---


def test_a_log_begins_with_an_announcement() -> None:
    log = Written()
    where = log.add(ev.JobCreated, "a", epoch=1)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.EPOCH, where)
    assert first_of(log).expected == "LeaderElected as the first event"


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_announcement_raises_the_epoch(log: Written, epoch: int) -> None:
    where = log.add(ev.LeaderElected, epoch=epoch)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.EPOCH, where)


@pytest.mark.parametrize("epoch", [1, 3])
def test_events_have_the_epoch_that_was_announced(log: Written, epoch: int) -> None:
    """A deposed leader that writes on, and one that was never announced."""
    log.add(ev.LeaderElected)
    where = log.add(ev.JobActivated, "a", epoch=epoch)
    violation = first_of(log)
    assert (violation.invariant, violation.offset) == (Invariant.EPOCH, where)
    assert violation.expected == "an event of epoch 2"


# --- TIME, SOURCE ---


def test_time_never_goes_back(log: Written) -> None:
    log.add(ev.JobUpdated, "a", at=log.at)
    assert_sound(log)
    where = log.add(ev.JobUpdated, "a", at=log.at - 1)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.TIME, where)


def test_a_command_is_decided_once(log: Written) -> None:
    """A leader that reads commands again makes of one payment two."""
    for source in (0, 4, 4, -1, 5):
        log.add(ev.JobUpdated, "a", source=source)
    assert_sound(log)
    where = log.add(ev.JobUpdated, "a", source=4)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.SOURCE, where)


def test_several_events_of_a_command_are_not_torn_apart(log: Written) -> None:
    for source in (4, -1):
        log.add(ev.JobUpdated, "a", source=source)
    where = log.add(ev.JobUpdated, "a", source=4)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.SOURCE, where)


# --- KEY, PLACE ---


@pytest.mark.parametrize("record_key", [b"b", b"", None])
def test_a_records_key_is_the_jobs(log: Written, record_key: bytes | None) -> None:
    where = log.add(ev.JobUpdated, "a", record_key=record_key)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.KEY, where)


def test_an_announcement_has_no_key(log: Written) -> None:
    log.add(ev.LeaderElected, record_key=None)
    assert_sound(log)
    log.add(ev.LeaderElected, record_key=b"a")
    assert first_of(log).invariant is Invariant.KEY


def test_a_job_stands_in_its_partition() -> None:
    log = Written(partition=1, partitions=4)
    log.add(ev.LeaderElected)
    log.add(ev.JobCreated, keys_of(1, 4, 1)[0])
    assert_sound(log)
    key = keys_of(2, 4, 1)[0]
    where = log.add(ev.JobCreated, key)
    violation = first_of(log)
    assert (violation.invariant, violation.offset, violation.key) == (Invariant.PLACE, where, key)
    assert violation.expected == "partition 2 of 4"


def test_a_refusal_stands_where_the_command_was() -> None:
    """A command sent to the wrong partition is refused there, under its own key."""
    log = Written(partition=1, partitions=4)
    log.add(ev.LeaderElected)
    key = keys_of(2, 4, 1)[0]
    assert partition_of(key, 4) == 2
    log.add(ev.CommandRejected, key, reason="WRONG_PARTITION")
    assert_sound(log)


# --- CREATED_ONCE ---


def test_an_open_job_is_not_created_again(log: Written) -> None:
    where = log.add(ev.JobCreated, "a")
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.CREATED_ONCE, where)


def test_an_ended_job_is_not_created_again_while_it_is_remembered(log: Written) -> None:
    run(log, ev.JobActivated, ev.JobCompleted)
    where = log.add(ev.JobCreated, "a", at=log.at + 1_000)
    violation = first_of(log, remembered=Remembered(1_000, 10))
    assert (violation.invariant, violation.offset) == (Invariant.CREATED_ONCE, where)


def test_a_forgotten_job_may_be_created_again(log: Written) -> None:
    run(log, ev.JobActivated, ev.JobCompleted)
    log.add(ev.JobCreated, "b", at=log.at + 1_001)
    log.add(ev.JobCreated, "a")
    assert_sound(log, remembered=Remembered(1_000, 10))
    assert verify(log.records, remembered=Remembered(1_001, 10)).by_invariant == {"CREATED_ONCE": 1}


def test_a_job_may_be_created_again_when_too_many_ended_after_it(log: Written) -> None:
    run(log, ev.JobCancelled)
    for key in "bc":
        log.add(ev.JobCreated, key)
        log.add(ev.JobCancelled, key)
    log.add(ev.JobCreated, "a")
    assert_sound(log, remembered=Remembered(10**9, 2))
    assert verify(log.records, remembered=Remembered(10**9, 3)).by_invariant == {"CREATED_ONCE": 1}


def test_a_refused_job_may_be_created(log: Written) -> None:
    log.add(ev.CommandRejected, "b", reason="UNKNOWN_TYPE")
    log.add(ev.JobCreated, "b")
    assert_sound(log)


# --- OPEN_JOB, COMPLETED_ONCE, ENDED_ONCE ---


def test_an_event_about_no_job_is_found(log: Written) -> None:
    where = log.add(ev.JobActivated, "lost")
    log.add(ev.JobStarted, "lost")
    report = verify(log.records)
    assert report.by_invariant == {"OPEN_JOB": 1}, "one job, one violation"
    assert (first_of(log).offset, first_of(log).key) == (where, "lost")


def test_a_job_is_completed_once(log: Written) -> None:
    where = run(log, ev.JobActivated, ev.JobCompleted, ev.JobCompleted)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.COMPLETED_ONCE, where)


@pytest.mark.parametrize("kind", [ev.JobCancelled, ev.JobExpired, ev.JobErrored])
def test_a_job_ends_once(log: Written, kind: type[Event]) -> None:
    where = run(log, ev.JobActivated, ev.JobCompleted, kind)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.ENDED_ONCE, where)


def test_nothing_happens_to_a_job_that_ended(log: Written) -> None:
    where = run(log, ev.JobActivated, ev.JobErrored, ev.JobUpdated)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.OPEN_JOB, where)


# --- ATTEMPT ---


@pytest.mark.parametrize("attempt", [0, 2])
def test_attempts_rise_by_one(log: Written, attempt: int) -> None:
    where = log.add(ev.JobActivated, "a", attempt=attempt)
    violation = first_of(log)
    assert (violation.invariant, violation.offset) == (Invariant.ATTEMPT, where)
    assert violation.expected == "attempt 1"


@pytest.mark.parametrize("kind", [ev.JobStarted, ev.JobCheckpointed, ev.JobFailed, ev.JobErrored])
def test_an_outcome_is_of_the_attempt_under_way(log: Written, kind: type[Event]) -> None:
    log.add(ev.JobActivated, "a")
    where = log.add(kind, "a", attempt=2)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.ATTEMPT, where)


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_completion_is_of_an_attempt_that_was_handed_out(log: Written, attempt: int) -> None:
    log.add(ev.JobActivated, "a")
    where = log.add(ev.JobCompleted, "a", attempt=attempt)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.ATTEMPT, where)


# --- TRANSITION ---


@pytest.mark.parametrize(
    "before",
    [[ev.JobActivated], [ev.JobActivated, ev.JobFailed], [ev.JobActivated, ev.JobTimedOut, ev.JobIncident]],
)
def test_only_a_ready_job_is_handed_out(log: Written, before: list[type[Event]]) -> None:
    """Active, waiting for its next attempt, or waiting for a person: two workers, or one too soon."""
    run(log, *before)
    where = log.add(ev.JobActivated, "a", attempt=2)
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.TRANSITION, where)


def test_a_scheduled_job_becomes_due_first(log: Written) -> None:
    log.add(ev.JobCreated, "later", run_at=START + 100_000)
    log.add(ev.JobDue, "later")
    log.add(ev.JobActivated, "later")
    assert_sound(log)
    where = log.add(ev.JobDue, "a")
    violation = first_of(log)
    assert (violation.invariant, violation.offset) == (Invariant.TRANSITION, where)
    assert (violation.expected, violation.found) == (
        "a job that is SCHEDULED",
        "JobDue for 'a', which is READY",
    )


@pytest.mark.parametrize("kind", [ev.JobStarted, ev.JobFailed, ev.JobErrored, ev.JobTimedOut, ev.JobRetried])
def test_what_needs_an_attempt_under_way_has_one(log: Written, kind: type[Event]) -> None:
    where = log.add(kind, "a")
    assert (first_of(log).invariant, first_of(log).offset) == (Invariant.TRANSITION, where)
