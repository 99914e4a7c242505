"""What is printed at the end says first what a reader must not miss."""

from __future__ import annotations

from relevo.cli.drill_table import lines_of
from relevo.testing.drills.catalog import ALL, DRILLS, NAMES, SOAK, chosen, targets_of
from relevo.testing.drills.settings import DrillSettings
from relevo.testing.report import Report, Run, Sample, Target


def report_of(*runs: Run) -> Report:
    report = Report({}, {}, [Target("leader-kill", "first_activation_ms", "p50", 150.0)], list(runs))
    report.controls["leader-kill"] = {"max_gap_ms": 40.0, "sent_every_ms": 20.0, "load_average": 1.5}
    return report


def a_run() -> Run:
    sample = Sample(0, first_activation_ms=120.0, steps={"claim": 4.0, "fence": 30.0})
    run = Run("leader-kill", 1, 0.0, samples=[sample], jobs=10, max_gap_ms=130.0)
    run.lost, run.effects_repeated, run.effects_repeated_in_flight, run.verify_ok = 0, 0, 0, True
    return run


def test_times_steps_and_targets_are_told() -> None:
    text = "\n".join(lines_of(report_of(a_run())))
    assert "120 / 120 / 120" in text
    assert "claim 4, fence 30" in text
    assert "first_activation_ms p50 120 ms, met: at most 150 ms" in text
    assert "the longest gap is 40 ms" in text
    assert text.endswith("\neverything held")


def test_what_is_not_known_is_no_zero() -> None:
    """An interrupted drill has not lost 0 jobs: nobody has looked."""
    report = report_of(Run("leader-kill", 1, 0.0))
    report.interrupted = True
    text = "\n".join(lines_of(report))
    assert "?" in text
    assert "interrupted" in text
    assert text.endswith("NOT everything held")


def test_a_broken_expectation_and_a_skipped_drill_are_told_with_their_reasons() -> None:
    run = a_run()
    run.expect("no leadership moved", False, "partition 2 to node-1")
    report = report_of(run)
    report.skipped["broker-kill"] = "needs 3 brokers"
    text = "\n".join(lines_of(report))
    assert "NOT SO: no leadership moved: partition 2 to node-1" in text
    assert "broker-kill: skipped: needs 3 brokers" in text


def test_every_name_stands_for_drills_that_exist() -> None:
    for name in NAMES:
        assert name == SOAK or set(chosen(name)) <= DRILLS.keys()
    assert set(chosen(ALL)) == DRILLS.keys() - {"effects"}, "which needs a database"
    assert {target.drill for target in targets_of(DrillSettings())} <= DRILLS.keys()


def test_the_command_offers_what_the_catalog_has() -> None:
    """The command names them itself, so that its help needs none of the engine."""
    from relevo.cli import drill

    assert set(drill.NAMES) == set(NAMES)
