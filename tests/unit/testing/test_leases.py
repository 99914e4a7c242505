"""Jobs that run while a leader is lost are told, and none of them may run again for it."""

from __future__ import annotations

from relevo.testing.arrivals import Lease, LogFacts
from relevo.testing.drills.leases import across_leaders, judge_leases, under_way, undisturbed
from relevo.testing.faults import FaultMark, Kind
from relevo.testing.ledger import EffectRun, Moment, Repeat
from relevo.testing.report import Run, Sample

AGAIN = "no job that ran on under a new leader was run again, or lost its lease"


def a_log() -> LogFacts:
    """A leader is lost at 100: four jobs are under way, two of them end under the next leader."""
    log = LogFacts()
    log.leases = {key: Lease(0, 4, 90.0) for key in ("across", "across-too", "before", "kept", "open")}
    log.leases["after"] = Lease(0, 5, 130.0)
    log.completed = {"across": 150.0, "across-too": 160.0, "before": 95.0, "kept": 110.0, "after": 170.0}
    log.ended_in = {"across": 5, "across-too": 6, "before": 4, "kept": 4, "after": 5}
    return log


def judged(
    log: LogFacts,
    *repeated: str,
    samples: int = 1,
    kind: Kind = Kind.KILL,
    at: float = 100.0,
) -> Run:
    run = Run("leader-kill", 1, 50.0, samples=[Sample(0)] * samples)
    ledger = {key: [EffectRun(key, 1, "w1", 80.0, 140.0)] for key in log.leases if key != "theirs"}
    again = [Repeat(EffectRun(key, 2, "w2", 200.0), in_flight=True) for key in repeated]
    judge_leases([run], log, [FaultMark(0.0, at, kind, "node-1")], again, ledger, [])
    return run


def test_a_lease_is_met_by_a_fault_or_carried_over_to_the_next_leader() -> None:
    log = a_log()
    assert under_way(log, 100.0) == {"across", "across-too", "kept", "open"}
    assert across_leaders(log) == {"across", "across-too"}
    log.ended_otherwise["open"] = "JobErrored"
    assert "open" not in under_way(log, 100.0), "nobody knows when that was"


def test_a_repeat_tells_how_many_and_that_none_ran_again() -> None:
    run = judged(a_log())
    assert run.counts == {
        "leases_at_a_fault": 4,
        "leases_across_leaders": 2,
        "repeats_that_met_no_lease": 0,
    }
    assert [(each.what, each.held) for each in run.expectations] == [(AGAIN, True)]
    assert not run.notes


def test_a_job_that_ran_again_under_the_next_leader_fails_the_repeat() -> None:
    """The kill of a leader catches no worker in the act: that its job was in flight excuses nothing."""
    run = judged(a_log(), "across", "kept")
    assert [each.found for each in run.broken] == ["1 were, such as across"]


def test_a_lease_that_ran_out_over_a_takeover_fails_the_repeat() -> None:
    log = a_log()
    log.timed_out_in["across-too"] = 5
    assert "across-too" in judged(log).broken[0].found


def test_a_lease_that_ran_out_while_kafka_was_away_fails_the_repeat() -> None:
    """Nobody could be heard meanwhile: that is no silence of the worker's."""
    log = a_log()
    log.timed_out_in["across-too"] = log.leases["across-too"].epoch
    assert judged(log, kind=Kind.BROKER_RESTART).broken


def test_what_a_worker_took_along_is_no_fault_of_the_leaders() -> None:
    runs = {"a": [EffectRun("a", 1, "w1", 80.0, None)], "b": [EffectRun("b", 1, "w2", 80.0, 95.0)]}
    assert undisturbed({"a", "b", "c"}, runs, [Moment(90.0, "w1")]) == {"b", "c"}
    assert undisturbed({"b"}, runs, [Moment(90.0, "w2")]) == set()
    assert undisturbed({"b"}, runs, [Moment(96.0, "w2")]) == {"b"}, "it had ended"
    assert undisturbed({"a"}, runs, [Moment(70.0, "w1", until=75.0)]) == {"a"}, "it was thawed before"
    assert undisturbed({"a"}, runs, [Moment(90.0)]) == {"a"}, "a node was hurt, no worker"


def test_a_repeat_that_met_no_lease_says_that_it_proved_nothing() -> None:
    """Zero jobs repeated, of zero that could have been, reads like a proof."""
    log = a_log()
    log.ended_in = dict.fromkeys(log.ended_in, 4)
    moved = judged(log)
    assert moved.counts["repeats_that_met_no_lease"] == 1
    assert "says nothing about such jobs" in moved.notes[0]
    still = judged(log, samples=0, kind=Kind.ZOOKEEPER_STOP)
    assert (still.counts["repeats_that_met_no_lease"], still.notes) == (0, []), "no leader was to change"
    early = judged(LogFacts(), samples=0, kind=Kind.BROKER_RESTART)
    assert early.counts["repeats_that_met_no_lease"] == 1


def test_jobs_of_others_in_a_given_cluster_are_not_asked_about() -> None:
    log = a_log()
    log.leases["theirs"], log.completed["theirs"], log.ended_in["theirs"] = Lease(0, 4, 90.0), 150.0, 5
    log.timed_out_in["theirs"] = 5
    run = judged(log)
    assert (run.counts["leases_at_a_fault"], run.counts["leases_across_leaders"]) == (4, 2)
    assert not run.broken


def test_a_repeat_that_hurt_no_leader_is_not_asked() -> None:
    run = judged(a_log(), kind=Kind.START)
    assert (run.counts, run.notes, run.expectations) == ({}, [], [])
