"""Turns, ratios between revisions, and what the benchmark takes from other programs."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from relevo.testing.bench.roles import payload
from relevo.testing.bench.visit import EXPIRES_S, Plan
from relevo_engine.machine import PartitionMachine
from relevo_schemas.codec import encode_json
from tests.benchmarks import __main__ as front
from tests.benchmarks import compare, growth, limit
from tests.benchmarks.knobs import Knobs, interleaved
from tests.benchmarks.parts import PARTS, PieceError, each_piece, part
from tests.benchmarks.parts.core import parse_count
from tests.benchmarks.parts.state import bytes_per_job
from tests.benchmarks.peers.catalog import PEERS


@pytest.mark.parametrize("what", growth.WAYS)
def test_a_jobs_cost_is_measured_beside_others(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job that is measured comes to its end, and the others stay."""
    monkeypatch.setattr(growth, "BATCH", 20)
    monkeypatch.setattr(growth, "PROBE", 40)
    monkeypatch.setattr(growth, "REPEATS", 1)
    machines: list[PartitionMachine] = []

    def make(*of: Any) -> PartitionMachine:
        machines.append(PartitionMachine(*of))
        return machines[-1]

    monkeypatch.setattr(growth, "PartitionMachine", make)
    watching = list(gc.callbacks)
    figures = list(growth.WAYS[what]([1, 3] if what == "types" else [20, 60]))
    gc.callbacks[:] = watching
    assert len(figures) == 2
    assert min(each.us for each in figures) > 0
    assert min(each.longest_ms for each in figures) > 0
    assert gc.isenabled(), "nodes run with it"
    (machine,) = machines
    found = machine.summary()
    others = {"ready": 60 + 20, "timers": 60, "leases": 60, "finished": 0, "types": 3 * 21}[what]
    assert figures[-1].others == {"finished": 60}.get(what, others)
    measured = 2 * 2 * 40
    assert found["open"] == others
    assert found["remembered"] == (60 if what == "finished" else measured)
    assert found["leases"] == (60 if what == "leases" else 0)
    assert found["timers"] == (60 if what == "timers" else 0)


def test_a_walk_of_the_collector_is_a_pause() -> None:
    """It comes between two steps as well as in one, and a node stands still."""
    pauses = growth.Pauses()
    gc.collect()
    pauses.close()
    assert pauses.over() > 0
    assert pauses.over() == 0


def test_the_memory_of_one_is_told_from_the_first_size_to_the_last() -> None:
    found = [growth.Found(1.0, 1.0, others, 50_000 + 200 * others) for others in (100, 1_000, 5_000)]
    assert growth.bytes_each(found) == 200
    assert growth.bytes_each([each._replace(resident=None) for each in found]) is None


def test_what_drifts_weighs_on_all_alike() -> None:
    """The one that is always measured last would get the warmest broker, or the busiest machine."""
    turns = list(interleaved("abc", 3))
    assert turns == [(0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a"), (2, "a"), (2, "b"), (2, "c")]


def test_a_ratio_above_one_is_better_whatever_the_figure() -> None:
    """A regression would be read as progress."""
    found = {
        "throughput_jobs_per_s": {"base": [100.0, 200.0], "head": [110.0, 220.0]},
        "step_us_per_job": {"base": [10.0, 20.0], "head": [5.0, 10.0]},
        "step_to_calibration": {"base": [1.0, 1.0], "head": [2.0, 2.0]},
        "replay_ratio": {"base": [0.5, 0.5], "head": [0.25, 0.25]},
    }
    rows = {row["figure"]: row for row in compare.ratios(found)}
    assert rows["throughput_jobs_per_s"]["better"] == pytest.approx(1.1)
    assert rows["step_us_per_job"]["better"] == pytest.approx(2.0)
    assert rows["step_to_calibration"]["better"] == pytest.approx(0.5)
    assert rows["replay_ratio"]["better"] == pytest.approx(0.5)
    assert "throughput_jobs_per_s" in compare.table(list(rows.values()))


def test_runs_are_compared_with_those_beside_them() -> None:
    """A machine that was slow for the second half changes both sides of its rounds, not the ratio."""
    found = {"x_per_s": {"base": [100.0, 10.0, 10.0], "head": [200.0, 20.0, 20.0]}}
    (row,) = compare.ratios(found)
    assert (row["better"], row["from"], row["to"]) == (2.0, 2.0, 2.0)


def test_a_round_without_its_partner_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare.ratios({"x": {"base": [1.0], "head": [1.0, 2.0]}})


def test_an_unknown_revision_is_told() -> None:
    with pytest.raises(LookupError, match="no-such-revision"), compare.checkout("no-such-revision"):
        pass


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("123456789,,instructions:u,1000,100.00,,\n", 123_456_789),
        ("<not supported>,,instructions:u,0,100.00,,\n", None),
        ("", None),
        ("warning\n42,,instructions,1,1\n", 42),
    ],
)
def test_instructions_are_read_where_they_are_counted(text: str, found: int | None) -> None:
    """A virtual machine without counters would look like one that executes nothing."""
    assert parse_count(text) == found


