"""The ledger survives the death of its writers, and tells a fault's doing from a broken promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from relevo.testing.ledger import EffectRun, Ledger, LedgerError, LedgerFile, Moment, repeats


def test_what_processes_wrote_is_read_back(tmp_path: Path) -> None:
    """A job that is lost between writing and reading would be a lost job that nobody sees."""
    creator, worker = LedgerFile(tmp_path, "creator-1"), LedgerFile(tmp_path, "worker-2")
    creator.accepted("a", 1000.0)
    creator.refused("b", "no\tanswer\nin time")
    worker.claiming(["a"])
    worker.begun("a", 1)
    ledger = Ledger(tmp_path)
    ledger.refresh()
    assert ledger.sent == {"a": 1000.0}
    assert ledger.accepted["a"] > 1000.0
    assert ledger.refused["b"][1] == "no answer in time"
    assert ledger.running("worker-2") == 1
    worker.ended("a", 1)
    ledger.refresh()
    (run,) = ledger.runs["a"]
    assert run.worker == "worker-2"
    assert run.claimed is not None
    assert run.ended is not None
    assert run.claimed <= run.begun <= run.ended
    assert ledger.running("worker-2") == 0


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    """A process that is killed in the middle of a line must not cost the lines before it."""
    path = tmp_path / "worker-1.ledger"
    path.write_text("B\ta\t1\t10.0\tworker-1\nE\ta\t1\t2")
    ledger = Ledger(tmp_path)
    ledger.refresh()
    ledger.refresh()
    assert ledger.runs["a"][0].ended is None
    with path.open("a") as file:
        file.write("0.0\tworker-1\n")
    ledger.refresh()
    assert ledger.runs["a"][0].ended == 20.0


@pytest.mark.parametrize("line", ["Q\ta\t1", "B\ta", "A\ta\tnow\tthen", "E\tnever-begun\t1\t5.0\tworker-1"])
def test_a_line_that_is_none_is_not_passed_over(tmp_path: Path, line: str) -> None:
    """A ledger that skips what it can't read counts fewer repeats than there were."""
    (tmp_path / "worker-1.ledger").write_text(line + "\n")
    with pytest.raises(LedgerError, match=r"worker-1\.ledger"):
        Ledger(tmp_path).refresh()


def run_of(begun: float, ended: float | None, worker: str = "w1", claimed: float | None = None) -> EffectRun:
    return EffectRun("a", 1, worker, begun, ended, claimed)


def test_a_job_that_ran_once_is_no_repeat() -> None:
    assert repeats({"a": [run_of(10, 20)]}, [Moment(15, "w1")], {}) == []


def test_an_effect_that_a_kill_caught_in_the_act_is_told_apart() -> None:
    """Nobody can know whether that effect has happened: to run it again is what was promised."""
    runs = {"a": [run_of(10, None), run_of(500, 510, "w2")]}
    (found,) = repeats(runs, [Moment(15, "w1")], {})
    assert found.in_flight
    assert found.run.worker == "w2"


def test_a_repeat_without_a_fault_is_a_broken_promise() -> None:
    runs = {"a": [run_of(10, 20), run_of(500, 510, "w2")]}
    assert [each.in_flight for each in repeats(runs, [Moment(300, "w1")], {"a": 30.0})] == [False]
    assert [each.in_flight for each in repeats(runs, [], {})] == [False]


def test_what_the_killed_worker_had_not_completed_was_in_flight() -> None:
    """Its completion died with it; a leader's death takes no worker's completion along."""
    runs = {"a": [run_of(10, 20), run_of(500, 510, "w2")]}
    assert repeats(runs, [Moment(25, "w1")], {"a": 520.0})[0].in_flight
    assert not repeats(runs, [Moment(25, "w2")], {"a": 520.0})[0].in_flight
    assert not repeats(runs, [Moment(25)], {"a": 520.0})[0].in_flight


def test_a_worker_frozen_between_claim_and_effect_goes_on_when_it_wakes_up() -> None:
    """It had asked before it slept; whoever asks only after having woken is told that it is done."""
    other = run_of(500, 510, "w2")
    asleep = run_of(900, 910, "w1", claimed=10)
    awake = run_of(900, 910, "w1", claimed=890)
    assert repeats({"a": [other, asleep]}, [Moment(15, "w1")], {"a": 511.0})[0].in_flight
    assert not repeats({"a": [other, awake]}, [Moment(15, "w1")], {"a": 511.0})[0].in_flight


def test_a_signal_takes_a_while_to_take_effect() -> None:
    """Under load a process runs on for many milliseconds after the signal was sent."""
    runs = {"a": [run_of(40, None), run_of(500, 510, "w2")]}
    assert repeats(runs, [Moment(15, "w1", until=60)], {})[0].in_flight
    assert not repeats(runs, [Moment(15, "w1", until=30)], {})[0].in_flight


