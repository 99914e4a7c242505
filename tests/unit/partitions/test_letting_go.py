"""What a node is done with is gone at once, without Python's collector: that never looks at large states.

See `relevo_partitions.snapshots.loading.collector_paused`.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest

from relevo_partitions.settings import TermSettings
from relevo_partitions.statemachine import Term
from relevo_partitions.term import leadership
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.roles import Role
from relevo_partitions.term.standby import from_the_beginning
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import FakeKafka, Running, unclear_and_lost
from tests.unit.partitions.standby_thread import Following, barrier, events, machine
from tests.unit.partitions.test_running_ahead import Backlog


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Made:
    """Makes machines, and knows which of them are still there."""

    def __init__(self, kind: type[CounterMachine] = CounterMachine) -> None:
        self._kind = kind
        self._refs: list[weakref.ref[CounterMachine]] = []

    def __call__(self, number: int) -> CounterMachine:
        made = self._kind(number, "c")
        self._refs.append(weakref.ref(made))
        return made

    def kept(self) -> int:
        """How many of them there are."""
        return sum(ref() is not None for ref in self._refs)


class Failing(CounterMachine):
    """Raises at the first command."""

    def step(self, commands: Any, now: int, heard: Any = None) -> Any:
        if commands:
            raise ZeroDivisionError("a mistake")
        return super().step(commands, now, heard)


def started(count: int) -> FakeKafka:
    """A log with so many events, and their commands."""
    kafka = FakeKafka()
    for number in range(count):
        kafka.send(id=f"c{number}", add=1)
    kafka.append(machine().lead(Term("n0", "i0"), 1))
    events(kafka, count)
    return kafka


def followed(kafka: FakeKafka, make: Made) -> Following:
    return Following(kafka, from_the_beginning(make)).wait_hot()


@pytest.mark.parametrize("stood_by", [False, True])
def test_a_term_that_was_ended_keeps_no_state(stood_by: bool) -> None:
    kafka, made = started(3), Made()
    more: dict[str, Any] = {"standby": followed(kafka, made).standby} if stood_by else {}
    running = Running(kafka, machine=made, **more).wait_leading()
    running.wait_total(3)
    assert made.kept() == 1
    running.term.end(Ending.HANDED_OVER, "to another node")
    assert running.over().ending is Ending.HANDED_OVER
    running.thread.join(10)
    assert made.kept() == 0


def test_a_term_whose_machine_failed_keeps_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "log", MagicMock())  # pytest keeps the exceptions that are logged
    kafka, made = FakeKafka(), Made(Failing)
    running = Running(kafka, machine=made).wait_leading()
    kafka.send(id="a", add=1)
    assert running.over().ending is Ending.MACHINE_FAILED
    running.thread.join(10)
    assert made.kept() == 0


def test_a_standby_that_was_stopped_keeps_no_state() -> None:
    kafka, made = started(3), Made()
    following = followed(kafka, made)
    following.standby.stop()
    following.wait_ended()
    assert made.kept() == 0


def test_a_setback_under_a_backlog_keeps_no_state() -> None:
    backlog = Backlog(10)
    backlog.wait_ahead()
    first = weakref.ref(backlog.machine)
    backlog.kafka.faults.append(unclear_and_lost)
    backlog.kafka.may_commit.set()
    backlog.running.wait_total(10)
    del backlog.machines[0]
    assert len(backlog.machines) == 1
    wait_until(lambda: first() is None, "the machine of before is gone", timeout_s=5)


def test_a_standby_at_the_barrier_of_a_failed_attempt_is_read_on() -> None:
    """It came to it while the next attempt wrote its own: what lies between is not to be left out."""
    kafka = started(2)
    for number in range(2, 5):
        kafka.send(id=f"c{number}", add=1)
    following = Following(kafka).wait_hot()
    following.standby.meet("of the first attempt")
    barrier(kafka, "of the first attempt")
    events(kafka, 3)
    meets: list[str | None] = []
    following.standby.meet = meets.append  # type: ignore[method-assign, assignment]
    ended = following.standby.await_end
    # As if it hadn't ended yet when the second attempt asked.
    following.standby.await_end = (  # type: ignore[method-assign]
        lambda timeout_s: timeout_s > 0 and ended(timeout_s)
    )
    running = Running(kafka, standby=following.standby, settings=TermSettings(idle_wait_s=0.005))
    running.wait_leading()
    assert meets, "it was asked to meet another barrier"
    assert running.total() == 5
    running.term.end(Ending.STOPPED, "")
    assert running.over().ending is Ending.STOPPED
    assert running.roles.role is Role.ENDING
    assert kafka.readers_open == 0