def test_memory_per_job_is_what_comes_on_top_of_its_variables() -> None:
    assert bytes_per_job(100_000_000, 900_000_000, 1_000_000, 220) == 580


@pytest.mark.parametrize("size", [200, 8_192])
def test_variables_have_the_size_that_is_told(size: int) -> None:
    sizes = [len(encode_json(payload(n, size))) for n in range(256)]
    assert max(sizes) <= size
    assert min(sizes) >= size * 0.75 - 40


def test_variables_are_the_same_in_every_run_and_differ_between_jobs() -> None:
    """Equal ones would compress to nothing, which no real job does."""
    assert payload(3, 500) == payload(3, 500)
    assert len({encode_json(payload(n, 500)) for n in range(256)}) == 256


def test_the_limit_moves_records_of_the_jobs_size() -> None:
    """A limit with smaller records would be out of reach, one with larger ones too easy."""
    made = limit.records(200)
    assert set(made) == {"create", "created", "activated", "activation", "complete", "completed"}
    assert {len(each) for each in made.values()} == {256}
    heads = {value[:10] for value in made["create"]}
    assert len(heads) == 1
    assert made["complete"][0][:10] not in heads


def test_a_piece_that_fails_does_not_take_the_others_along() -> None:
    """Ten minutes of figures would be lost with the eleventh."""
    told: list[str] = []
    found: list[str] = []

    def broken() -> None:
        raise RuntimeError("the node ended\nwith a long log")

    with pytest.raises(PieceError, match=r"^b: RuntimeError: the node ended$"):
        each_piece(told.append, {"a": lambda: found.append("a"), "b": broken, "c": lambda: found.append("c")})
    assert found == ["a", "c"]
    assert "with a long log" in told[0]


def test_every_part_can_be_run() -> None:
    assert all(callable(part(name)) for name in PARTS)
    assert set(front._MINUTES) == set(PARTS)
    assert sum(front._MINUTES.values()) <= 40


def test_parts_and_sizes_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = front.parse(["throughput,latency", "idle", "--jobs", "30000", "--open-jobs", "5000"])
    assert given.parts == ["throughput", "latency", "idle"]
    knobs = front.knobs_of(given, tmp_path)
    assert (knobs.jobs, tuple(knobs.open_jobs)) == (30_000, (0, 5_000))
    with pytest.raises(SystemExit):
        front.parse(["thruput"])
    assert "there are core, throughput" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        front.parse(["--rounds", "0"])


def test_a_tiny_run_says_that_it_is_one(tmp_path: Path) -> None:
    tiny = Knobs(tmp_path, lambda _line: None).as_tiny()
    assert tiny.tiny
    assert tiny.rounds == 1


def test_every_peer_has_its_program_and_says_what_it_does_not_do() -> None:
    for facts in PEERS:
        assert facts.path.is_file()
        assert "" not in facts.as_dict().values()
    assert len({facts.name for facts in PEERS}) == len(PEERS)


def test_a_plan_tells_all_that_it_writes() -> None:
    """Somebody's cluster is filled with more than they agreed to."""
    plan = Plan("b1:9092", "shop", jobs=1_000, rounds=2, rates=(10, 100), seconds=8)
    assert plan.total == 1 + 2 * 250 + 2 * 1_000 + 10 * 10 + 100 * 10
    told = "\n".join(plan.writes())
    assert f"{plan.total:,} jobs" in told
    assert "shop.activations.relevo-bench" in told
    assert f"{EXPIRES_S / 60:g} minutes" in told
