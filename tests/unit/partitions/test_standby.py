"""A standby follows, becomes hot, falls behind, stops at the barrier, and hands over what it has built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.pace import Pace
from relevo_partitions.snapshots.ports import Manifest
from relevo_partitions.statemachine import Incoming, StateMachine
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.standby import Beginning
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import FakeKafka
from tests.unit.partitions.standby_thread import Following, barrier, events, led_once, machine


@pytest.fixture
def kafka() -> FakeKafka:
    return led_once()


@pytest.fixture
def follow(kafka: FakeKafka) -> Iterator[Callable[..., Following]]:
    made: list[Following] = []

    def begin(**more: Any) -> Following:
        made.append(Following(kafka, **more))
        return made[-1]

    yield begin
    for each in made:
        each.standby.stop()
        each.wait_ended()


def test_it_is_hot_once_it_has_read_what_was_there(
    kafka: FakeKafka, follow: Callable[..., Following]
) -> None:
    events(kafka, 35)
    following = follow().wait_hot()
    wait_until(lambda: following.standby.lag == 0, "it lacks nothing")
    assert following.standby.applied == 36
    assert following.told == [True]


def test_it_goes_on_as_the_log_grows(kafka: FakeKafka, follow: Callable[..., Following]) -> None:
    following = follow().wait_hot()
    events(kafka, 12)
    wait_until(lambda: following.standby.applied == 13, "it has followed")
    assert following.standby.position == 12


def test_in_a_log_that_never_rests_it_gets_hot_all_the_same(
    kafka: FakeKafka, follow: Callable[..., Following]
) -> None:
    """Under load the end is never quite reached: who waits for it never becomes a candidate."""
    events(kafka, 60)
    kafka.end_is_ahead_by = 3
    following = follow().wait_hot()
    assert following.standby.lag == 3


def test_one_that_falls_far_behind_is_hot_no_more(kafka: FakeKafka, follow: Callable[..., Following]) -> None:
    """It would keep everybody waiting while it catches up, and another might be nearer."""
    following = follow().wait_hot()
    kafka.end_is_ahead_by = 1_000
    wait_until(lambda: not following.standby.hot, "it isn't hot any more")
    assert following.standby.lag == 1_000
    kafka.end_is_ahead_by = 0
    following.wait_hot()
    assert following.told == [True, False, True]


def test_one_whose_reader_is_stuck_ends(kafka: FakeKafka, follow: Callable[..., Following]) -> None:
    """It would count as hot, and a takeover wait for it in vain."""
    following = follow().wait_hot()
    kafka.stuck = True
    events(kafka, 3)
    over = following.wait_ended().over
    assert over is not None
    assert over.ending is Ending.KAFKA_UNAVAILABLE
    assert "the client is stuck" in over.detail


def test_it_stops_at_the_barrier_and_nowhere_else(kafka: FakeKafka, follow: Callable[..., Following]) -> None:
    following = follow().wait_hot()
    following.standby.meet("mine")
    barrier(kafka, "another's")
    events(kafka, 3)
    barrier(kafka, "mine")
    standby = following.wait_ended()
    assert standby.replica is not None
    assert standby.over is None
    assert (standby.replica.machine.position, standby.replica.next_offset) == (3, len(kafka.log))
    assert standby.hot
    assert kafka.readers_open == 1, "the reader goes with the machine"
    standby.replica.reader.close()


def test_records_behind_the_barrier_are_left_to_the_leader(kafka: FakeKafka) -> None:
    """They are a later leader's: whoever applied them would lead on with what it hasn't written."""
    standby = Following(kafka).wait_hot().standby
    standby.meet("mine")
    before = len(kafka.log)
    staged = FakeKafka(log=list(kafka.log))
    barrier(staged, "mine")
    events(staged, 2)
    kafka.log.extend(staged.log[before:])
    wait_until(lambda: standby.await_end(0), "it stopped")
    assert standby.replica is not None
    assert standby.replica.machine.last_seq == 1


def test_told_to_stop_it_drops_everything(kafka: FakeKafka, follow: Callable[..., Following]) -> None:
    following = follow().wait_hot()
    following.standby.stop()
    standby = following.wait_ended()
    assert (standby.hot, standby.replica, kafka.readers_open) == (False, None, 0)
    assert standby.over is not None
    assert standby.over.ending is Ending.STOPPED


def test_a_damaged_log_is_not_followed(kafka: FakeKafka, follow: Callable[..., Following]) -> None:
    kafka.log.append(Incoming(1, b"", b'{"seq": 9, "epoch": 1, "kind": "added", "at": 0, "source": 0}'))
    standby = follow().wait_ended()
    assert standby.over is not None
    assert standby.over.ending is Ending.LOG_DAMAGED
    assert "expected seq 2" in standby.over.detail
    assert not standby.hot


def test_kafka_away_while_loading_ends_it_with_a_reason(
    kafka: FakeKafka, follow: Callable[..., Following]
) -> None:
    def away(partition: int, _pace: Pace) -> Beginning:
        raise KafkaUnavailable(f"no broker for {partition}")

    standby = follow(load=away).wait_ended()
    assert standby.over is not None
    assert (standby.over.ending, standby.over.detail) == (Ending.KAFKA_UNAVAILABLE, "no broker for 0")


def test_it_begins_where_the_snapshot_ends(kafka: FakeKafka, follow: Callable[..., Following]) -> None:
    events(kafka, 30)
    stand = machine()
    stand.replay(kafka.log[:21])
    following = follow(load=lambda _number, _pace: Beginning(stand, 21)).wait_hot()
    wait_until(lambda: following.standby.lag == 0, "it lacks nothing")
    assert following.standby.applied == 10


def test_a_barrier_that_does_not_come_is_told(kafka: FakeKafka, follow: Callable[..., Following]) -> None:
    """A foreign transaction that is never ended holds back what all readers get to see."""
    following = follow().wait_hot()
    following.standby.meet("held back")
    wait_until(lambda: following.faults == ["log_stalled"] * len(following.faults) != [], "it was told")
    barrier(kafka, "held back")
    assert following.wait_ended().replica is not None


class Turns:
    """Counts the slices, and sees that none comes once the machine may be somebody else's."""

    def __init__(self) -> None:
        self.turns, self.stopped, self.closed, self.late = 0, False, False, 0
        self.busy = False

    def loaded(self, manifest: Manifest | None) -> None:
        self.manifest = manifest

    def turn(self, machine: StateMachine, next_log_offset: int) -> None:
        self.turns += 1
        self.late += self.stopped

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


def test_snapshots_are_taken_by_the_one_that_is_to(
    kafka: FakeKafka, follow: Callable[..., Following]
) -> None:
    turns = Turns()
    following = follow(snapshots=turns).wait_hot()
    assert turns.turns == 0
    following.standby.takes_snapshots = True
    wait_until(lambda: turns.turns, "it takes turns")
    following.standby.meet("mine")
    barrier(kafka, "mine")
    following.wait_ended()
    assert (turns.stopped, turns.closed, turns.late) == (True, True, 0)


# -- a term that takes a standby over
