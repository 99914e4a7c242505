"""A term takes over what a standby has built, and does without where that fails."""

from __future__ import annotations

from typing import Any

import pytest

from relevo_partitions.pace import AT_ONCE, Pace
from relevo_partitions.ports import Verdict
from relevo_partitions.settings import TermSettings
from relevo_partitions.statemachine import Incoming
from relevo_partitions.term.barrier import is_barrier
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.standby import Beginning, Load
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import FakeKafka, Running, SlowSeat, unclear_and_lost
from tests.unit.partitions.standby_thread import Following, events, led_once, machine


@pytest.fixture
def kafka() -> FakeKafka:
    return led_once()


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
