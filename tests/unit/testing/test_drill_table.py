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
        assert name == SOAK or set(chosen([name])) <= DRILLS.keys()
    assert set(chosen([ALL])) == DRILLS.keys() - {"effects"}, "which needs a database"
    assert {target.drill for target in targets_of(DrillSettings())} <= DRILLS.keys()


def test_several_names_are_run_in_order_and_each_once() -> None:
    assert chosen([SOAK, "zookeeper-down", "leader-kill", "zookeeper-down"]) == [
        SOAK,
        "zookeeper-down",
        "zookeeper-down-kill",
        "leader-kill",
    ]


def test_all_that_a_dead_worker_had_is_held_against_a_bound() -> None:
    """A bound on the reported jobs alone says nothing of those that the engine doesn't know to be running."""
    targets = [each for each in targets_of(DrillSettings()) if each.drill == "worker-kill"]
    bounds = {each.measure: each.limit_ms for each in targets}
    assert bounds == {
        "started_redone_ms": 4_000,
        "unreported_redone_ms": 6_000,
        "partitions_taken_up_ms": 6_000,
    }


def test_the_help_says_what_all_stands_for() -> None:
    from relevo.cli import drill

    lines = (drill.command.help or "").splitlines()
    named = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in NAMES]
    above = named[: named.index(ALL)]
    assert set(chosen([ALL])) == set(chosen(above)), "all of the above"
    assert named[named.index(ALL) + 1 :] == [SOAK, "effects"]


def test_calls_and_leases_that_were_met_are_told() -> None:
    run = a_run()
    run.counts = {"leases_across_leaders": 0, "repeats_that_met_no_lease": 1, "calls_failed": 0}
    run.extra = {"slowest_create_ms": 12.5, "slowest_read_ms": 41.0}
    text = "\n".join(lines_of(report_of(run)))
    assert "0 leases across leaders" in text
    assert "1 of 1 repeats met no job whose lease had begun" in text
    assert "slowest calls, until they had their answer: create 12.5 ms, read 41 ms" in text


def test_a_soak_tells_repeats_that_no_fault_explains_separately() -> None:
    run = a_run()
    run.drill, run.jobs, run.effects_repeated, run.effects_repeated_in_flight = "soak", 1_000, 3, 2
    text = "\n".join(lines_of(report_of(run)))
    assert "3000 effects repeated per million jobs: 2000 that a fault caught" in text
    assert "in the act, 1000 otherwise" in text


def test_the_command_offers_what_the_catalog_has() -> None:
    """The command names them itself, so that its help needs none of the engine."""
    from relevo.cli import drill

    assert set(drill.NAMES) == set(NAMES)
