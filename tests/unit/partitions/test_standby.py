"""A standby follows, becomes hot, falls behind, stops at the barrier, and hands over what it has built."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.observer import Observer
from relevo_partitions.pace import AT_ONCE, Pace
from relevo_partitions.ports import Verdict
from relevo_partitions.settings import StandbySettings, TermSettings
from relevo_partitions.snapshots.ports import Manifest
from relevo_partitions.statemachine import Incoming, StateMachine
from relevo_partitions.term.barrier import is_barrier, make_barrier
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.standby import Beginning, Load, Standby, from_the_beginning
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import LOG, FakeIO, FakeKafka, Running, SlowSeat, unclear_and_lost

SETTINGS = StandbySettings(idle_wait_s=0.002, batch_max=10, lag_hot=5, lag_max=20, behind_s=0.0, stall_s=0.02)


def machine(number: int = 0) -> CounterMachine:
    return CounterMachine(number, "c")


def events(kafka: FakeKafka, count: int) -> None:
    """Append ``count`` events of 1 each, as one leader would write them."""
    writer = machine()
    writer.replay([record for record in kafka.log if record.value is not None and record.value[:1] == b"{"])
    writes = [] if writer.epoch else list(writer.lead(Any, 1))  # type: ignore[arg-type]
    for _ in range(count):
        offset = writer.position
        writes += writer.step([Incoming(offset, b"", b'{"id": "c%d", "add": 1}' % offset)], 1)
    kafka.append(writes)


class FaultsTo(Observer):
    """Keeps the kinds of faults in a list."""

    def __init__(self, kinds: list[str]) -> None:
        self._kinds = kinds

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        self._kinds.append(kind)


class Following:
    """A standby in a thread of its own; ended and joined at the end of a test."""

    def __init__(self, kafka: FakeKafka, load: Load | None = None, **more: Any) -> None:
        self.told: list[bool] = []
        self.faults: list[str] = []
        self.standby = Standby(
            0,
            io=FakeIO(kafka),
            load=load or from_the_beginning(machine),
            observer=FaultsTo(self.faults),
            changed=lambda standby: self.told.append(standby.hot),
            settings=SETTINGS,
            **more,
        )
        self.thread = threading.Thread(target=self.standby.run, daemon=True)
        self.thread.start()

    def wait_hot(self) -> Following:
        wait_until(lambda: self.standby.hot, "the standby is hot", timeout_s=10)
        return self

    def wait_ended(self) -> Standby:
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.standby


@pytest.fixture
def kafka() -> FakeKafka:
    kafka = FakeKafka()
    kafka.append(machine().lead(_who(), 1))
    return kafka


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


def _who() -> Any:
    from relevo_partitions.statemachine import Term

    return Term("n0", "i0")


def barrier(kafka: FakeKafka, nonce: str) -> None:
    kafka.append([make_barrier(LOG, 0, "n1", "i1", nonce)])


def test_one_whose_reader_is_stuck_ends(kafka: FakeKafka, follow: Callable[..., Following]) -> None:
    """It would count as hot, and a takeover wait for it in vain."""
    following = follow().wait_hot()
    kafka.stuck = True
    events(kafka, 3)
    over = following.wait_ended().over
    assert over is not None
    assert over.ending is Ending.KAFKA_UNAVAILABLE
    assert "the client is stuck" in over.detail


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


def test_a_term_goes_on_with_the_standbys_machine(kafka: FakeKafka) -> None:
    """Building it again would take as long as there are jobs."""
    for index in range(20):
        kafka.send(id=f"c{index}", add=1)
    events(kafka, 20)
    made: list[CounterMachine] = []

    def load(number: int, _pace: Pace = AT_ONCE) -> Beginning:
        made.append(machine(number))
        return Beginning(made[-1], 0)

    standby = Following(kafka, load).wait_hot().standby
    running = Running(kafka, standby=standby, load=load).wait_leading()
    assert running.total() == 20
    assert len(made) == 1
    takeover = running.term.takeover
    assert (takeover.standby, takeover.epoch, takeover.replayed) == (True, 2, 0)
    running.term.end(Ending.STOPPED, "")
    running.over()
    assert kafka.readers_open == 0


def test_commands_that_the_standby_saw_decided_later_are_not_decided_again(kafka: FakeKafka) -> None:
    """They are fetched ahead, from where the standby stood when the takeover began."""
    for index in range(30):
        kafka.send(id=f"c{index}", add=1)
    standby = Following(kafka).wait_hot().standby
    assert standby.position == 0
    kafka.may_commit.clear()
    running = Running(kafka, standby=standby)
    assert kafka.committing.wait(10), "the barrier is being written"
    events(kafka, 20)  # the old leader's last transaction, as it became visible
    kafka.may_commit.set()
    running.wait_leading()
    running.wait_total(30)
    added = [event["id"] for event in kafka.events() if event["kind"] == "added"]
    assert added == [f"c{index}" for index in range(30)]
    assert [event["kind"] for event in kafka.events()].count("refused") == 0


def test_a_term_that_ends_before_its_barrier_gives_the_standby_back(kafka: FakeKafka) -> None:
    for index in range(3):
        kafka.send(id=f"c{index}", add=1)
    following = Following(kafka).wait_hot()
    kafka.fence_fails = True
    running = Running(kafka, standby=following.standby)
    assert running.over().ending is Ending.KAFKA_UNAVAILABLE
    assert running.term.unused_standby is following.standby
    events(kafka, 3)
    wait_until(lambda: following.standby.applied == 4, "it goes on")
    following.standby.stop()
    following.wait_ended()
    assert kafka.readers_open == 0


def test_a_term_that_ends_behind_its_barrier_gives_the_state_back(kafka: FakeKafka) -> None:
    following, seat = Following(kafka).wait_hot(), SlowSeat([Verdict.LOST])
    events(kafka, 3)
    running = Running(kafka, seat, standby=following.standby)
    following.wait_ended()
    seat.may_answer.set()
    assert running.over().ending is Ending.LOST
    standby = running.term.unused_standby
    assert standby is following.standby
    replica = standby.hand_out()
    assert replica is not None
    assert (replica.machine.last_seq, replica.next_offset) == (4, len(kafka.log))
    replica.reader.close()
    assert kafka.readers_open == 0


class Fragile(CounterMachine):
    """Fails at a certain event."""

    def replay(self, records: Any) -> None:
        if any(b"breaks" in (record.value or b"") for record in records):
            raise ZeroDivisionError("a mistake")
        super().replay(records)


def _the_whole_log(kafka: FakeKafka) -> Load:
    def load(number: int, _pace: Pace) -> Beginning:
        """A snapshot that another node took just now."""
        made = machine(number)
        made.replay([record for record in kafka.log if not is_barrier(record.value)])
        return Beginning(made, len(kafka.log))

    return load


@pytest.mark.parametrize("kept", ["log", "snapshot"])
def test_a_standby_that_fails_during_the_takeover_is_replaced(kafka: FakeKafka, kept: str) -> None:
    """By what is kept by then: a snapshot from behind the barrier has nothing more to wait for."""
    standby = Following(kafka, lambda number, _pace: Beginning(Fragile(number, "c"), 0)).wait_hot().standby
    kafka.may_commit.clear()
    load: dict[str, Any] = {"load": _the_whole_log(kafka)} if kept == "snapshot" else {}
    running = Running(kafka, standby=standby, **load)
    assert kafka.committing.wait(10)
    writer = machine()
    writer.replay(kafka.log)
    kafka.append(writer.step([Incoming(0, b"", b'{"id": "breaks", "add": 4}')], 1))
    kafka.send(id="breaks", add=4)
    wait_until(lambda: standby.await_end(0), "the standby failed")
    kafka.may_commit.set()
    running.wait_leading()
    assert running.total() == 4
    assert "standby_lost" in running.heard.faults
    assert not running.term.takeover.standby


def test_a_setback_while_leading_rebuilds_from_what_is_kept(kafka: FakeKafka) -> None:
    standby = Following(kafka).wait_hot().standby
    kafka.faults.append(unclear_and_lost)
    running = Running(kafka, standby=standby, settings=TermSettings(idle_wait_s=0.005)).wait_leading()
    kafka.send(id="a", add=7)
    running.wait_total(7)
    assert running.term.progress.epoch == 3
    assert [event["id"] for event in kafka.events() if event["kind"] == "added"] == ["a"]


def test_each_step_of_the_takeover_has_its_moment_in_order(kafka: FakeKafka) -> None:
    kafka.send(id="a", add=1, to="c.activations.x")
    running = Running(kafka, standby=Following(kafka).wait_hot().standby).wait_leading()
    running.wait_total(1)
    record = running.term.takeover.as_dict()
    moments = [
        record[name]
        for name in (
            "noticed_at", "fenced_at", "verified_at", "caught_up_at", "announced_at", "first_activation_at",
        )
    ]  # fmt: skip
    assert None not in moments
    assert moments == sorted(moments)
    assert record["claimed_at"] is None, "nobody claimed here"
    assert running.term.takeover.seconds is not None
