"""Leases, held against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo_engine.core.timers import SLACK, Leases

keys = st.sampled_from("abcde")


@given(st.lists(st.tuples(st.booleans(), keys, st.integers(0, 50)), max_size=150))
def test_leases_give_what_a_dictionary_gives(steps: list[tuple[bool, str, int]]) -> None:
    leases = Leases()
    expected: dict[str, int] = {}
    for arms, key, until in steps:
        if arms:
            leases.arm(key, until)
            expected[key] = until
        else:
            leases.disarm(key)
            expected.pop(key, None)
        first = min(((at, name) for name, at in expected.items()), default=None)
        assert leases.head() == first
        assert leases.until(key) == expected.get(key)
        assert len(leases) == len(expected)
        assert leases.footprint <= 2 * len(leases) + SLACK + 1


def test_a_million_signs_of_life_cost_no_memory() -> None:
    leases = Leases()
    for n in range(10_000):
        leases.arm("k", 30_000 + n)
    assert leases.footprint == 1
    assert leases.head() == (39_999, "k")
