"""What a verification tells: counts, takeovers, expected jobs, JSON; and how little memory it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relevo_engine.verify import Fault, Invariant, LogCheck, LogVerifier, VerifyError
from relevo_engine.verify.facts import FactStore, JobFacts
from relevo_schemas import events as ev
from relevo_schemas.partitioning import partition_of
from tests.unit.core.harness import START, keys_of
from tests.unit.engine.verify_logs import TOPIC, Written, verify


def a_log(partition: int = 0, partitions: int = 1) -> Written:
    """Five jobs that end in different ways, or not at all, and two terms."""
    log = Written(partition, partitions)
    done, failed, silent, cancelled, waits = keys_of(partition, partitions, 5)
    log.add(ev.LeaderElected, node="n1", at=START)
    for key in (done, failed, silent, cancelled, waits):
        log.add(ev.JobCreated, key)
    for key in (done, failed, silent):
        log.add(ev.JobActivated, key)
    log.add(ev.JobCompleted, done)
    log.add(ev.JobFailed, failed, retry_at=-1)
    log.add(ev.JobIncident, failed)
    log.add(ev.JobTimedOut, silent, at=START + 100)
    log.add(ev.LeaderElected, node="n2", at=START + 180)
    log.add(ev.JobCancelled, cancelled, at=START + 190)
    log.add(ev.JobActivated, silent, attempt=2, at=START + 205)
    log.add(ev.CommandRejected, done, reason="ALREADY_EXISTS")
    log.add(ev.CommandRejected, done, command="CompleteJob", reason="ALREADY_COMPLETED")
    log.add(ev.CommandRejected, "no", reason="INVALID") if partitions == 1 else None
    return log


def test_counts() -> None:
    """They are compared with what the sender of jobs knows."""
    report = verify(a_log().records)
    assert report.ok, report.violations
    counts = report.counts
    assert (counts.created, counts.completed, counts.cancelled, counts.errored, counts.expired) == (
        5,
        1,
        1,
        0,
        0,
    )
    assert counts.open == {"SCHEDULED": 0, "READY": 1, "ACTIVE": 1, "INCIDENT": 1}
    assert counts.open_total == 3
    assert (counts.attempts, counts.extra_attempts) == (4, 1)
    assert (counts.failures, counts.lease_expiries, counts.unclaimed, counts.incidents) == (1, 1, 0, 1)
    assert (counts.repeated_creates, counts.late_completions) == (1, 1)
    assert counts.refusals == {"ALREADY_EXISTS": 1, "ALREADY_COMPLETED": 1, "INVALID": 1}
    assert (counts.records, counts.events, counts.elections) == (19, 19, 2)


def test_takeovers_are_measured() -> None:
    """How long a partition stood still is what a failover is judged by."""
    began, taken = verify(a_log().records).takeovers
    assert (began.node, began.previous_node, began.gap_ms, began.epoch) == ("n1", None, None, 1)
    assert (taken.node, taken.previous_node, taken.epoch) == ("n2", "n1", 2)
    assert (taken.gap_ms, taken.first_activation_ms) == (80, 25)


def test_json_is_one_document_with_everything() -> None:
    log = a_log()
    log.add(ev.JobUpdated, "gone")
    told = json.loads(verify(log.records, expected=["k0", "nowhere"]).to_json())
    assert told["ok"] is False
    assert told["violation_count"] == 2
    assert told["by_invariant"] == {"OPEN_JOB": 1, "ACCEPTED": 1}
    assert told["partitions"][0]["first_violation"]["offset"] == log.records[-1].offset
    assert told["counts"]["open_total"] == 4
    assert told["expected"]["missing_keys"] == ["nowhere"]
    assert told["takeovers"][1]["gap_ms"] == 80


def test_expected_jobs_are_looked_for() -> None:
    """The proof that no accepted job was lost."""
    log = a_log()
    keys = [*keys_of(0, 1, 5), "no", "lost"]
    report = verify(log.records, expected=keys)
    expected = report.expected
    assert expected is not None
    found = (expected.completed, expected.ended_otherwise, expected.open, expected.refused, expected.missing)
    assert (expected.given, *found) == (7, 1, 1, 3, 1, 1)
    assert not report.ok
    violation = report.violations[0]
    assert (violation.invariant, violation.key, violation.offset) == (Invariant.ACCEPTED, "lost", -1)


def test_a_job_that_waits_to_be_decided_is_not_lost() -> None:
    """Its creation stands in the commands topic: a stopped cluster will come to it."""
    log = a_log()
    with LogVerifier(TOPIC, 1) as verifier:
        verifier.begin(0)
        verifier.take(log.records)
        verifier.pending(0, ["waits", keys_of(0, 1, 1)[0]])
        verifier.expect(["waits", keys_of(0, 1, 1)[0]])
        report = verifier.report()
    assert report.ok
    assert report.expected is not None
    assert (report.expected.pending, report.expected.completed) == (1, 1)


def test_what_was_not_read_is_not_judged() -> None:
    log = a_log(1, 2)
    keys = [keys_of(0, 2, 1)[0], *keys_of(1, 2, 9)[-2:]]
    assert [partition_of(key, 2) for key in keys] == [0, 1, 1]
    with LogVerifier(TOPIC, 2) as verifier:
        verifier.begin(1, start=1)
        verifier.take(log.records)
        verifier.expect(keys)
        report = verifier.report()
    assert report.ok
    assert report.expected is not None
    assert (report.expected.elsewhere, report.expected.before_start, report.expected.missing) == (1, 2, 0)


def test_every_partitions_first_violation_is_told_however_many_there_are() -> None:
    """A flood in one partition must not hide the trickle in another."""
    logs = [Written(partition, 2) for partition in (0, 1)]
    for log, count in zip(logs, (300, 1), strict=True):
        log.add(ev.LeaderElected)
        for _ in range(count):
            log.put(b"garbage")
    report = verify(*(log.records for log in logs), partitions=2)
    assert report.violation_count == 301
    assert len(report.violations) == 101
    assert [each.first_violation in report.violations for each in report.partitions] == [True, True]


def test_a_damaged_batch_counts_for_its_partition() -> None:
    with LogVerifier(TOPIC, 1) as verifier:
        verifier.begin(0)
        verifier.fault(0, 7, Fault(Invariant.CHECKSUM, "a batch as written", "another checksum"))
        report = verifier.report()
    assert str(report.violations[0]) == (
        "relevo.log partition 0 offset 7: CHECKSUM: expected a batch as written, found another checksum"
    )


def test_an_empty_log_is_sound() -> None:
    report = verify([])
    assert report.ok
    assert (report.partitions[0].last_seq, report.takeovers) == (0, [])


@pytest.mark.parametrize("cached_max", [2, 7, 10_000])
def test_what_leaves_the_memory_is_remembered(tmp_path: Path, cached_max: int) -> None:
    """A log with more jobs than fit is told like one with few."""
    log = Written()
    log.add(ev.LeaderElected)
    keys = [f"job-{n}" for n in range(1_500)]
    for key in keys:
        log.add(ev.JobCreated, key)
    for kind in (ev.JobActivated, ev.JobCompleted):
        for key in keys:
            log.add(kind, key)
    sound = verify(log.records, folder=tmp_path, cached_max=cached_max, expected=keys)
    assert sound.ok, sound.violations[:3]
    assert sound.expected is not None
    assert (sound.counts.completed, sound.expected.completed) == (1_500, 1_500)
    where = log.add(ev.JobCompleted, "job-0")
    found = verify(log.records, folder=tmp_path, cached_max=cached_max)
    assert [(each.invariant, each.offset) for each in found.violations] == [(Invariant.COMPLETED_ONCE, where)]
    assert not list(tmp_path.iterdir()), "the temporary files stay behind"


def test_memory_is_bounded(tmp_path: Path) -> None:
    with FactStore(tmp_path, cached_max=100) as store:
        assert not list(tmp_path.iterdir()), "a process that is killed would leave its file behind"
        for n in range(2_000):
            store.load([f"k{n}"])
            store.put(f"k{n}", JobFacts(0, 1, n))
            assert len(store) <= 101
        store.load(["k0", "k1999"])
        first, last = store.get("k0"), store.get("k1999")
        assert first is not None
        assert last is not None
        assert (first.attempt, last.attempt) == (0, 1_999)


def test_no_room_is_said_so(tmp_path: Path) -> None:
    """A full disk must not look like a sound log, nor like a damaged one."""
    with FactStore(tmp_path, cached_max=1) as store:
        store._base.execute("PRAGMA max_page_count = 2")
        for n in range(2_000):
            store.put(f"k{n}", JobFacts(0, 1))
        with pytest.raises(VerifyError, match="TMPDIR"):
            store.load(["one more"])


def test_those_who_read_the_log_themselves_learn_of_its_order() -> None:
    """The demo and the drills keep the events and have the order checked on the way."""
    log = a_log()
    check = LogCheck(TOPIC)
    for each in log.records:
        assert check.take(0, each.offset, each.value) is not None
    assert check.sound
    log.add(ev.JobUpdated, "k1", epoch=1)
    log.add(ev.JobUpdated, "k1", seq=log.seq)
    for each in log.records[-2:]:
        check.take(0, each.offset, each.value)
    assert (check.contiguous, check.epochs_rising, check.sound) == (False, False, False)
    assert check.take(0, 999, b"garbage") is None
    assert check.faults[-1].startswith("relevo.log[0] offset 999: expected an event or a barrier")
