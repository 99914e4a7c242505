"""A fence that began beside the claim: it counts as the term's own, and none is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.runtime import THREADS
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.fence_ahead import FenceAhead
from relevo_partitions.term.roles import Role
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import FakeIO, FakeKafka, FakeWriter, Running


class Held(FakeIO):
    """Its fences take until they are let through."""

    def __init__(self, kafka: FakeKafka) -> None:
        super().__init__(kafka)
        self.kafka = kafka
        self.through = threading.Event()
        self.cancelled = threading.Event()

    def fence(self, cancelled: Callable[[], bool]) -> FakeWriter:
        while not self.through.wait(0.005):
            if cancelled():
                self.cancelled.set()
                raise KafkaUnavailable("given up")
        return super().fence(cancelled)


def test_a_term_goes_on_from_the_fence_that_was_begun_for_it() -> None:
    """A second one would only cost time."""
    kafka = FakeKafka()
    kafka.send(id="a", add=5)
    ahead = FenceAhead(FakeIO(kafka), 0, THREADS)
    running = Running(kafka, fence_ahead=ahead).wait_leading()
    running.wait_total(5)
    assert kafka.newest == 1, "producers that were initialised"


def test_where_it_fails_the_term_ends_as_with_any_fence() -> None:
    kafka = FakeKafka()
    kafka.fence_fails = True
    over = Running(kafka, fence_ahead=FenceAhead(FakeIO(kafka), 0, THREADS)).over()
    assert over.ending is Ending.KAFKA_UNAVAILABLE


def test_whoever_was_fenced_meanwhile_fences_anew() -> None:
    """The claim took long, and another node led and died in between."""
    kafka = FakeKafka()
    kafka.send(id="a", add=5)
    io = FakeIO(kafka)
    ahead = FenceAhead(io, 0, THREADS)
    wait_until(lambda: kafka.newest == 1, "it is through")
    io.fence(lambda: False)
    running = Running(kafka, fence_ahead=ahead).wait_leading()
    running.wait_total(5)
    assert running.heard.faults == ["fenced"]


def test_one_that_is_given_up_lets_its_producer_go() -> None:
    kafka = FakeKafka()
    through = FenceAhead(FakeIO(kafka), 0, THREADS)
    wait_until(lambda: kafka.newest == 1, "it is through")
    through.give_up()
    wait_until(lambda: kafka.writers_open == 0, "its producer is let go")
    held = Held(kafka)
    FenceAhead(held, 0, THREADS).give_up()
    assert held.cancelled.wait(10), "it stops trying"


def test_a_producer_that_comes_after_it_was_given_up_is_let_go() -> None:
    """The call that was under way succeeded all the same."""
    kafka = FakeKafka()
    asked = threading.Event()

    class Deaf(FakeIO):
        def fence(self, cancelled: Callable[[], bool]) -> FakeWriter:
            assert asked.wait(10)
            return super().fence(cancelled)

    FenceAhead(Deaf(kafka), 0, THREADS).give_up()
    asked.set()
    wait_until(lambda: kafka.newest == 1 and kafka.writers_open == 0, "it came, and is let go")


def test_a_term_that_ends_before_its_fence_gives_it_up() -> None:
    held = Held(FakeKafka())
    running = Running(held.kafka, fence_ahead=FenceAhead(held, 0, THREADS))
    wait_until(lambda: Role.FENCING in running.path, "the term waits for its fence")
    running.term.end(Ending.LOST, "the claim is gone")
    assert held.cancelled.wait(10)
    assert running.over().ending is Ending.LOST
