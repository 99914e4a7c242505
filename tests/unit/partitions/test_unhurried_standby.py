"""A standby that catches up while others lead: it must not take the processor from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from relevo_partitions.observer import Observer
from relevo_partitions.runtime import ThreadRuntime
from relevo_partitions.settings import StandbySettings
from relevo_partitions.statemachine import Incoming, Term
from relevo_partitions.term.standby import UNHURRIED_BATCH, UNHURRIED_REST, Standby, from_the_beginning
from tests.support.counter_machine import CounterMachine
from tests.unit.partitions.fakes import FakeIO, FakeKafka

EVENTS = 1_000
APPLY_S = 0.01
"""What a slice takes by the clock below, whatever is in it."""


class Clock(ThreadRuntime):
    """Stands still but for slices that are applied and rests; notes the rests."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def signal(self) -> Rest:
        return Rest(self)


class Rest(threading.Event):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        if timeout:
            self._clock.now += timeout
            self._clock.rests.append(round(timeout, 6))
        return self.is_set()


class Slow(CounterMachine):
    def __init__(self, clock: Clock, applied: Callable[[int], None]) -> None:
        super().__init__(0, "c")
        self._clock, self._applied = clock, applied

    def replay(self, records: Sequence[Incoming]) -> None:
        super().replay(records)
        self._clock.now += APPLY_S
        self._applied(len(records))


def catch_up(
    unhurried: Callable[[], bool], *, unhurried_s: float = 30.0, nonce: str | None = None
) -> tuple[list[int], list[float]]:
    """Let a standby follow a log until it is hot: the slices that it applied, and its rests."""
    kafka, clock, slices = FakeKafka(), Clock(), list[int]()
    machine = CounterMachine(0, "c")
    kafka.append(machine.lead(Term("n0", "i0"), 1))
    for number in range(EVENTS - 1):
        kafka.append(machine.step([Incoming(number, b"", b'{"id": "%d", "add": 1}' % number)], 1))

    def changed(standby: Standby) -> None:
        if standby.hot:
            standby.stop()

    standby = Standby(
        0,
        io=FakeIO(kafka),
        load=from_the_beginning(lambda _: Slow(clock, slices.append)),
        observer=Observer(),
        changed=changed,
        settings=StandbySettings(batch_max=500, lag_hot=0, unhurried_s=unhurried_s),
        unhurried=unhurried,
        runtime=clock,
    )
    standby.meet(nonce)
    standby.run()
    assert sum(slices) == EVENTS
    return slices, clock.rests


def test_while_somebody_leads_it_rests_three_times_as_long_as_it_works() -> None:
    """In a rolling restart the partitions that hadn't moved stood still: all cores caught up."""
    slices, rests = catch_up(lambda: True)
    assert slices == [UNHURRIED_BATCH] * (EVENTS // UNHURRIED_BATCH)
    assert set(rests) == {UNHURRIED_REST * APPLY_S}
    assert len(rests) >= len(slices) - 1


def test_without_a_leader_it_hurries() -> None:
    assert catch_up(lambda: False) == ([500, 500], [])


def test_it_hurries_as_soon_as_the_leader_is_gone() -> None:
    answers = iter([True, True])
    slices, rests = catch_up(lambda: next(answers, False))
    assert slices == [100, 100, 500, 300]
    assert len(rests) == 2


def test_it_does_not_take_its_time_for_ever() -> None:
    """A log that grows as fast as it is read this way would never be caught up with."""
    slices, _ = catch_up(lambda: True, unhurried_s=3.5 * 4 * APPLY_S)
    assert slices == [100] * 4 + [500, 100]


def test_who_is_awaited_does_not_rest() -> None:
    _, rests = catch_up(lambda: True, nonce="never written")
    assert rests == []
