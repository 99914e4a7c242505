"""At most once: committed when it is about to run and not before, and what is committed is run here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from relevo.consumer import backpressure, commits, consumer
from relevo.consumer.consumer import ActivationConsumer
from relevo.worker.outcomes import Completed
from relevo.worker.solitude import Desk, Solitude
from tests.unit.workers.fakes import activation_bytes, item
from tests.unit.workers.gate_world import World
from tests.unit.workers.scripted_consumer import TOPIC, KafkaError, Place, Read, ScriptedConsumer, Trouble

DONE = Completed(b"")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "POLL_S", 0.001)
    monkeypatch.setattr(backpressure, "FULL_WAIT_S", 0.001)
    monkeypatch.setattr(backpressure, "PAUSED_WAIT_S", 0.001)
    monkeypatch.setattr(commits, "AGAIN_S", 0.0)


class Line:
    """A reader and a gate of a type that runs at most once, with everything around them scripted."""

    def __init__(
        self, *jobs: str, concurrency: int = 1, buffer: int = 100, solitude: Solitude | None = None
    ) -> None:
        self.world = World(
            concurrency,
            at_most_once=True,
            solitude=solitude,
            commit_first=lambda *wish: self.reader.commit_first(*wish),
        )
        self.reader = ActivationConsumer(
            "nowhere:1",
            {},
            topic=TOPIC,
            group="g",
            tracker=self.world.tracker,
            deliver=self.world.gate.deliver,
            buffer=buffer,
            concurrency=concurrency,
            drain_s=0.0,
            stats=self.world.stats,
            commit_first=True,
        )
        self.kafka = self.reader._consumer = ScriptedConsumer(self.reader._commits.answered)
        self.assign(0, 0)
        self.kafka.polled = [Read(0, offset, activation_bytes(key)) for offset, key in enumerate(jobs)]
        self.turn()

    def assign(self, stored: int, *partitions: int) -> None:
        self.kafka.stored = stored
        self.reader._on_assign(self.kafka, [Place(each) for each in partitions])  # type: ignore[arg-type,misc]

    def revoke(self) -> None:
        self.reader._on_revoke(self.kafka, [Place(0)])  # type: ignore[arg-type,list-item]

    def read(self) -> None:
        """The reader reads what there is, and the gate hears of it."""
        for _ in range(len(self.kafka.polled) + 1):
            self.reader._turn()
        self.world.turn()

    def turn(self, times: int = 3) -> None:
        """Both come round."""
        for _ in range(times):
            self.read()

    def end(self) -> None:
        """What runs comes to its end, and Kafka hears of it."""
        self.world.end(DONE)
        self.world.acknowledge()
        self.turn()

    @property
    def started(self) -> list[str]:
        return self.world.runner.started

    @property
    def committed(self) -> int:
        return max((offset for _, offset in self.kafka.committed_offsets), default=0)


def test_only_what_is_about_to_run_is_committed_and_only_a_buffer_is_read() -> None:
    """Whatever is committed is lost with this process, and was as much as it could read."""
    line = Line(*(f"job-{n}" for n in range(40)), concurrency=2, buffer=5)
    assert (line.started, line.committed) == (["job-0", "job-1"], 2)
    assert line.world.tracker.unfinished == 5
    for _ in range(20):
        line.end()
        assert line.committed == len(line.started)
    assert line.started == [f"job-{n}" for n in range(40)]
    assert line.world.stats.done == 40


def test_a_rebalance_loses_no_job() -> None:
    """Every deployment is one: what was read and has not begun is the next owner's."""
    line = Line("a", "b", "c")
    assert (line.started, line.committed) == (["a"], 1)
    line.revoke()
    line.end()
    assert (line.started, line.kafka.stored) == (["a"], 1)
    assert (line.world.stats.done, line.world.stats.stale_dropped) == (1, 2)
    assert (line.world.gate._by_key, line.world.gate._free()) == ({}, 1)


def test_revoked_between_its_commit_and_its_start_it_is_run_all_the_same() -> None:
    """Nobody else is given it: to drop it would lose it, in front of a worker that is well."""
    line = Line()
    line.kafka.polled = [Read(0, 0, activation_bytes("a"))]
    line.read()
    line.reader._grant()
    assert (line.started, line.committed) == ([], 1)
    line.revoke()
    line.turn()
    assert line.started == ["a"]
    line.end()
    assert (line.world.stats.done, line.world.gate._by_key) == (1, {})


def test_lost_while_it_waits_for_its_commit_it_is_the_next_owners() -> None:
    line = Line()
    line.kafka.refusals = [KafkaError.UNKNOWN_MEMBER_ID]
    line.kafka.polled = [Read(0, 0, activation_bytes("a"))]
    line.read()
    line.reader._grant()
    line.reader._on_lost(line.kafka, [Place(0)])  # type: ignore[arg-type,list-item]
    line.turn()
    assert (line.started, line.committed) == ([], 0)
    assert (line.world.gate._by_key, line.world.gate._free()) == ({}, 1)


