"""When a broker counts as warm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.knobs import Knobs
from tests.benchmarks.warm import ROUNDS_UNSEEN, WARM_ROUNDS, Spent, Subject, spent, until_warm


def rounds_of(tmp_path: Path, looks: list[Spent | None]) -> tuple[int, str]:
    """How many rounds two subjects got, and what was said."""
    said: list[str] = []
    ran: list[str] = []
    seen = iter(looks)

    def run(name: str) -> float:
        ran.append(name)
        return 1_000.0

    subjects = [Subject(name, lambda name=name: run(name)) for name in "ab"]  # type: ignore[misc]
    until_warm(Knobs(tmp_path, said.append), [1, 2], *subjects, look=lambda _pids: next(seen, looks[-1]))
    assert ran == ["a", "b"] * (len(ran) // 2)
    assert len(said) == 1
    return len(ran) // 2, said[0]


def between(*shares: float) -> list[Spent | None]:
    """Before and behind each round, of which the compilers took so much."""
    looks: list[Spent | None] = []
    for share in shares:
        looks += [Spent(500, 1_000), Spent(500 + round(share * 100), 1_100)]
    return looks


@pytest.mark.parametrize(
    ("shares", "rounds"), [([0.1], 1), ([0.6, 0.5, 0.14], 3), ([0.0], 1), ([0.6, 0.1, 0.6], 2)]
)
def test_a_broker_is_warm_when_its_compiler_rests(tmp_path: Path, shares: list[float], rounds: int) -> None:
    """A new one spends most of its time on compiling: half the rate, and not of what is measured."""
    found, said = rounds_of(tmp_path, between(*shares))
    assert found == rounds
    assert f"{shares[rounds - 1]:.0%}" in said


def test_the_warm_up_has_an_end(tmp_path: Path) -> None:
    assert rounds_of(tmp_path, between(*[0.9] * (WARM_ROUNDS + 5)))[0] == WARM_ROUNDS


def test_where_threads_are_not_shown_there_are_so_many_rounds(tmp_path: Path) -> None:
    assert rounds_of(tmp_path, [None])[0] == ROUNDS_UNSEEN


def test_the_time_of_compilers_is_told_from_the_others(tmp_path: Path) -> None:
    threads = {
        (7, 1): ("java", 10, 1),
        (7, 2): ("C2 CompilerThre", 100, 5),
        (7, 3): ("a (strange) one", 20, 2),
        (8, 1): ("C1 CompilerThre", 7, 0),
    }
    for (pid, tid), (name, user, system) in threads.items():
        folder = tmp_path / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{tid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0\n")
    assert spent([7, 8], tmp_path) == Spent(112, 145)
    assert spent([7, 9], tmp_path) is None
