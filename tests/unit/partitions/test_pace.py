"""Work beside leaders: it leaves them every other moment, unless somebody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from relevo_partitions.observer import Observer
from relevo_partitions.pace import AT_ONCE, Pace
from relevo_partitions.runtime import Task, ThreadRuntime
from relevo_partitions.settings import StandbySettings
from relevo_partitions.snapshots.loading import PIECE_BYTES, cut
from relevo_partitions.statemachine import Incoming, Term
from relevo_partitions.term.standby import PIECE, UNHURRIED_S, Beginning, Standby
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import FakeIO, FakeKafka


class Watch(ThreadRuntime):
    """A clock that only work and rest move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.rests.append(round(seconds, 6))
        self.now += seconds

    def spawn(self, name: str, target: Callable[[], None]) -> Task:
        raise NotImplementedError


def work(watch: Watch, pace: Pace, times: list[float]) -> None:
    for took in pace.through(times):
        watch.now += took


def test_each_piece_is_followed_by_a_rest_as_long() -> None:
    watch = Watch()
    work(watch, Pace(watch), [0.001, 0.0, 0.004])
    assert watch.rests == [0.001, 0.004]


def test_who_is_waited_for_does_not_rest() -> None:
    watch = Watch()
    hurried = iter([False, True, True])
    work(watch, Pace(watch, lambda: next(hurried)), [0.001, 0.002, 0.003])
    assert watch.rests == [0.001]


def test_at_once_means_at_once() -> None:
    assert list(AT_ONCE.through("abc")) == ["a", "b", "c"]


def test_a_snapshot_is_cut_into_pieces_and_stays_whole() -> None:
    """Half a megabyte at a time would be fifty milliseconds without a rest."""
    chunks = [bytes(range(256)) * 300, b"", b"end"]
    pieces = list(cut(chunks))
    assert b"".join(pieces) == b"".join(chunks)
    assert max(len(piece) for piece in pieces) == PIECE_BYTES


class Slow(CounterMachine):
    """Each event takes its time; notes how many come at once."""

    def __init__(self, watch: Watch, each_s: float) -> None:
        super().__init__(0, "c")
        self.sizes: list[int] = []
        self._watch, self._each_s = watch, each_s

    def replay(self, records: Any) -> None:
        super().replay(records)
        self.sizes.append(len(records))
        self._watch.now += self._each_s * len(records)


EVENTS = 10 * PIECE


def caught_up(each_s: float, begin: Callable[[Standby], None] = lambda standby: None) -> tuple[Slow, Watch]:
    """A standby that has read the log."""
    kafka, leader = FakeKafka(), CounterMachine(0, "c")
    kafka.append(leader.lead(Term("n", "i"), 1))
    for n in range(EVENTS - 1):
        kafka.append(leader.step([Incoming(n, b"", b'{"id": "c%d", "add": 1}' % n)], 1))
    watch, hot = Watch(), threading.Event()
    slow = Slow(watch, each_s)
    standby = Standby(
        0,
        io=FakeIO(kafka),
        load=lambda _partition, _pace: Beginning(slow, 0),
        observer=Observer(),
        changed=lambda standby: hot.set() if standby.hot or standby.over else None,
        settings=StandbySettings(idle_wait_s=0.001, lag_hot=0),
        runtime=watch,
    )
    begin(standby)
    thread = threading.Thread(target=standby.run, daemon=True)
    thread.start()
    assert hot.wait(10)
    assert standby.hot
    # Once caught up, it keeps up without a rest.
    rested = len(watch.rests)
    for n in range(EVENTS, EVENTS + 5):
        kafka.append(leader.step([Incoming(n, b"", b'{"id": "d%d", "add": 1}' % n)], 1))
    wait_until(lambda: standby.applied == EVENTS + 5, "it has kept up")
    assert len(watch.rests) == rested
    standby.stop()
    thread.join(10)
    return slow, watch


def led(standby: Standby) -> None:
    standby.waited_for = False


def test_a_standby_of_a_partition_that_is_led_catches_up_in_small_steps() -> None:
    """Its thread would keep the leaders of its process from working: a standstill after every move."""
    slow, watch = caught_up(0.0001, led)
    assert max(slow.sizes) <= PIECE
    assert sum(watch.rests) == pytest.approx(EVENTS * 0.0001)


def test_a_standby_that_is_waited_for_does_not_rest() -> None:
    _, watch = caught_up(0.0001)
    assert watch.rests == []


def test_a_standby_that_takes_long_rests_no_more() -> None:
    """The log could grow as fast as it reads."""
    each_s = UNHURRIED_S / EVENTS
    _, watch = caught_up(each_s, led)
    assert 0 < sum(watch.rests) <= UNHURRIED_S / 2 + PIECE * each_s
