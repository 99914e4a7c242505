"""What is lost or repeated is laid at the door of the repeat in which it happened."""

from __future__ import annotations

from relevo.testing.arrivals import LogFacts
from relevo.testing.drills.ending import Accounts, settle, strangers, unhandled
from relevo.testing.drills.workers import taken_up, unfinished
from relevo.testing.ledger import EffectRun, Moment, Repeat
from relevo.testing.report import Run


def accounts(*repeated: Repeat, lost: tuple[str, ...] = ()) -> Accounts:
    accepted = {"early": 50.0, "a": 110.0, "b": 190.0, "c": 210.0}
    return Accounts(accepted, frozenset(lost), repeated, verify_ok=True)


def repeat(at: float, *, in_flight: bool) -> Repeat:
    return Repeat(EffectRun("a", 1, "w1", at, at + 1), in_flight)


def test_every_job_belongs_to_one_repeat() -> None:
    """A job that belongs to none could be lost without anybody's being blamed."""
    runs = [Run("leader-kill", 1, 100.0), Run("leader-kill", 2, 200.0)]
    settle(runs, accounts(lost=("b", "early")), shared_store=True)
    assert [run.jobs for run in runs] == [3, 1]
    assert [run.lost for run in runs] == [2, 0]
    assert not runs[0].held
    assert runs[1].held


def test_a_repeat_that_no_fault_explains_fails_where_the_store_is_shared() -> None:
    runs = [Run("leader-kill", 1, 100.0)]
    settle(runs, accounts(repeat(150, in_flight=True), repeat(160, in_flight=False)), shared_store=True)
    assert (runs[0].effects_repeated, runs[0].effects_repeated_in_flight) == (2, 1)
    assert not runs[0].held
    alone = [Run("leader-kill", 1, 100.0)]
    settle(alone, accounts(repeat(160, in_flight=False)), shared_store=False)
    assert alone[0].held
    assert alone[0].effects_repeated == 1
    assert alone[0].notes


def test_what_the_verifier_says_against_the_log_fails_every_repeat() -> None:
    run = Run("leader-kill", 1, 100.0)
    settle(
        [run], Accounts({}, frozenset(), [], verify_ok=False, violation="seq 7 follows 5"), shared_store=True
    )
    assert not run.held
    assert "seq 7 follows 5" in run.broken[0].found


def test_a_job_that_only_the_engine_calls_done_is_no_success() -> None:
    """The ledger is there to say what the engine can't: that a handler came to its end."""
    log = LogFacts()
    log.completed = {"ran": 1.0, "idle": 1.0, "begun": 1.0}
    log.ended_otherwise = {"cancelled": "JobCancelled"}
    ledger = {"ran": [EffectRun("ran", 1, "w", 1.0, 2.0)], "begun": [EffectRun("begun", 1, "w", 1.0)]}
    assert unhandled(["ran", "idle", "begun", "cancelled", "open"], ledger, log) == {
        "idle",
        "begun",
        "cancelled",
    }
    run = Run("leader-kill", 1, 100.0)
    books = Accounts({"idle": 110.0}, frozenset(), [], verify_ok=True, unhandled=frozenset({"idle"}))
    settle([run], books, shared_store=True)
    assert not run.held
    assert "idle" in run.broken[0].found


def test_a_drill_without_a_repeat_has_nothing_to_settle() -> None:
    settle([], accounts(), shared_store=True)


def test_an_effect_of_a_job_that_had_ended_before_the_drill_is_a_repeat() -> None:
    """The log refuses its end, since it had one."""
    runs = {"old": [EffectRun("old", 2, "w1", 150.0)], "a": [EffectRun("a", 1, "w1", 150.0)]}
    log = LogFacts(ended_before={"old", "a"})
    assert [each.run.key for each in strangers(runs, {"a"}, log)] == ["old"]


def test_a_job_that_an_earlier_drill_left_open_is_none() -> None:
    """A warm-up that was broken off, or a drill: its jobs are run by the next one's workers, once."""
    runs = {key: [EffectRun(key, 1, "w1", 150.0)] for key in ("left", "cancelled", "open")}
    log = LogFacts(completed={"left": 160.0}, ended_otherwise={"cancelled": "JobCancelled"})
    log.ended_before.add("left")  # told twice, by the one that was frozen
    assert strangers(runs, {"a"}, log) == []


def test_what_a_worker_had_begun_and_the_log_not_yet_completed_is_unfinished() -> None:
    def run(key: str, worker: str, begun: float) -> list[EffectRun]:
        return [EffectRun(key, 1, worker, begun)]

    runs = {
        "running": run("running", "w1", 90.0),
        "done": run("done", "w1", 80.0),
        "late": run("late", "w1", 85.0),
        "other": run("other", "w2", 90.0),
        "after": run("after", "w1", 120.0),
    }
    completed = {"done": 95.0, "late": 130.0}
    assert unfinished(runs, Moment(100.0, "w1"), completed) == {"running", "late"}


def test_a_partition_is_taken_up_by_the_first_new_job_that_another_worker_runs() -> None:
    """Jobs from before the fault may run elsewhere by their lease, long before the partition moves."""
    runs = {
        "old": [EffectRun("old", 2, "w2", 105.0)],
        "new": [EffectRun("new", 1, "w2", 170.0)],
        "newer": [EffectRun("newer", 1, "w2", 160.0)],
        "mine": [EffectRun("mine", 1, "w1", 120.0)],
    }
    sent = {"old": 95.0, "new": 110.0, "newer": 111.0, "mine": 112.0}
    assert taken_up(runs, sent, Moment(100.0, "w1"), lambda _key: 3) == {3: 160.0}
