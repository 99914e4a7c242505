"""When snapshots are taken, in which order what is older goes, and what a crash or a failure leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from relevo_partitions.observer import Observer
from relevo_partitions.runtime import Task, ThreadRuntime
from relevo_partitions.snapshots.loading import load
from relevo_partitions.snapshots.ports import SnapshotStore
from relevo_partitions.snapshots.snapshotter import SnapshotSettings, Snapshotter
from relevo_partitions.statemachine import Incoming, StateMachine, Term
from tests.support.counter_machine import CounterMachine
from tests.support.snapshot_store import MemoryLog, MemorySnapshots
from tests.support.waiting import wait_until

EVENTS = 10


class Heard(Observer):
    def __init__(self) -> None:
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.faults: list[tuple[str, str]] = []

    def note(self, event: str, **fields: Any) -> None:
        self.notes.append((event, fields))

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        self.faults.append((kind, detail))

    def names(self) -> list[str]:
        return [event for event, _ in self.notes]


class Later:
    """Begins when told, so that a test decides when the thread runs."""

    def __init__(self, target: Callable[[], None]) -> None:
        self._target: Callable[[], None] | None = target

    def run(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target()

    def join(self, timeout: float | None = None) -> None:
        self.run()

    def is_alive(self) -> bool:
        return self._target is not None


class SteppedRuntime(ThreadRuntime):
    """A clock that a test moves, and threads that run when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tasks: list[Later] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def spawn(self, name: str, target: Callable[[], None]) -> Task:
        self.tasks.append(Later(target))
        return self.tasks[-1]

    def run_threads(self) -> None:
        for task in self.tasks:
            task.run()


def make(partition: int) -> StateMachine:
    return CounterMachine(partition, "c")


class Bench:
    """A replica of a counter, its log, and its snapshots."""

    def __init__(self, checkpoint: Callable[[str], None] = lambda name: None) -> None:
        self.log = MemoryLog()
        self.store = MemorySnapshots(self.log)
        self.live = CounterMachine(0, "c")
        self.heard = Heard()
        self.runtime = SteppedRuntime()
        self.checkpoint = checkpoint
        self.snapshotter = self.anew(None)
        self.log.append([write.value for write in self.live.lead(Term("n1", "i1"), 1)])

    def anew(self, store: SnapshotStore | None) -> Snapshotter:
        settings = SnapshotSettings(events=EVENTS, interval_s=60.0, log_keep_s=0.0)
        return Snapshotter(
            0,
            store or self.store,
            make,
            self.heard,
            settings,
            self.runtime,
            lambda name: self.checkpoint(name),
        )

    def grow(self, count: int = EVENTS) -> None:
        for _ in range(count):
            command = Incoming(self.live.position, b"", b'{"id": "c%d", "add": 1}' % self.live.seq)
            self.log.append([write.value for write in self.live.step([command], 1)])

    def turns(self, count: int = 200) -> None:
        """As a standby that has read everything."""
        for _ in range(count):
            self.snapshotter.turn(self.live, len(self.log.records))
            self.runtime.run_threads()

    def one_more(self) -> None:
        """Grow, and take a snapshot of it."""
        self.grow()
        self.runtime.now += 61
        self.turns()

    def check_recovery(self) -> None:
        """A node that starts cold now has the same state."""
        loaded = load(0, make, self.store, Observer())
        loaded.machine.replay(self.log.records[loaded.log_offset :])
        assert loaded.machine.state_hash() == self.live.state_hash()
        assert loaded.machine.position == self.live.position


def test_a_snapshot_is_taken_after_so_many_events_and_so_much_time() -> None:
    bench = Bench()
    bench.grow(EVENTS - 2)
    bench.turns()
    assert bench.store.manifests == []
    bench.grow(1)
    bench.turns()
    assert [each.seq for each in bench.store.manifests] == [EVENTS]
    bench.grow(3 * EVENTS)
    bench.turns()
    assert len(bench.store.manifests) == 1, "the second comes too soon after the first"
    bench.runtime.now += 60
    bench.turns()
    assert [each.seq for each in bench.store.manifests] == [EVENTS, 4 * EVENTS]
    assert bench.heard.faults == []


