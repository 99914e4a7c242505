"""A setback costs a leader its machine: another one is made, or another node has one."""

from __future__ import annotations

import gc
import weakref

import pytest

from relevo_partitions.settings import TermSettings
from relevo_partitions.term.endings import Ending
from tests.support.counter_machine import CounterMachine
from tests.unit.partitions.fakes import FakeKafka, Running, unclear_but_committed


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka()


@pytest.mark.parametrize(
    ("open_items", "hot", "goes_on"), [(4, True, False), (3, True, True), (4, False, True)]
)
def test_a_large_machine_is_not_rebuilt_where_another_node_has_one(
    kafka: FakeKafka, open_items: int, hot: bool, goes_on: bool
) -> None:
    """A broken connection costs the producer and the machine; to read a million jobs takes ten seconds."""
    running = Running(kafka, settings=TermSettings(rebuild_max=3, idle_wait_s=0.005)).wait_leading()
    running.term.heir_is_hot = hot
    for number in range(open_items - 1):
        kafka.send(id=f"c{number}", add=1)
    running.wait_total(open_items - 1)
    kafka.faults.append(unclear_but_committed)
    kafka.send(id="last", add=1)
    if goes_on:
        running.wait_total(open_items)
        return
    over = running.over()
    assert over.ending is Ending.HANDED_OVER
    assert "4 items would have to be read anew" in over.detail


def test_a_machine_is_gone_before_another_one_is_made(kafka: FakeKafka) -> None:
    """Two of a million jobs each need twice the memory."""
    made: list[weakref.ref[CounterMachine]] = []
    left: list[int] = []

    def make(number: int) -> CounterMachine:
        gc.collect()
        left.append(sum(each() is not None for each in made))
        machine = CounterMachine(number, "c")
        made.append(weakref.ref(machine))
        return machine

    running = Running(kafka, machine=make).wait_leading()
    kafka.send(id="a", add=1)
    running.wait_total(1)
    kafka.faults.append(unclear_but_committed)
    kafka.send(id="b", add=1)
    running.wait_total(2)
    assert left == [0, 0]
