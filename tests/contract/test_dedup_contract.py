"""What every dedup store promises. A store's own tests inherit `DedupContract` and say how to make one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.store import MINE, Answer, Claim, DedupStore, Done, Finish, Held, Mine

SHORT_S = 0.1
LONG_S = 60.0

Elapse = Callable[[float], None]


def claim(token: str, key: str = "k", seconds: float = LONG_S) -> Claim:
    return Claim(key, token, seconds)


def is_held(answer: Answer) -> bool:
    return isinstance(answer, Held)


class DedupContract:
    """Needs two fixtures: `store`, empty, and `elapse`, which lets so many seconds pass for it."""

    def test_one_owner_at_a_time(self, store: DedupStore) -> None:
        assert store.claim([claim("a")]) == [MINE]
        (held,) = store.claim([claim("b")])
        assert isinstance(held, Held)
        assert time.time() < held.until <= time.time() + LONG_S + 1

    def test_the_owner_may_ask_again(self, store: DedupStore) -> None:
        """The answer to its first claim may have been lost on the way."""
        assert store.claim([claim("a")]) == [MINE]
        assert store.claim([claim("a")]) == [MINE]

    def test_done_is_told_to_everybody_with_its_result(self, store: DedupStore) -> None:
        store.claim([claim("a")])
        assert store.done([Finish("k", "a", b'{"paid":true}')]) == [MINE]
        assert store.claim([claim("a"), claim("b")]) == [Done(b'{"paid":true}')] * 2

    @pytest.mark.parametrize(
        "result", [b"", b"\x00\xff\r\n", b"x" * 300_000], ids=["empty", "bytes", "large"]
    )
    def test_results_come_back_as_they_were(self, store: DedupStore, result: bytes) -> None:
        store.done([Finish("k", "a", result)])
        assert store.claim([claim("b")]) == [Done(result)]

    def test_a_claim_left_behind_by_a_crash_ends_by_itself(self, store: DedupStore, elapse: Elapse) -> None:
        store.claim([claim("crashed", seconds=SHORT_S)])
        elapse(SHORT_S * 2)
        assert store.claim([claim("b")]) == [MINE]

    @pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
    def test_the_clocks_of_workers_may_differ(
        self, store: DedupStore, elapse: Elapse, monkeypatch: pytest.MonkeyPatch, ahead_s: float
    ) -> None:
        """A claim made by a clock that is minutes slow would be free at once, by a fast one held for long."""
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + ahead_s)
        assert store.claim([claim("odd", "long"), claim("odd", "short", SHORT_S)]) == [MINE] * 2
        store.done([Finish("forgotten", "odd", b"1", ttl=SHORT_S), Finish("done", "odd", b"1", ttl=LONG_S)])
        monkeypatch.undo()
        elapse(SHORT_S * 2)
        found = store.claim([claim("right", key) for key in ("long", "short", "forgotten", "done")])
        assert [type(answer) for answer in found] == [Held, Mine, Mine, Done]
        monkeypatch.setattr(time, "time", lambda: right() + ahead_s)
        (held,) = store.claim([claim("odd", "short")])
        assert isinstance(held, Held)
        assert time.time() < held.until <= time.time() + LONG_S + 1, "by the clock of whoever asks"

    def test_a_renewed_claim_is_not_freed_too_early(self, store: DedupStore, elapse: Elapse) -> None:
        store.claim([claim("a", seconds=SHORT_S)])
        assert store.renew([claim("a", seconds=LONG_S)]) == [MINE]
        elapse(SHORT_S * 2)
        assert is_held(store.claim([claim("b")])[0])

    def test_nobody_renews_what_another_owns(self, store: DedupStore, elapse: Elapse) -> None:
        store.claim([claim("slow", seconds=SHORT_S)])
        elapse(SHORT_S * 2)
        store.claim([claim("b", seconds=SHORT_S * 20)])
        assert is_held(store.renew([claim("slow", seconds=LONG_S)])[0])
        elapse(SHORT_S * 40)
        assert store.claim([claim("c")]) == [MINE], "the refused renewal must not have prolonged anything"

    def test_an_ended_claim_that_nobody_took_is_renewed(self, store: DedupStore, elapse: Elapse) -> None:
        store.claim([claim("a", seconds=SHORT_S)])
        elapse(SHORT_S * 2)
        assert store.renew([claim("a")]) == [MINE]
        assert is_held(store.claim([claim("b")])[0])

    def test_nobody_marks_done_what_another_owns(self, store: DedupStore, elapse: Elapse) -> None:
        store.claim([claim("slow", seconds=SHORT_S)])
        elapse(SHORT_S * 2)
        store.claim([claim("b")])
        assert is_held(store.done([Finish("k", "slow", b"1")])[0])
        assert store.done([Finish("k", "b", b"2")]) == [MINE]
        assert store.claim([claim("c")]) == [Done(b"2")]

    def test_an_effect_that_ended_after_its_claim_is_marked_done(
        self, store: DedupStore, elapse: Elapse
    ) -> None:
        store.claim([claim("slow", seconds=SHORT_S)])
        elapse(SHORT_S * 2)
        assert store.done([Finish("k", "slow", b"1")]) == [MINE]
        assert store.claim([claim("b")]) == [Done(b"1")]

    def test_the_first_done_stays(self, store: DedupStore) -> None:
        store.done([Finish("k", "a", b"1")])
        assert store.done([Finish("k", "b", b"2")]) == [Done(b"1")]
        assert store.claim([claim("c")]) == [Done(b"1")]

    def test_a_released_claim_is_free_at_once(self, store: DedupStore) -> None:
        store.claim([claim("a")])
        assert store.release([claim("a")]) == [MINE]
        assert store.claim([claim("b")]) == [MINE]

    def test_nobody_releases_what_another_owns_or_what_is_done(self, store: DedupStore) -> None:
        store.claim([claim("a")])
        store.done([Finish("done", "a", b"1")])
        assert is_held(store.release([claim("b")])[0])
        assert store.release([claim("b", "done")]) == [Done(b"1")]
        assert is_held(store.claim([claim("b")])[0])
        assert store.claim([claim("b", "done")]) == [Done(b"1")]

    def test_the_window_ends(self, store: DedupStore, elapse: Elapse) -> None:
        store.done([Finish("k", "a", b"1", ttl=SHORT_S)])
        elapse(SHORT_S * 2)
        assert store.claim([claim("b")]) == [MINE]

    def test_a_batch_is_answered_item_by_item(self, store: DedupStore) -> None:
        store.claim([claim("a", "held")])
        store.done([Finish("done", "a", b"1")])
        held, done, free, again = store.claim([claim("b", key) for key in ("held", "done", "free", "free")])
        assert is_held(held)
        assert done == Done(b"1")
        assert [free, again] == [MINE, MINE]
        assert store.claim([]) == store.renew([]) == store.done([]) == store.release([]) == []

    def test_keys_are_taken_as_they_are(self, store: DedupStore) -> None:
        keys = ["a b", "a:b", "{a}b", "ñ", "*", "a\nb", "'", "x" * 512]
        assert store.claim([claim("a", key) for key in keys]) == [MINE] * len(keys)
        assert all(is_held(answer) for answer in store.claim([claim("b", key) for key in keys]))

    def test_check_then_act(self, store: DedupStore) -> None:
        """Two workers with the same activation at the same moment: one of them runs it."""
        rounds, workers = 100, 4
        barrier = threading.Barrier(workers, timeout=30)

        def work(me: int) -> list[str]:
            won = []
            for number in range(rounds):
                barrier.wait()
                if isinstance(store.claim([claim(f"worker-{me}", f"job-{number}")])[0], Mine):
                    won.append(f"job-{number}")
            return won

        with ThreadPoolExecutor(workers) as pool:
            won = Counter(key for keys in pool.map(work, range(workers)) for key in keys)
        assert won == {f"job-{number}": 1 for number in range(rounds)}

    def test_coroutines_get_the_same_answers(self, store: DedupStore) -> None:
        async def main() -> list[list[Answer]]:
            return [
                await store.aclaim([claim("a")]),
                await store.arenew([claim("a")]),
                await store.adone([Finish("k", "a", b"1")]),
                await store.arelease([claim("a")]),
            ]

        assert asyncio.run(main()) == [[MINE], [MINE], [MINE], [Done(b"1")]]

    def test_a_store_in_order_passes_its_check(self, store: DedupStore) -> None:
        store.check()


class TestMemoryDedupStore(DedupContract):
    @pytest.fixture
    def now(self) -> list[float]:
        return [0.0]

    @pytest.fixture
    def store(self, now: list[float]) -> Iterator[DedupStore]:
        store = MemoryDedupStore(clock=lambda: now[0])
        yield store
        store.close()

    @pytest.fixture
    def elapse(self, now: list[float]) -> Elapse:
        def elapse(seconds: float) -> None:
            now[0] += seconds

        return elapse
