"""A leader with a backlog, which decides the next batch while the last one commits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from relevo_partitions.errors import NotLeader
from relevo_partitions.outcomes import Committed, Outcome
from relevo_partitions.settings import TermSettings
from relevo_partitions.statemachine import Heard, Incoming, StateMachine, Write
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.leading import SNAPSHOT_TURN_S
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import (
    FakeKafka,
    Fault,
    Running,
    abort_because_of,
    fenced_from_outside,
    unclear_and_lost,
    unclear_but_committed,
)

SETTINGS = TermSettings(batch_max=2, idle_wait_s=0.005)


class Watched(CounterMachine):
    """Remembers the commands of each step that had any."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "c")
        self.decided: list[list[int]] = []

    def step(self, commands: Sequence[Incoming], now: int, heard: Heard | None = None) -> Sequence[Write]:
        writes = super().step(commands, now, heard)
        if commands:
            self.decided.append([command.offset for command in commands])
        return writes


class Backlog:
    """A leader, and commands that come to it all at once while its commits hang."""

    def __init__(self, count: int, **more: Any) -> None:
        self.kafka = FakeKafka()
        self.machines: list[Watched] = []
        self.running = Running(self.kafka, machine=self._machine, settings=SETTINGS, **more).wait_leading()
        self.kafka.may_commit.clear()
        self.kafka.committing.clear()
        self.kafka.commands.extend(
            Incoming(n, b"", json.dumps({"id": str(n), "add": 1}).encode()) for n in range(count)
        )
        assert self.kafka.committing.wait(10)

    def _machine(self, number: int) -> Watched:
        self.machines.append(Watched(number))
        return self.machines[-1]

    @property
    def machine(self) -> Watched:
        return self.machines[-1]

    @property
    def added(self) -> list[str]:
        return [event["id"] for event in self.kafka.events() if event["kind"] == "added"]

    def wait_ahead(self) -> None:
        wait_until(lambda: len(self.machine.decided) == 2, "the second batch is decided", timeout_s=10)


def test_the_next_batch_is_decided_while_the_last_one_commits_and_no_further_one() -> None:
    backlog = Backlog(6)
    backlog.wait_ahead()
    assert backlog.added == []
    assert backlog.running.term.progress.position == 0, "nothing of it counts before it has committed"
    backlog.kafka.may_commit.set()
    backlog.running.wait_total(6)
    assert backlog.machine.decided == [[0, 1], [2, 3], [4, 5]]
    assert backlog.added == [str(n) for n in range(6)]
    wait_until(lambda: backlog.running.term.progress.position == 6, "the position follows", timeout_s=10)


def test_a_batch_that_is_not_full_is_committed_at_once() -> None:
    """Without a backlog there is nothing to gain, and what comes meanwhile would wait for its turn."""
    backlog = Backlog(1)
    backlog.kafka.commands.append(Incoming(1, b"", b'{"id": "1", "add": 1}'))
    assert backlog.running.term._leading._beside is None
    assert backlog.machine.decided == [[0]]
    backlog.kafka.may_commit.set()
    backlog.running.wait_total(2)
    assert backlog.machine.decided == [[0], [1]]


@pytest.mark.parametrize(
    "fault",
    [abort_because_of(None), unclear_but_committed, unclear_and_lost, fenced_from_outside],
    ids=["aborted", "unclear, committed", "unclear, lost", "fenced"],
)
@pytest.mark.parametrize("good", [0, 1, 2])
def test_a_batch_that_fails_takes_the_one_decided_behind_it_along(fault: Fault, good: int) -> None:
    """Two batches are thrown away with the memory, and each command is decided once all the same."""
    backlog = Backlog(8)
    backlog.wait_ahead()

    def commits(kafka: FakeKafka, writes: Sequence[Write]) -> Outcome:
        kafka.append(writes)
        return Committed(len(writes), 0.0)

    backlog.kafka.faults.extend([commits] * good + [fault])
    backlog.kafka.may_commit.set()
    backlog.running.wait_total(8)
    assert backlog.added == [str(n) for n in range(8)]
    assert len(backlog.machines) > 1, "the memory was made anew"


def test_a_read_never_shows_what_is_not_committed() -> None:
    """The memory is two batches ahead when it is asked; the answer comes with nothing left open."""
    backlog = Backlog(8)
    backlog.wait_ahead()
    seen = backlog.running.term.read(
        lambda machine: (machine.total, len(backlog.added), len(backlog.machine.decided))
    )
    glance = backlog.running.term.read(lambda machine: (machine.total, len(backlog.added)), proven=False)
    assert not seen.done()
    backlog.kafka.may_commit.set()
    assert seen.result(10) == (4, 4, 2)
    assert glance.result(10) == (4, 4)


def test_a_term_that_ends_waits_for_the_commit_under_way() -> None:
    """A producer that is let go in the middle would leave its transaction open until Kafka ends it."""
    backlog = Backlog(6)
    backlog.wait_ahead()
    read = backlog.running.term.read(lambda machine: machine.total)
    backlog.running.term.end(Ending.LOST, "the session ended")
    backlog.running.thread.join(0.1)
    assert backlog.running.thread.is_alive()
    backlog.kafka.may_commit.set()
    assert backlog.running.over().ending is Ending.LOST
    assert backlog.added == ["0", "1"]
    assert isinstance(read.exception(10), NotLeader)
    assert (backlog.kafka.readers_open, backlog.kafka.writers_open) == (0, 0)


def test_a_commit_that_hangs_while_the_next_batch_is_decided_counts_as_a_call_that_hangs() -> None:
    backlog = Backlog(6)
    backlog.wait_ahead()
    assert backlog.running.term._course._call is not None
    assert backlog.running.term._course._call[0] == "commit"
    backlog.kafka.may_commit.set()


class Slices:
    """Takes snapshots, and notes what it is shown."""

    def __init__(self, log: FakeKafka) -> None:
        self.busy = False
        self.seen: list[tuple[int, int]] = []
        self._log = log

    def turn_leading(self, machine: StateMachine, commits: int) -> None:
        added = sum(event["kind"] == "added" for event in self._log.events())
        self.seen.append((machine.total, added))  # type: ignore[attr-defined]

    def stop(self) -> None:
        """Nothing under way."""


@pytest.mark.parametrize("busy", [False, True])
def test_a_snapshot_is_taken_of_nothing_that_is_not_committed(busy: bool) -> None:
    kafka = FakeKafka()
    count = 400
    kafka.commands.extend(
        Incoming(n, b"", json.dumps({"id": str(n), "add": 1}).encode()) for n in range(count)
    )
    slices = Slices(kafka)
    slices.busy = busy
    running = Running(kafka, settings=SETTINGS, snapshots=lambda: slices)
    running.wait_leading().wait_total(count)
    assert slices.seen
    assert all(total == added for total, added in slices.seen)


def test_a_backlog_without_an_end_keeps_no_snapshot_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SNAPSHOT_TURN_S < 1
    monkeypatch.setattr("relevo_partitions.term.leading.SNAPSHOT_TURN_S", 0.0)
    kafka = FakeKafka()
    kafka.commands.extend(Incoming(n, b"", json.dumps({"id": str(n), "add": 1}).encode()) for n in range(400))
    slices = Slices(kafka)
    running = Running(kafka, settings=SETTINGS, snapshots=lambda: slices).wait_leading()
    running.wait_total(400)
    amid = [total for total, _ in slices.seen if 0 < total < 400]
    assert len(amid) > 50
    assert all(total == added for total, added in slices.seen)
