"""Those who begin to wait at the same time: nobody waits for the reading that is done for another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from relevo import follower as following
from relevo.follower import Follower, Interest


class EmptyLog:
    """A consumer of a log in which nothing happens; its answers come when the test allows them."""

    def __init__(self, _config: dict[str, Any]) -> None:
        self.may_answer = threading.Event()
        self.asked = threading.Event()
        self.polls = 0
        self.asked_at: list[int] = []
        EmptyLog.last = self

    last: EmptyLog

    def _answer(self) -> None:
        self.asked.set()
        assert self.may_answer.wait(10)

    def list_topics(self, topic: str, timeout: float) -> Any:
        self._answer()
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=[0])})

    def get_watermark_offsets(self, _place: object, timeout: float) -> tuple[int, int]:
        self.asked_at.append(self.polls)
        self._answer()
        return 0, 7

    def incremental_assign(self, _places: object) -> None:
        """Nothing comes of it."""

    def incremental_unassign(self, _places: object) -> None:
        """Nothing comes of it."""

    def poll(self, _wait_s: float) -> None:
        self.polls += 1

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    monkeypatch.setattr(following, "Consumer", EmptyLog)
    if hasattr(EmptyLog, "last"):
        del EmptyLog.last
    made = Follower("h:1", "c", {})
    yield made
    made.close()


@pytest.mark.parametrize("partition", [0, None])
def test_all_who_wait_are_seen_to_before_anything_is_read(follower: Follower, partition: int | None) -> None:
    """After a worker's death its successor asks about hundreds of jobs at once: 10 ms each were seconds."""
    polls: list[int] = []
    first = follower.follow("k", lambda _at, _event: None, lambda _error: None, partition=partition)
    while not hasattr(EmptyLog, "last") or not EmptyLog.last.asked.wait(0.01):
        assert not first.done()
    log = EmptyLog.last
    others = [
        follower.follow(f"k{n}", lambda _at, _event: None, lambda _error: None, partition=partition)
        for n in range(500)
    ]
    others[-1].add_done_callback(lambda _: polls.append(log.polls))
    log.may_answer.set()
    assert all(each.result(10).position == 7 for each in [first, *others])
    # One for the first, who asked Kafka.
    assert polls == [1]


def test_who_asks_kafka_holds_up_those_who_wait_already_no_longer_than_one_call(follower: Follower) -> None:
    """A broker that is away takes up to 5 s for each partition that nobody reads yet."""

    def follow(partition: int) -> Future[Interest]:
        return follower.follow("k", lambda _at, _event: None, lambda _error: None, partition=partition)

    first = follow(0)
    while not hasattr(EmptyLog, "last") or not EmptyLog.last.asked.wait(0.01):
        assert not first.done()
    others = [follow(partition) for partition in range(1, 20)]
    EmptyLog.last.may_answer.set()
    for each in (first, *others):
        each.result(10)
    asked_at = EmptyLog.last.asked_at
    assert len(asked_at) == len(set(asked_at)) == 20, "between two that ask, what is read already is read on"
