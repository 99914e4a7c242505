"""A node that has led further than the log now reaches says so, and goes on."""

from __future__ import annotations

import pytest

from relevo_partitions.term.endings import Ending
from relevo_partitions.term.last_committed import LastCommitted
from relevo_partitions.term.roles import Role
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import FakeKafka, Running, abort_because_of, unclear_and_lost


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka()


@pytest.fixture
def last(kafka: FakeKafka) -> LastCommitted:
    """Of a term that has decided three commands and is over."""
    last = LastCommitted()
    running = Running(kafka, last=last).wait_leading()
    for name in "abc":
        kafka.send(id=name, add=1)
        running.wait_total(len(kafka.commands))
    running.term.end(Ending.LOST, "")
    running.over()
    assert last.seq == 4, "the announcement, and three additions"
    return last


def test_a_log_that_lost_its_tail_is_told_and_its_commands_are_decided_again(
    kafka: FakeKafka, last: LastCommitted
) -> None:
    while b'"b"' in str(kafka.log).encode():
        kafka.log.pop()
    running = Running(kafka, last=last).wait_leading()
    running.wait_total(3)
    assert running.heard.faults == ["log_tail_lost"]
    running.term.end(Ending.LOST, "")
    running.over()
    assert Running(kafka, last=last).wait_leading().heard.faults == [], "it is told once"


def test_a_loss_in_the_middle_of_a_term_is_told_too(kafka: FakeKafka) -> None:
    running = Running(kafka, last=LastCommitted()).wait_leading()
    kafka.send(id="a", add=1)
    running.wait_total(1)
    while b'"a"' in str(kafka.log).encode():
        kafka.log.pop()
    kafka.faults.append(unclear_and_lost)
    kafka.send(id="b", add=1)
    wait_until(lambda: "log_tail_lost" in running.heard.faults, "it is told")
    running.wait_total(2)


@pytest.mark.parametrize("fault", [unclear_and_lost, abort_because_of(None)], ids=["unclear", "aborted"])
def test_what_never_committed_is_no_loss(kafka: FakeKafka, last: LastCommitted, fault: object) -> None:
    running = Running(kafka, last=last).wait_leading()
    kafka.faults.append(fault)  # type: ignore[arg-type]
    kafka.send(id="d", add=1)
    running.wait_total(4)
    assert running.roles.role is Role.LEADING
    assert "log_tail_lost" not in running.heard.faults


def test_a_log_that_others_have_led_on_is_whole(kafka: FakeKafka, last: LastCommitted) -> None:
    other = Running(kafka).wait_leading()
    kafka.send(id="theirs", add=1)
    other.wait_total(4)
    other.term.end(Ending.LOST, "")
    other.over()
    running = Running(kafka, last=last).wait_leading()
    running.wait_total(4)
    assert running.heard.faults == []
