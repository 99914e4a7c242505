"""A partition is revoked, or the worker told to end, at each step between reading a job and its commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from relevo.consumer.consumer import ActivationConsumer
from relevo.dedup.store import Answer, Claim, Done, Finish, Mine
from relevo.worker.outcomes import Completed
from tests.unit.workers.fakes import activation_bytes
from tests.unit.workers.gate_world import World
from tests.unit.workers.scripted_consumer import TOPIC, Place, Read, ScriptedConsumer

STEPS = ("read", "claimed", "running", "marked", "completed", "sent", "acknowledged", "committing")
NOT_STARTED = STEPS[:2]
FINISHED = STEPS[6:]


class Line:
    """A reader and a gate, with everything around them scripted; one job goes through both."""

    def __init__(self) -> None:
        self.world = World()
        self.reader = ActivationConsumer(
            "nowhere:1",
            {},
            topic=TOPIC,
            group="g",
            tracker=self.world.tracker,
            deliver=self.world.gate.deliver,
            buffer=100,
            drain_s=0.0,
            stats=self.world.stats,
        )
        self.kafka = self.reader._consumer = ScriptedConsumer(self.reader._commits.answered)
        self.acknowledged = 0
        take = self.kafka.commit

        def commit(offsets: list[Any], asynchronous: bool) -> Any:
            assert self.acknowledged, "committed what Kafka has no completion of"
            return take(offsets, asynchronous)

        self.kafka.commit = commit  # type: ignore[method-assign]

    def assign(self) -> None:
        self.reader._on_assign(self.kafka, [Place(0)])  # type: ignore[arg-type,list-item]

    def read(self) -> None:
        self.kafka.polled.append(Read(0, 0, activation_bytes("a")))
        self.reader._turn()

    def acknowledge(self) -> None:
        self.acknowledged += bool(self.world.sender.unacknowledged)
        self.world.acknowledge()

    def go_on(self) -> None:
        """Whatever is under way comes to its end."""
        self.world.sender.room = 1_000_000
        self.world.turn()
        self.world.end(Completed(b"1"))
        self.acknowledge()

    def to(self, step: str, interrupt: Callable[[], None]) -> None:
        """Let the job come as far as ``step``, and interrupt it there."""
        world = self.world
        self.assign()
        if step == "claimed":
            world.store.claim = after(world.store.claim, interrupt)  # type: ignore[method-assign]
        if step == "marked":
            world.store.done = after(world.store.done, interrupt)  # type: ignore[method-assign]
        self.read()
        if step == "read":
            interrupt()
        world.turn()
        if step in NOT_STARTED:
            return
        if step == "running":
            interrupt()
        if step == "completed":
            world.sender.room = 0
        world.end(Completed(b"1"))
        if step in ("completed", "sent"):
            interrupt()
        if step in FINISHED:
            self.acknowledge()
            if step == "committing":
                self.kafka.silent = True
                self.reader._commit_async()
            interrupt()


def after(call: Callable[[Any], list[Answer]], interrupt: Callable[[], None]) -> Any:
    """The same, interrupted when it has been done; once."""
    done: list[bool] = []

    def interrupted(some: Sequence[Claim] | Sequence[Finish]) -> list[Answer]:
        answers = call(some)
        if not done:
            done.append(True)
            interrupt()
        return answers

    return interrupted


@pytest.mark.parametrize("step", STEPS)
def test_revoked_at_each_step_and_given_back_before_the_first_run_has_ended(step: str) -> None:
    """From us to a worker that does nothing, and to us again: one run, and no commit before its time."""
    line = Line()

    def revoke() -> None:
        line.reader._on_revoke(line.kafka, [Place(0)])  # type: ignore[arg-type,list-item]

    line.to(step, revoke)
    assert line.kafka.committed_offsets == ([] if step not in FINISHED else line.kafka.asked)
    assert bool(line.kafka.committed_offsets) == (step in FINISHED)
    line.kafka.silent = False
    line.assign()
    if line.kafka.stored == 0:
        line.read()
    line.go_on()
    line.go_on()
    line.reader._next_commit = 0.0
    line.reader._turn()
    assert line.world.runner.started == ["a"]
    assert line.kafka.committed_offsets[-1] == (0, 1)
    assert line.world.gate._by_key == {}
    assert line.world.tracker.unfinished == 0


@pytest.mark.parametrize("step", STEPS)
def test_told_to_end_at_each_step(step: str) -> None:
    """What has begun is brought to its end and committed; what hasn't is left, with nobody's claim on it."""
    line = Line()
    ended: list[threading.Thread] = []

    def end() -> None:
        line.reader.stop(60.0)
        leaving = threading.Thread(target=line.reader._leave)
        ended.append(leaving)
        (owned,) = [each for each in line.world.tracker.owned() if each.topic == TOPIC]
        leaving.start()
        deadline = time.monotonic() + 30
        while not owned.closing:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    line.to(step, end)
    line.kafka.silent = False
    line.go_on()
    ended[0].join(30)
    assert not ended[0].is_alive()
    (another,) = line.world.store.claim([Claim("c:dedup:a", "another", 10.0)])
    if step in NOT_STARTED:
        assert (line.world.runner.started, line.kafka.committed_offsets) == ([], [])
        assert another == Mine()
    else:
        assert (line.world.runner.started, line.kafka.committed_offsets[-1]) == (["a"], (0, 1))
        assert isinstance(another, Done)
    assert line.world.tracker.owned() == []
