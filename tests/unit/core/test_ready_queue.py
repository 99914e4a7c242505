"""The ready queue, held against a list that is sorted anew each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo_engine.core.job import ReadyEntry
from relevo_engine.core.queues import SLACK, ReadyQueue, rank_of


class Waiting:
    def __init__(self) -> None:
        self.entry: ReadyEntry | None = None


operations = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(-5, 5), st.integers(0, 30)),
        st.tuples(st.just("pop"), st.just(0), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 100), st.integers(-5, 5)),
    ),
    max_size=200,
)


@given(operations)
def test_it_gives_what_a_sorted_list_gives(steps: list[tuple[str, int, int]]) -> None:
    jobs: dict[str, Waiting] = {}
    queue = ReadyQueue(jobs)
    expected: list[ReadyEntry] = []

    def push(key: str, rank: int, seq: int) -> None:
        entry = (rank, seq, key)
        jobs.setdefault(key, Waiting()).entry = entry
        queue.push(entry)
        expected.append(entry)

    def drop(entry: ReadyEntry) -> None:
        jobs[entry[2]].entry = None
        queue.drop()
        expected.remove(entry)

    clock = 0
    for seq, (what, first, second) in enumerate(steps):
        clock += second if what == "push" else 0
        expected.sort()
        if what == "push":
            push(f"k{seq}", rank_of(clock, first, 10), seq)
        elif expected and what == "pop":
            drop(expected[0])
        elif expected and what == "remove":
            drop(expected[first % len(expected)])
        elif expected and what == "move":
            entry = expected[first % len(expected)]
            drop(entry)
            push(entry[2], entry[0] + second, entry[1])
        expected.sort()
        assert queue.head() == (expected[0][2] if expected else None)
        assert list(queue.oldest_first()) == [key for _, _, key in expected]
        assert len(queue) == len(expected)
        assert queue.footprint <= 2 * len(queue) + SLACK + 1


def test_a_step_of_priority_is_worth_a_fixed_time() -> None:
    assert rank_of(1_000, 1, 500) == rank_of(500, 0, 500)
    assert rank_of(1_000, -2, 500) == rank_of(2_000, 0, 500)
