"""A standby's reader of the commands is connected before the takeover needs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.warm_reader import AGAIN_S, WarmReader
from relevo_partitions.statemachine import LogDamaged
from tests.support.waiting import wait_until


class FakeReader:
    def __init__(self, world: World) -> None:
        self.world = world
        self.connected = self.closed = False
        self.tended = 0

    def connect(self) -> None:
        self.world.may_answer.wait(10)
        if self.world.problem is not None:
            raise self.world.problem
        self.connected = True

    def tend(self) -> None:
        self.tended += 1

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.problem: Exception | None = None
        self.made: list[FakeReader] = []
        self.now = 100.0
        self.warm = WarmReader(self.make, lambda: self.now)

    def make(self) -> FakeReader:
        self.made.append(FakeReader(self))
        return self.made[-1]

    def await_ready(self) -> FakeReader:
        wait_until(lambda: self.warm._ready is not None, "a reader is ready")
        return self.made[-1]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.may_answer.set()


def test_the_reader_that_is_taken_is_connected_already(world: World) -> None:
    """A new one now and then takes 0.7 s for its first answer, and the partition stands still meanwhile."""
    world.warm.keep(True)
    ready = world.await_ready()
    world.warm.keep(True)
    world.warm.tend()
    assert world.warm.take() is ready
    assert (ready.connected, ready.tended, len(world.made)) == (True, 1, 1)
    world.warm.tend()
    assert world.warm.take() is not ready, "one reader would be used twice"


def test_who_stands_by_no_longer_holds_no_connection(world: World) -> None:
    world.warm.keep(True)
    ready = world.await_ready()
    world.warm.keep(False)
    assert ready.closed


def test_a_takeover_does_not_wait_for_a_reader_that_is_not_ready(world: World) -> None:
    """Its own may be quicker; the late one is let go, as nobody will take it."""
    world.may_answer.clear()
    world.warm.keep(True)
    taken = world.warm.take()
    world.may_answer.set()
    late = world.made[0]
    wait_until(lambda: late.closed, "the late one is let go")
    assert taken is world.made[1]
    assert not taken.closed


@pytest.mark.parametrize("problem", [KafkaUnavailable("silent"), LogDamaged("no such topic")])
def test_without_an_answer_another_is_tried_later(world: World, problem: Exception) -> None:
    """Kafka that comes back finds the standby without a warm reader for ever, or is asked without a pause."""
    world.problem = problem
    world.warm.keep(True)
    wait_until(lambda: world.made[0].closed, "it is let go")
    world.warm.tend()
    world.now += AGAIN_S - 0.1
    world.warm.tend()
    assert len(world.made) == 1
    world.problem = None
    world.now += 0.2
    world.warm.tend()
    assert world.await_ready() is world.made[1]