def in_flight(*of_job: EffectRun, hits: tuple[Moment, ...], completed: float | None = None) -> list[bool]:
    """Of each repeat, whether it is excused."""
    found = repeats({"a": of_job}, hits, {} if completed is None else {"a": completed})
    return [each.in_flight for each in found]


def test_a_fault_that_comes_after_the_repeat_explains_nothing() -> None:
    """Every drill ends with a fault: whatever came before would be excused."""
    twice = run_of(10, 20), run_of(50, 60, "w2")
    assert in_flight(*twice, hits=(Moment(80, "w1"),), completed=100) == [False]
    without_end = run_of(10, None), run_of(50, 60, "w2")
    assert in_flight(*without_end, hits=(Moment(9_000_000, "w9"),)) == [False]
    assert in_flight(*without_end, hits=(Moment(9_000_000, "w1"),)) == [False]


def test_a_run_without_an_end_is_excused_by_what_hit_its_own_worker_or_everybody() -> None:
    unended, again = run_of(10, None), run_of(500, 510, "w2")
    assert in_flight(unended, again, hits=(Moment(300, "w9"),)) == [False]
    assert in_flight(unended, again, hits=(Moment(300),)) == [True], "a broker is everybody's"
    later = Moment(700, "w1")
    assert in_flight(unended, again, hits=(Moment(300, "w9"), later)) == [True], "it did run on until then"


def test_one_run_that_was_caught_excuses_nothing_after_another_has_ended_undisturbed() -> None:
    """From then on, whoever asks is told that the job is done."""
    caught, redone, again = run_of(10, None), run_of(50, 60, "w2"), run_of(9_000_000, None, "w3")
    assert in_flight(caught, redone, again, hits=(Moment(15, "w1"),), completed=61) == [True, False]
    assert in_flight(caught, redone, again, hits=(Moment(15, "w1"),)) == [True, False]
    chain = (Moment(15, "w1"), Moment(61, "w2"))
    assert in_flight(caught, redone, again, hits=chain, completed=9_000_100) == [True, True]


def test_nothing_is_excused_once_the_log_has_the_completion() -> None:
    """A frozen worker has woken up, and ended its run; whoever asks after that is told so."""
    woken = run_of(10, 4_010)
    late = run_of(9_000_000, None, "w2")
    assert in_flight(woken, late, hits=(Moment(15, "w1"),), completed=4_012) == [False]
    assert in_flight(run_of(10, 20), late, hits=(Moment(15, "w9"),), completed=22) == [False]


def test_a_frozen_worker_that_runs_on_after_others_have_its_job_is_excused() -> None:
    """Its lease and its claim have run out: the other began before the first one ended."""
    frozen, redone = run_of(10, 4_010), run_of(3_030, 3_050, "w2", claimed=3_020)
    assert in_flight(frozen, redone, hits=(Moment(15, "w1"),), completed=3_060) == [True]
    overlapping = run_of(4_012, 4_030, "w2", claimed=4_008)
    assert in_flight(frozen, overlapping, hits=(Moment(15, "w1"),), completed=4_011) == [True]


def test_one_that_slept_is_excused_only_if_it_had_asked_before_another_had_ended() -> None:
    hit = Moment(600, "w1", until=640)
    done = run_of(500, 510, "w2")
    assert in_flight(done, run_of(900, 910, "w1", claimed=505), hits=(hit,), completed=511) == [True]
    assert in_flight(done, run_of(900, 910, "w1", claimed=590), hits=(hit,), completed=511) == [False]
    still = run_of(500, 700, "w2")
    assert in_flight(still, run_of(900, 910, "w1", claimed=630), hits=(hit,), completed=701) == [True]


def test_a_handler_that_fails_is_under_way_no_more(tmp_path: Path) -> None:
    """It would be in flight at every later fault, whoever was hit."""
    worker = LedgerFile(tmp_path, "worker-1")
    worker.begun("a", 1)
    worker.failed("a", 1)
    ledger = Ledger(tmp_path)
    ledger.refresh()
    (run,) = ledger.runs["a"]
    assert (run.ended, run.failed is not None, ledger.running("worker-1")) == (None, True, 0)
    failed, again = EffectRun("a", 1, "w1", 10, failed=20), run_of(500, 510, "w2")
    assert in_flight(failed, again, hits=(Moment(300),), completed=511) == [False]
    assert in_flight(failed, again, hits=(Moment(15, "w1"),), completed=511) == [True]
    killed = run_of(60, None, "w2")
    assert in_flight(failed, killed, run_of(500, 510, "w3"), hits=(Moment(65, "w2"),)) == [False, True]