def test_a_large_state_waits_for_more_events() -> None:
    """Each snapshot of a million jobs costs as much as replaying more than a million events."""
    bench = Bench()
    bench.one_more()
    large = replace(bench.store.manifests[0], count=4 * 3 * EVENTS)
    bench.snapshotter = bench.anew(None)
    bench.snapshotter.loaded(large)
    bench.grow(3 * EVENTS - 1)
    bench.runtime.now += 1_000
    bench.turns()
    assert len(bench.store.manifests) == 1
    bench.grow(1)
    bench.turns()
    assert len(bench.store.manifests) == 2


def test_one_that_took_long_is_followed_by_a_longer_rest() -> None:
    bench = Bench()
    bench.grow()
    bench.checkpoint = lambda name: bench.runtime.sleep(100.0 if name == "written" else 0.0)
    bench.turns()
    bench.checkpoint = lambda name: None
    took = bench.runtime.now
    assert took >= 100
    bench.grow()
    for after, taken in ((3.9 * took, 1), (4.1 * took, 2)):
        bench.runtime.now = took + after
        bench.turns()
        assert len(bench.store.manifests) == taken, f"{after} s later"


def test_a_lone_leader_that_waited_for_work_need_not_rest_for_it() -> None:
    """One that had nothing to do for a night would take no snapshot for four days."""
    bench = Bench()

    def turns(commits: int) -> None:
        for _ in range(20):
            bench.snapshotter.turn_leading(bench.live, commits)
            bench.runtime.run_threads()

    bench.grow()
    turns(1)
    bench.runtime.now += 40_000
    turns(2)
    assert len(bench.store.manifests) == 1
    bench.grow()
    bench.runtime.now += 60
    turns(3)
    turns(4)
    assert len(bench.store.manifests) == 2


def test_two_verified_ones_are_kept_and_the_log_is_trimmed_below_the_older() -> None:
    bench = Bench()
    for taken in range(1, 5):
        bench.one_more()
        assert len(bench.store.manifests) == min(taken, 2)
        if taken < 2:
            assert (bench.log.begin, bench.log.commands_begin) == (0, 0)
        else:
            older = bench.store.manifests[0]
            assert (bench.log.begin, bench.log.commands_begin) == (older.log_offset, older.position)
        bench.check_recovery()
    assert bench.heard.names()[-4:] == [
        "snapshot_begun", "snapshot_written", "snapshot_verified", "snapshot_retired",
    ]  # fmt: skip


def test_a_loaded_snapshot_counts_as_verified() -> None:
    bench = Bench()
    bench.one_more()
    loaded = load(0, make, bench.store, Observer())
    bench.snapshotter = bench.anew(None)
    bench.snapshotter.loaded(loaded.manifest)
    bench.turns()
    assert len(bench.store.manifests) == 1, "none is due right after a start"
    bench.one_more()
    assert bench.log.begin == bench.store.manifests[0].log_offset > 0


STEPS = ("frozen", "piece", "written", "verified", "retired", "trimmed")


