"""A standby that is stopped, or dies, at any point of its replay: what it has kept is never ahead of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import pytest

from relevo_partitions.observer import Observer
from relevo_partitions.pace import Pace
from relevo_partitions.settings import StandbySettings
from relevo_partitions.snapshots.loading import load
from relevo_partitions.snapshots.snapshotter import SnapshotSettings, Snapshotter
from relevo_partitions.statemachine import Incoming, Term
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.standby import Beginning, Standby
from tests.support.counter_machine import CounterMachine
from tests.support.snapshot_store import MemoryLog, MemorySnapshots
from tests.unit.partitions.fakes import FakeIO, FakeKafka
from tests.unit.partitions.standby_thread import events

EVENTS = 120


class Mortal(CounterMachine):
    """Calls ``act`` in the middle of a replay, before the record that ``left`` counts down to."""

    def __init__(self, number: int, left: list[int], act: Callable[[], None]) -> None:
        super().__init__(number, "c")
        self._left, self._act = left, act

    def replay(self, records: Sequence[Incoming]) -> None:
        for record in records:
            self._left[0] -= 1
            if self._left[0] == 0:
                self._act()
            super().replay([record])


class Turns(Snapshotter):
    """As a standby drives it."""

    def close(self) -> None:
        """The store is the test's."""


@pytest.fixture
def kafka() -> FakeKafka:
    kafka = FakeKafka()
    kafka.append(CounterMachine(0, "c").lead(Term("n0", "i0"), 1))
    events(kafka, EVENTS)
    return kafka


def run_once(kafka: FakeKafka, store: MemorySnapshots, left: int, how: str) -> Standby:
    """A standby that begins with what is kept; it runs until it is hot, or ended before."""
    counter = [left]

    def act() -> None:
        if how == "crash":
            raise RuntimeError("the process dies")
        standby.stop()

    def make(number: int) -> CounterMachine:
        return Mortal(number, counter, act)

    def begin(partition: int, _pace: Pace) -> Beginning:
        loaded = load(partition, make, store, Observer())
        return Beginning(loaded.machine, loaded.log_offset, loaded.manifest)

    hot = threading.Event()
    settings = SnapshotSettings(events=7, interval_s=0.0, log_keep_s=1e9)
    standby = Standby(
        0,
        io=FakeIO(kafka),
        load=begin,
        observer=Observer(),
        changed=lambda _standby: hot.set(),
        settings=StandbySettings(idle_wait_s=0.001, batch_max=3, lag_hot=0),
        snapshots=Turns(0, store, lambda number: CounterMachine(number, "c"), Observer(), settings),
    )
    standby.takes_snapshots = True
    thread = threading.Thread(target=standby.run, daemon=True)
    thread.start()
    assert hot.wait(30)
    standby.stop()
    thread.join(30)
    assert not thread.is_alive()
    return standby


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_a_replay_that_ends_anywhere_is_taken_up_without_a_hole(kafka: FakeKafka, how: str) -> None:
    """A position that is ahead of the state loses what lies between; nobody would ever know."""
    dice = random.Random(42)
    straight = CounterMachine(0, "c")
    straight.replay(kafka.log)
    used, ended = 0, set()
    for _ in range(40):
        store = MemorySnapshots(MemoryLog(records=kafka.log))
        for _ in range(3):  # each goes on from what the ones before have kept
            standby = run_once(kafka, store, dice.randint(1, 2 * EVENTS), how)
            assert standby.over is not None
            ended.add(standby.over.ending)
            for manifest in store.manifests:
                # One event for each offset: whoever reads on there finds all that the copy lacks.
                assert manifest.log_offset <= manifest.seq
                there = CounterMachine(0, "c")
                there.restore(store.read(manifest))
                copy = CounterMachine(0, "c")
                copy.replay(kafka.log[: manifest.seq])
                assert there.state_hash() == copy.state_hash()
        used += bool(store.manifests)
        loaded = load(0, lambda number: CounterMachine(number, "c"), store, Observer())
        loaded.machine.replay(kafka.log[loaded.log_offset :])
        assert loaded.machine.state_hash() == straight.state_hash()
    assert used > 10, "hardly a snapshot was taken"
    assert ended == ({Ending.MACHINE_FAILED, Ending.STOPPED} if how == "crash" else {Ending.STOPPED})
