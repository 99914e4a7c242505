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
