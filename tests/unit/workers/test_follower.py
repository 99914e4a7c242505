"""Those who begin to wait at the same time: nobody waits for the reading that is done for another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from relevo import follower as following
from relevo.follower import Follower


class EmptyLog:
    """A consumer of a log in which nothing happens; its first answer comes when the test allows it."""

    def __init__(self, _config: dict[str, Any]) -> None:
        self.may_answer = threading.Event()
        self.asked = threading.Event()
        self.polls = 0
        EmptyLog.last = self

    last: EmptyLog

    def get_watermark_offsets(self, _place: object, timeout: float) -> tuple[int, int]:
        self.asked.set()
        assert self.may_answer.wait(10)
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
    made = Follower("h:1", "c", {})
    yield made
    made.close()


def test_all_who_wait_are_seen_to_before_anything_is_read(follower: Follower) -> None:
    """After a worker's death its successor asks about hundreds of jobs at once: 10 ms each were seconds."""
    polls: list[int] = []
    first = follower.follow("k", lambda _at, _event: None, lambda _error: None, partition=0)
    while not hasattr(EmptyLog, "last") or not EmptyLog.last.asked.wait(0.01):
        assert not first.done()
    log = EmptyLog.last
    others = [
        follower.follow(f"k{n}", lambda _at, _event: None, lambda _error: None, partition=0)
        for n in range(500)
    ]
    others[-1].add_done_callback(lambda _: polls.append(log.polls))
    log.may_answer.set()
    assert all(each.result(10).position == 7 for each in [first, *others])
    assert polls == [0]
