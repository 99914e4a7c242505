"""A wall clock that jumps must neither end every lease at once nor make time go back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo_partitions.term.clock import SLEW_MAX, LeaderClock


class Clocks:
    def __init__(self) -> None:
        self.wall, self.monotonic = 1_000_000.0, 50.0

    def clock(self, last_at: int = 0) -> LeaderClock:
        return LeaderClock(lambda: self.wall, lambda: self.monotonic, last_at)

    def pass_s(self, seconds: float, wall_s: float | None = None) -> None:
        self.monotonic += seconds
        self.wall += seconds if wall_s is None else wall_s


def test_it_shows_the_wall_clock_where_nothing_jumps() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.pass_s(12.5)
    assert clock.now() == 1_000_012_500


def test_it_starts_no_earlier_than_the_log_ends() -> None:
    assert Clocks().clock(last_at=2_000_000_000).now() == 2_000_000_000


def test_a_wall_clock_set_forward_by_an_hour_is_followed_slowly() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.pass_s(10, wall_s=3610)
    assert clock.now() == 1_000_000_000 + 11_000


def test_a_wall_clock_set_back_is_waited_for() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.pass_s(10, wall_s=-3600)
    assert clock.now() == 1_000_000_000 + 9_000


def test_it_reaches_the_wall_clock_in_the_end() -> None:
    clocks = Clocks()
    clock = clocks.clock(last_at=1_000_005_000)
    for _ in range(60):
        clocks.pass_s(1)
        clock.now()
    assert abs(clock.now() - clocks.wall * 1000) <= 1


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(-10_000, 10_000)), max_size=50),
    st.integers(0, 2_000_000_000),
)
def test_it_never_goes_back_and_never_runs_off(steps: list[tuple[float, float]], last_at: int) -> None:
    clocks = Clocks()
    clock = clocks.clock(last_at)
    before = clock.now()
    for elapsed, wall in steps:
        clocks.pass_s(elapsed, wall)
        shown = clock.now()
        passed = elapsed * 1000
        assert before + passed * (1 - SLEW_MAX) - 1 <= shown <= before + passed * (1 + SLEW_MAX) + 1
        assert shown >= before
        before = shown