class Crashed(BaseException):
    """The process is gone: nothing of it runs any more."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("earlier", [0, 1, 2, 3])
def test_a_crash_at_any_step_leaves_what_a_start_needs(step: str, earlier: int) -> None:
    """A snapshot that is announced before it is there, or a log trimmed too far: the partition is lost."""
    bench = Bench()
    for _ in range(earlier):
        bench.one_more()

    def crash(name: str) -> None:
        if name == step:
            raise Crashed

    bench.checkpoint = crash
    bench.grow()
    bench.runtime.now += 61
    try:
        bench.turns()
    except Crashed:
        pass
    else:
        assert step in ("retired", "trimmed"), f"{step} never came"
        assert earlier == 0
    bench.check_recovery()
    bench.checkpoint = lambda name: None
    bench.snapshotter = bench.anew(None)
    bench.snapshotter.loaded(load(0, make, bench.store, Observer()).manifest)
    for _ in range(3):
        bench.one_more()
        bench.check_recovery()
    assert len(bench.store.manifests) == 2


@pytest.mark.parametrize("call", ["log_bounds", "add", "finish", "read", "retire", "trim"])
def test_a_failure_is_told_and_the_next_attempt_succeeds(call: str) -> None:
    bench = Bench()
    bench.one_more()
    bench.store.failing = {call}
    bench.one_more()
    assert bench.heard.faults[-1][0] == "snapshot_failed"
    assert "Kafka isn't reachable" in bench.heard.faults[-1][1]
    assert not bench.snapshotter.busy
    bench.store.failing = set()
    bench.check_recovery()
    for _ in range(2):  # one that couldn't be read back stays until two that could are newer
        bench.one_more()
        bench.check_recovery()
    assert len(bench.store.manifests) == 2
    assert bench.log.begin == bench.store.manifests[0].log_offset


def test_what_does_not_verify_removes_nothing() -> None:
    """A damaged snapshot that passes for a good one takes the older one and the log with it."""
    bench = Bench()
    bench.one_more()
    bench.one_more()
    begin, before = bench.log.begin, list(bench.store.manifests)

    def damage() -> None:
        last = bench.store.content[bench.store.manifests[-1].name]
        last[-1] = b"[]\n"

    bench.store.on_read = damage
    bench.one_more()
    assert bench.heard.faults[-1][0] == "snapshot_failed"
    assert bench.store.manifests[:2] == before
    assert bench.log.begin == begin
    bench.store.on_read = lambda: None
    bench.check_recovery()


def test_a_log_that_was_made_anew_meanwhile_is_not_trimmed() -> None:
    bench = Bench()
    bench.one_more()
    bench.grow()
    bench.runtime.now += 61
    bench.snapshotter.turn(bench.live, len(bench.log.records))
    bench.runtime.run_threads()
    bench.log.topic_id = "log-2"
    bench.turns()
    assert "found one of log-1" in bench.heard.faults[-1][1]
    assert bench.log.begin == 0


def test_it_pauses_while_kafka_is_slow() -> None:
    bench = Bench()
    bench.grow()
    bench.store.room = False
    bench.turns()
    assert bench.snapshotter.busy
    assert bench.store.manifests == []
    seq = bench.live.seq
    bench.grow(3)
    bench.store.room = True
    bench.turns()
    assert [each.seq for each in bench.store.manifests] == [seq]
    bench.check_recovery()


def test_a_leader_waits_for_a_commit_after_it_asked_for_the_logs_end() -> None:
    """Without one, somebody who fenced it may have written before that end what its state lacks."""
    bench = Bench()
    bench.grow()
    for _ in range(20):
        bench.snapshotter.turn_leading(bench.live, 5)
        bench.runtime.run_threads()
    assert "snapshot_begun" not in bench.heard.names()
    end = len(bench.log.records)
    bench.grow(3)
    for _ in range(20):
        bench.snapshotter.turn_leading(bench.live, 6)
        bench.runtime.run_threads()
    (manifest,) = bench.store.manifests
    assert (manifest.log_offset, manifest.seq) == (end, bench.live.seq), "what follows overlaps"
    bench.check_recovery()


def test_stopping_gives_up_what_is_under_way() -> None:
    bench = Bench()
    bench.grow()
    bench.store.room = False
    bench.turns()
    assert bench.snapshotter.busy
    bench.snapshotter.stop()
    bench.store.room = True
    bench.turns()
    assert bench.store.manifests == []
    assert not bench.snapshotter.busy


def test_stopping_ends_a_verification_without_a_verdict() -> None:
    bench = Bench()
    bench.one_more()
    bench.one_more()
    begin = bench.log.begin
    bench.store.on_read = bench.snapshotter.stop
    bench.one_more()
    assert bench.heard.faults == []
    assert bench.log.begin == begin
    bench.check_recovery()


def test_real_threads_do_the_same() -> None:
    bench = Bench()
    bench.runtime = ThreadRuntime()  # type: ignore[assignment]
    bench.snapshotter = bench.anew(None)
    bench.grow()

    def verified() -> bool:
        bench.snapshotter.turn(bench.live, len(bench.log.records))
        return bool(bench.snapshotter.verified)

    wait_until(verified, "a snapshot is taken and verified", timeout_s=20)
    bench.snapshotter.stop(10)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("relevo-snapshot")]
    bench.check_recovery()
