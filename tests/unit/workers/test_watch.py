"""What the log says about a running job reaches its handler, and a refusal only the one it was meant for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from relevo.consumer.offsets import Ownership
from relevo.errors import RelevoError
from relevo.follower import Follower, Interest
from relevo.worker.item import Item
from relevo.worker.watch import LossWatch
from relevo_schemas.events import CommandRejected, JobCancelled, JobCompleted, JobStarted, JobTimedOut
from relevo_schemas.records import Event
from tests.unit.workers.fakes import activation


class FakeFollower:
    def __init__(self) -> None:
        self.sinks: dict[str, Any] = {}
        self.cancelled: list[str] = []

    def follow(self, key: str, on_event: Any, on_failure: Any, *, partition: int) -> Future[Interest]:
        self.sinks[key] = on_event
        future: Future[Interest] = Future()
        self.future = future
        return future


class World:
    def __init__(self) -> None:
        self.follower = FakeFollower()
        self.lost: list[tuple[str, str]] = []
        self.superseded: list[tuple[str, int]] = []
        self.watch = LossWatch(
            cast("Follower", self.follower),
            lambda item, reason: self.lost.append((item.key, reason)),
            lambda item, attempt: self.superseded.append((item.key, attempt)),
        )

    def run(self, key: str, attempt: int = 1) -> Item:
        entry = Ownership("t", 0, 1, 0).begin(0)
        assert entry is not None
        item = Item(entry, activation(key, attempt=attempt), "token")
        item.running = True
        self.watch.watch(item)
        return item

    def hear(self, key: str, event: Event) -> None:
        self.follower.sinks[key](0, event)


def refusal(
    source: int, key: str = "k", command: str = "ExtendJobs", reason: str = "STALE_ATTEMPT"
) -> CommandRejected:
    return CommandRejected(1, 1, 1, source, key, command, reason, "3", "2")


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (JobCancelled(1, 1, 1, 1, "k", "no longer wanted"), "CANCELLED"),
        (JobCompleted(1, 1, 1, 1, "k", 2, b""), "COMPLETED"),
        (JobTimedOut(1, 1, 1, -1, "k", 2, "LEASE", 1), "lease ran out"),
        (JobTimedOut(1, 1, 1, 9, "k", 2, "TAKEN_OVER", 1), "handed to another worker"),
    ],
)
def test_the_end_of_a_job_elsewhere_reaches_the_handler(event: Event, says: str) -> None:
    world = World()
    world.run("k", attempt=2)
    world.hear("k", event)
    assert len(world.lost) == 1
    assert says in world.lost[0][1]
    assert [key for key, attempt in world.superseded if attempt >= 2] == ["k"]


def test_the_time_out_of_an_earlier_attempt_is_not_ours() -> None:
    world = World()
    world.run("k", attempt=2)
    world.hear("k", JobTimedOut(1, 1, 1, -1, "k", 1, "LEASE", 1))
    world.hear("k", JobStarted(1, 1, 1, 1, "k", 2, "me", 30_000))
    assert world.lost == []


@pytest.mark.parametrize("refused_first", [True, False])
def test_a_refused_renewal_is_ours_by_its_offset(refused_first: bool) -> None:
    """The refusal may be read before the delivery report of the renewal is served."""
    world = World()
    item = world.run("k")
    if refused_first:
        world.hear("k", refusal(5))
        assert world.lost == []
    world.watch.sent([(item, 1)], 0, 5)
    if not refused_first:
        world.hear("k", refusal(5))
    assert [key for key, _ in world.lost] == ["k"]


def test_a_refusal_of_an_earlier_attempt_says_nothing_of_the_one_that_follows() -> None:
    """The next attempt was handed to the same worker, which runs the job already."""
    world = World()
    item = world.run("k")
    world.watch.sent([(item, 1)], 0, 5)
    item.attempt = 2
    world.hear("k", refusal(5))
    assert world.lost == []


def test_the_refusal_of_another_workers_renewal_is_not_ours() -> None:
    world = World()
    item = world.run("k")
    world.watch.sent([(item, 1)], 0, 5)
    world.hear("k", refusal(4))
    world.hear("k", refusal(5, command="FailJob"))
    world.hear("k", refusal(5, reason="INVALID"))
    assert world.lost == []


def test_what_has_ended_is_not_lost() -> None:
    world = World()
    item = world.run("k")
    item.running = False
    world.hear("k", JobCompleted(1, 1, 1, 1, "k", 1, b""))
    assert world.lost == []


def test_a_watch_that_is_cancelled_before_it_is_there() -> None:
    world = World()
    item = world.run("k")
    item.watch.cancel()

    class Attached:
        cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    attached = Attached()
    world.follower.future.set_result(cast("Interest", attached))
    assert attached.cancelled


def test_a_follower_that_fails_harms_nobody() -> None:
    world = World()
    item = world.run("k")
    world.follower.future.set_exception(RelevoError("no broker"))
    item.watch.cancel()
    assert world.lost == []
