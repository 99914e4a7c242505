"""Producers that wait for a takeover: there is always another, and none that may have lost a request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka import fence
from relevo_partitions.kafka.connection import (  # type: ignore[attr-defined]
    Connection,
    KafkaError,
    KafkaException,
)
from tests.support.waiting import wait_until

BROKEN = "FAIL [rdkafka#producer-1] [thrd:h:1/1]: h:1/1: Disconnected (after 80ms in state UP)"
REFUSED = "FAIL [rdkafka#producer-1] [thrd:h:1/1]: Connection refused (after 0ms in state CONNECT)"


class FakeProducer:
    """Says what it is told to, when its callbacks are served."""

    made: list[FakeProducer] = []  # noqa: RUF012 - emptied by a fixture
    problems: list[Exception] = []  # noqa: RUF012

    def __init__(self, settings: dict[str, Any]) -> None:
        if self.problems:
            raise self.problems.pop(0)
        self._logger = settings["logger"]
        self.lines: list[str] = []
        self.made.append(self)

    def list_topics(self, _topic: str, timeout: float) -> None:
        """It is connected."""

    def poll(self, _timeout: float) -> int:
        """Serve the log lines."""
        lines, self.lines = self.lines, []
        for line in lines:
            self._logger.log(20, "%s", line)
        return 0


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[fence.ProducerPool]:
    monkeypatch.setattr(fence, "Producer", FakeProducer)
    monkeypatch.setattr(FakeProducer, "made", [])
    monkeypatch.setattr(FakeProducer, "problems", [])
    pool = fence.ProducerPool(Connection("h:1"), "c-0", "c.log")
    yield pool
    pool.keep(0)


def ready(pool: fence.ProducerPool, count: int) -> None:
    pool.keep(count)
    wait_until(lambda: len(pool) == count, "the pool is full", timeout_s=10)


@pytest.mark.parametrize(
    "problem",
    [
        KafkaException(KafkaError(KafkaError._FAIL)),
        RuntimeError("can't start new thread"),
        OSError("no file"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_a_producer_that_can_not_be_made_is_tried_again(pool: fence.ProducerPool, problem: Exception) -> None:
    """A filler that dies with it would never be followed by another: no takeover would ever succeed here."""
    FakeProducer.problems.append(problem)
    pool.keep(1)
    wait_until(lambda: pool._filler is None and not FakeProducer.problems, "it couldn't be made")
    assert isinstance(pool._problem, KafkaUnavailable)
    assert pool.take(10)[0] is FakeProducer.made[0]  # type: ignore[comparison-overlap]


def test_a_thread_that_can_not_be_started_is_tried_again(
    pool: fence.ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", none_left)
        with pytest.raises(RuntimeError):
            pool.keep(1)
    ready(pool, 1)


def test_one_that_lost_a_connection_while_it_waited_is_replaced(pool: fence.ProducerPool) -> None:
    """Librdkafka logs the next loss, which may be of a commit, only where the last one was long ago."""
    ready(pool, 2)
    FakeProducer.made[0].lines.append(BROKEN)
    pool.tend()
    wait_until(lambda: len(pool) == 2, "another took its place", timeout_s=10)
    assert {id(pool.take(10)[0]), id(pool.take(10)[0])} == {id(each) for each in FakeProducer.made[1:]}


def test_one_that_has_just_lost_a_connection_is_not_taken(pool: fence.ProducerPool) -> None:
    ready(pool, 2)
    FakeProducer.made[0].lines.append(BROKEN)
    assert pool.take(10)[0] is FakeProducer.made[1]  # type: ignore[comparison-overlap]


def test_one_that_a_broker_has_refused_is_as_good_as_any(pool: fence.ProducerPool) -> None:
    """Else there would be none while one of several brokers is down."""
    ready(pool, 1)
    FakeProducer.made[0].lines.append(REFUSED)
    pool.tend()
    assert pool.take(10)[0] is FakeProducer.made[0]  # type: ignore[comparison-overlap]
