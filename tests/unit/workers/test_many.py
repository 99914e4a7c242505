"""Many calls at once: each answered, in order, however the answers come."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from relevo.client.many import Call, check_in_flight, run_many, run_many_async
from relevo.client.results import BulkResult, JobHandle
from relevo.client.steps import Steps, Wait, run
from relevo.errors import InvalidRequest, OutcomeUnknown, Rejected, RelevoError


class Kafka:
    """Answers calls when it is told to."""

    def __init__(self) -> None:
        self.futures: dict[str, Future[int]] = {}
        self.most = 0
        self.under_way = 0
        self.closed: list[str] = []

    def call(self, key: str, timeout: float = 60.0, deaf: float = 0.0) -> Callable[[], Steps[JobHandle]]:
        """A call that waits for its answer; first, for ``deaf`` seconds, for one that can't come."""

        def steps() -> Steps[JobHandle]:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                if deaf:
                    with contextlib.suppress(TimeoutError):
                        yield Wait(Future(), time.monotonic() + deaf)
                future = self.futures.setdefault(key, Future())
                try:
                    offset: int = yield Wait(future, time.monotonic() + timeout)
                except TimeoutError as error:
                    raise OutcomeUnknown(key) from error
                return JobHandle(key, 0, offset, 0)
            except GeneratorExit:
                self.closed.append(key)
                raise
            finally:
                self.under_way -= 1

        return steps

    def answer(self, key: str, offset: int = 0, error: RelevoError | None = None) -> None:
        future = self.futures.setdefault(key, Future())
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(offset)


def bad() -> Steps[JobHandle]:
    raise InvalidRequest("no key")


def test_answers_in_any_order_come_out_in_the_order_of_the_items() -> None:
    kafka = Kafka()
    keys = [f"k{n}" for n in range(10)]
    calls: list[Call] = [(key, kafka.call(key)) for key in keys]
    calls[4] = (None, bad)
    for n, key in enumerate(reversed(keys)):
        kafka.answer(key, n, Rejected(key, "RetryJob", "NOT_FOUND", "a job", "none") if key == "k2" else None)
    results = list(run_many(calls, 10))
    assert [result.index for result in results] == list(range(10))
    assert [result.key for result in results] == [*keys[:4], None, *keys[5:]]
    assert [type(result.error).__name__ for result in results if not result.ok] == [
        "Rejected",
        "InvalidRequest",
    ]
    assert [result.handle.offset for result in results if result.handle] == [9, 8, 6, 4, 3, 2, 1, 0]


def test_no_more_are_under_way_than_allowed_and_no_more_are_read() -> None:
    """An endless list of jobs must not fill the memory."""
    kafka, read = Kafka(), itertools.count()

    def calls() -> Iterator[Call]:
        while True:
            key = f"k{next(read)}"
            kafka.answer(key)
            yield key, kafka.call(key)

    results = run_many(calls(), 5)
    assert [result.ok for result in itertools.islice(results, 100)] == [True] * 100
    assert next(read) <= 106
    assert kafka.most <= 5


def test_an_answer_from_another_thread_is_heard() -> None:
    kafka = Kafka()
    results: list[BulkResult] = []
    thread = threading.Thread(target=lambda: results.extend(run_many([("k", kafka.call("k"))], 1)))
    thread.start()
    threading.Timer(0.05, kafka.answer, ("k", 3)).start()
    thread.join(30)
    assert [result.handle for result in results] == [JobHandle("k", 0, 3, 0)]


def test_each_has_its_own_time() -> None:
    """One that is never answered must not hold the others, nor they it."""
    kafka = Kafka()
    kafka.answer("quick")
    calls = [("never", kafka.call("never", 0.05)), ("quick", kafka.call("quick", deaf=0.01))]
    never, quick = run_many(calls, 2)
    assert isinstance(never.error, OutcomeUnknown)
    assert quick.ok


def test_who_stops_listening_leaves_nothing_behind() -> None:
    kafka = Kafka()
    kafka.answer("k0")
    results = run_many(((f"k{n}", kafka.call(f"k{n}")) for n in itertools.count()), 4)
    assert next(results).ok
    results.close()  # type: ignore[attr-defined]
    assert kafka.under_way == 0
    assert len(kafka.closed) in (3, 4)


async def test_coroutines_get_the_same() -> None:
    kafka = Kafka()
    keys = [f"k{n}" for n in range(10)]
    for key in keys:
        kafka.answer(key)
    calls: list[Call] = [(key, kafka.call(key)) for key in keys]
    calls[4] = (None, bad)
    results = [result async for result in run_many_async(calls, 3)]
    assert [(result.index, result.ok) for result in results] == [(n, n != 4) for n in range(10)]
    assert kafka.most <= 3


@pytest.mark.parametrize("number", [0, -1])
def test_none_at_once_is_refused(number: int) -> None:
    with pytest.raises(InvalidRequest, match="in_flight"):
        check_in_flight(number)


def test_whoever_waits_for_ever_gets_an_answer() -> None:
    """`float("inf")` is what people write for it, and more than Python's locks take."""
    kafka = Kafka()
    call = kafka.call("a", timeout=float("inf"))
    threading.Timer(0.05, lambda: kafka.futures["a"].set_result(1)).start()
    (result,) = run_many(iter([("a", call)]), 10)
    assert result.error is None
    future: Future[int] = Future()
    threading.Timer(0.05, lambda: future.set_result(7)).start()

    def steps() -> Steps[int]:
        found: int = yield Wait(future, float("inf"))
        return found

    assert run(steps()) == 7
