"""A log that ends sooner than what snapshots and published positions tell of it has lost its tail."""

from __future__ import annotations

import json

import pytest

from relevo_engine.verify import Invariant, LogVerifier, VerifyReport, run, verify_log
from relevo_engine.verify.witnesses import Witness
from relevo_schemas import events as ev
from tests.unit.engine.test_verify_trimmed import LOG, Kafka
from tests.unit.engine.verify_logs import STEP, TOPIC, Written

JOBS = 5


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """Five jobs that were asked for and created, and nothing left to decide."""
    found = Kafka()
    monkeypatch.setattr(run, "TopicReader", lambda *_: found)
    for n in range(JOBS):
        found.send(f"job-{n}")
        found.decide(f"job-{n}")
    return found


def snapshot(offset: int = 0, seq: int = 0, epoch: int = 1, position: int = 0) -> Witness:
    return Witness("snapshot s of n1", offset, seq, epoch, position)


def cut(kafka: Kafka, events: int) -> None:
    del kafka.log.records[events:]


def verified() -> VerifyReport:
    return verify_log("k:1", "busy")


def test_a_log_that_reaches_as_far_as_everybody_says_is_sound(kafka: Kafka) -> None:
    kafka.witnessed = [
        snapshot(3 * STEP, 3, position=2),
        snapshot((JOBS + 1) * STEP, JOBS + 1, position=JOBS),
        Witness("published", position=JOBS),
    ]
    report = verified()
    assert report.ok, report.violations
    assert report.partitions[0].witnesses == ["snapshot s of n1", "snapshot s of n1", "published"]
    assert kafka.asked == ["witnesses", LOG], "witnesses first: the end moves while a cluster works"


@pytest.mark.parametrize(
    ("witness", "says"),
    [
        (snapshot(6 * STEP, 6), "the log to reach to offset 18 with event 6 of epoch 1, as snapshot s of n1"),
        (snapshot(4 * STEP, 6), "event 6 of epoch 1, which snapshot s of n1 holds"),
        (Witness("the published one", position=5), "the commands below offset 5, by the published one"),
        (snapshot(4 * STEP, 4, position=4), "the commands below offset 4, by snapshot s of n1"),
    ],
    ids=["offset", "event of a leader's snapshot", "published position", "position of a snapshot"],
)  # fmt: skip
def test_a_tail_that_is_gone_is_the_first_violation(kafka: Kafka, witness: Witness, says: str) -> None:
    cut(kafka, 4)
    assert verified().ok, "nothing in the log tells of it"
    kafka.witnessed = [witness]
    report = verified()
    assert report.by_invariant == {Invariant.TRUNCATED: 1}, "each loss is told once"
    first = report.partitions[0].first_violation
    assert first is not None
    assert first.offset == 4 * STEP
    assert says in first.expected
    assert "offset 12" in first.found
    told = json.loads(report.to_json())
    assert (told["ok"], told["partitions"][0]["first_violation"]["invariant"]) == (False, "TRUNCATED")


def test_a_log_that_lost_its_tail_and_grew_again_is_found_by_its_terms(kafka: Kafka) -> None:
    """Its numbers go on without a hole, and it is as long as it was."""
    kafka.witnessed = [snapshot(6 * STEP, 6)]
    cut(kafka, 4)
    kafka.log.seq = 4
    kafka.log.add(ev.LeaderElected)
    for n in range(3):
        kafka.log.add(ev.JobCreated, f"again-{n}")
    report = verified()
    assert report.by_invariant == {Invariant.TRUNCATED: 1}
    first = report.partitions[0].first_violation
    assert first is not None
    assert (first.offset, first.seq) == (5 * STEP, 6)
    assert "event 6 to be of epoch 1" in first.expected


def test_what_an_open_transaction_holds_back_is_not_lost(kafka: Kafka) -> None:
    """A producer that hangs holds back what leaders commit behind it."""
    kafka.witnessed = [snapshot(6 * STEP, 6, position=5), Witness("published", position=5)]
    kafka.open = 2 * STEP
    report = verified()
    assert report.ok, report.violations
    assert report.partitions[0].held_back == 2 * STEP
    assert kafka.asked == ["witnesses", LOG, LOG]


@pytest.mark.parametrize("lost", [False, True])
def test_a_transaction_that_ends_meanwhile_is_read_before_anything_is_said(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    kafka.witnessed = [snapshot(5 * STEP, 6)]
    if lost:
        cut(kafka, 5)
    kafka.open = STEP
    read = kafka.read

    def read_and_end(*where: object) -> object:
        kafka.open = 0
        return read(*where)  # type: ignore[arg-type]

    monkeypatch.setattr(kafka, "read", read_and_end)
    report = verified()
    assert report.by_invariant == ({Invariant.TRUNCATED: 1} if lost else {})
    assert report.counts.records == (5 if lost else 6), "nothing was read twice"


def test_a_damaged_log_is_not_called_cut_off_too(kafka: Kafka) -> None:
    kafka.damaged = True
    kafka.open = STEP
    kafka.witnessed = [snapshot(6 * STEP, 6)]
    assert verified().by_invariant == {Invariant.CHECKSUM: 1}


def test_a_trimmed_log_of_which_nothing_is_left_is_judged_by_its_offsets_alone() -> None:
    """No event tells how they were numbered, nor of a command."""
    witnesses = [snapshot(30, 11, position=7), Witness("published", position=7)]
    for end, sound in ((30, True), (29, False)):
        with LogVerifier(TOPIC, 1) as verifier:
            verifier.begin(0, end, end, end, witnesses)
            verifier.truncated(verifier.short())
            assert verifier.report().ok is sound


def test_a_trimmed_log_whose_rest_tells_of_no_command_has_lost_none() -> None:
    log = Written(first_seq=11)
    log.add(ev.LeaderElected)
    with LogVerifier(TOPIC, 1) as verifier:
        verifier.begin(0, 30, 40, 40, [snapshot(30, 10, position=7), Witness("published", position=7)])
        verifier.take(log.records)
        verifier.truncated(verifier.short())
        assert verifier.report().ok