@pytest.mark.parametrize("told", ["before the commit", "after the commit"])
def test_told_to_end_it_runs_what_is_committed_and_leaves_the_rest(told: str) -> None:
    line = Line()
    line.kafka.polled = [Read(0, 0, activation_bytes("a")), Read(0, 1, activation_bytes("b"))]
    line.read()
    if told == "after the commit":
        line.reader._grant()
    line.reader.stop(60.0)

    def begun_or_left() -> bool:
        line.world.turn()
        return bool(line.started) or not leaving.is_alive()

    leaving = threading.Thread(target=line.reader._leave)
    leaving.start()
    until(begun_or_left)
    line.world.end(DONE)
    line.world.acknowledge()
    leaving.join(30)
    assert not leaving.is_alive()
    assert line.started == ([] if told == "before the commit" else ["a"])
    assert line.committed == len(line.started)
    line.world.gate.stop()
    assert not line.world.gate._turn(), "nothing keeps it from ending"


def test_a_gate_that_ends_runs_what_nobody_else_is_given() -> None:
    """Its commit went over both, as a message of another partition had come before one of them."""
    line = Line("a", "b", concurrency=1)
    (owned,) = [each for each in line.world.tracker.owned() if each.topic == TOPIC]
    line.world.tracker.committed(owned, 2)
    line.world.tracker.close([(TOPIC, 0)])
    line.world.gate.stop()
    line.world.turn()
    assert line.started == ["a"]
    line.world.end(DONE)
    assert line.started == ["a", "b"]


REFUSALS = {
    "unknown member": KafkaError.UNKNOWN_MEMBER_ID,
    "old generation": KafkaError.ILLEGAL_GENERATION,
    "rebalance": KafkaError.REBALANCE_IN_PROGRESS,
    "coordinator moves": KafkaError.NOT_COORDINATOR,
    "no answer": KafkaError._TIMED_OUT,
}


@pytest.mark.parametrize("code", REFUSALS.values(), ids=REFUSALS)
def test_it_does_not_run_before_its_commit_is_taken(code: int) -> None:
    line = Line()
    line.kafka.refusals = [code]
    line.kafka.polled = [Read(0, 0, activation_bytes("a"))]
    line.read()
    line.reader._grant()
    line.world.turn()
    assert (line.started, line.committed) == ([], 0)
    line.turn()
    assert (line.started, line.kafka.asked) == (["a"], [(0, 1), (0, 1)])


def test_of_a_commit_that_is_taken_in_part_that_part_runs() -> None:
    """The rest is asked for again: to take the whole for refused would run nothing of what is committed."""
    line = Line(concurrency=4)
    line.assign(0, 1)
    line.kafka.withheld = {0}
    line.kafka.polled = [
        Read(partition, offset, activation_bytes(f"{partition}-{offset}"))
        for offset in (0, 1)
        for partition in (0, 1)
    ]
    line.turn()
    assert sorted(line.started) == ["1-0", "1-1"]
    line.kafka.withheld = set()
    line.turn()
    assert line.started[2:] == ["0-0", "0-1"]
    assert sorted(set(line.kafka.committed_offsets)) == [(0, 2), (1, 2)]


def test_while_a_suspect_of_another_type_has_the_process_nothing_is_committed() -> None:
    """It may have it for hours, or end it."""
    solitude = Solitude()
    other = Desk(solitude, lambda: None)
    suspect = item("suspect")
    assert other.enter_alone(suspect)
    line = Line("a", solitude=solitude)
    assert (line.started, line.committed) == ([], 0)
    other.leave([suspect])
    line.turn()
    assert (line.started, line.committed) == (["a"], 1)


def test_what_was_read_before_its_topic_was_made_anew_is_run() -> None:
    """No commit speaks of it any more, and it is nowhere else to be had."""
    line = Line("a", "b")
    line.kafka.assigned = {0}
    line.kafka.polled = [Trouble(KafkaError.OFFSET_OUT_OF_RANGE)]
    line.turn()
    line.end()
    line.end()
    assert line.started == ["a", "b"]


@pytest.mark.parametrize("buffer", [1, 100], ids=["full", "with room"])
def test_a_commit_waits_for_no_read(monkeypatch: pytest.MonkeyPatch, buffer: int) -> None:
    """A tenth of a second between two jobs of a millisecond: a slot would be idle nearly all the time."""
    line = Line(concurrency=2, buffer=buffer)
    monkeypatch.setattr(consumer, "POLL_S", 60.0)
    monkeypatch.setattr(backpressure, "FULL_WAIT_S", 60.0)
    line.kafka.poll = lambda timeout: None  # type: ignore[method-assign]
    (entry,) = [each for each in line.world.tracker.begin([(TOPIC, 0, 0)]) if each is not None]
    granted: list[Any] = []
    reading = threading.Thread(target=line.reader._turn)
    reading.start()
    line.reader.commit_first([entry], granted.append)
    until(lambda: granted)
    assert granted == [[entry]]
    assert entry.committed
    line.world.tracker.finish([entry])
    reading.join(30)
    assert not reading.is_alive()


def until(fact: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.001)
