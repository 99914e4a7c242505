"""Checkpoints in the worker: taken at once, sent a moment later, before the failure they belong to."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import relevo
from relevo.consumer.offsets import OffsetTracker
from relevo.errors import InvalidRequest
from relevo.worker.job import Job
from relevo.worker.outcomes import Completed, Errored, Failed, Outcome
from relevo.worker.progress import INTERVAL_S, Note
from relevo.worker.slot_reports import AGAIN_S, SlotReports
from relevo_schemas.commands import CheckpointJob, FailJob, ReportSlots, StartJobs
from tests.unit.workers.fakes import FakeSender, activation, activation_bytes
from tests.unit.workers.gate_world import World as GateWorld
from tests.unit.workers.test_leases import World as LeaseWorld


def checkpoints(sender: FakeSender) -> list[tuple[str, int, bytes]]:
    return [(each.key, each.attempt, each.detail) for each in sender.sent if isinstance(each, CheckpointJob)]


# --- What a handler sees ---


def test_the_first_attempt_finds_nothing_and_a_later_one_what_was_stored() -> None:
    assert Job(activation("k")).progress is None
    job = Job(activation("k", attempt=2, checkpoint=b'{"page":7}'))
    assert job.progress == {"page": 7}
    job.checkpoint({"page": 8})
    assert job.progress == {"page": 7}, "what earlier attempts stored, not this one"


@pytest.mark.parametrize("detail", [object(), {1, 2}, float, b"bytes"])
def test_what_is_not_json_is_an_error_at_the_call(detail: Any) -> None:
    """Found out later, it would be found out by nobody."""
    job = Job(activation("k"))
    with pytest.raises(InvalidRequest, match=r"checkpoint of job 'k' is not JSON.*\("):
        job.checkpoint(detail)


def test_what_is_too_large_is_an_error_and_leaves_what_was_there() -> None:
    job = Job(activation("k"))
    job.checkpoint({"page": 1})
    with pytest.raises(InvalidRequest, match="has 70002 bytes, 65536 are allowed: store it elsewhere"):
        job.checkpoint("x" * 70_000)
    assert job._note is not None
    assert job._note.close() == b'{"page":1}'


def test_a_lost_attempt_stores_nothing_and_hears_no_complaint() -> None:
    """Its handler finds out by `lost`; a hint that nobody wants is no reason to raise."""
    job = Job(activation("k"))
    job._mark_lost("gone")
    job.checkpoint({"page": 1})
    assert job._note is None


# --- On the way ---


def test_it_is_sent_behind_the_report_that_the_job_runs_however_short_it_has() -> None:
    """An attempt that isn't started has no lease that a checkpoint could begin anew."""
    world = LeaseWorld()
    item = world.run("k", age=0.0)
    item.job.checkpoint({"page": 1})
    world.keeper.tick()
    assert [type(each) for each in world.sender.sent] == [StartJobs, CheckpointJob]
    assert checkpoints(world.sender) == [("k", 1, b'{"page":1}')]


def test_of_many_in_quick_succession_the_latest_is_sent() -> None:
    """A handler that reports each of a million rows must not fill the log."""
    world = LeaseWorld()
    item = world.run("k")
    for row in range(1_000):
        item.job.checkpoint(row)
    world.keeper.tick()
    for row in range(1_000, 2_000):
        item.job.checkpoint(row)
        if row % 100 == 0:
            world.keeper.tick()
    assert checkpoints(world.sender) == [("k", 1, b"999")]
    note = item.job._note
    assert note is not None
    assert not note.due(time.monotonic())
    assert note.due(time.monotonic() + INTERVAL_S)


def test_where_kafka_has_no_room_it_stays() -> None:
    world = LeaseWorld()
    item = world.run("k")
    world.keeper.tick()
    item.job.checkpoint(1)
    world.sender.room = 0
    world.keeper.tick()
    world.sender.room = 10
    world.keeper.tick()
    assert checkpoints(world.sender) == [("k", 1, b"1")]


def test_nothing_is_sent_for_what_is_lost_or_took_too_long() -> None:
    """It is a sign of life: the lease of a handler that runs too long has to run out."""
    world = LeaseWorld(timeout=5.0)
    items = [world.run(key, age=1.0) for key in ("lost", "slow")]
    world.keeper.tick()
    for item in items:
        item.job.checkpoint(1)
    items[0].job._mark_lost("gone")
    items[1].started_at -= 10
    world.keeper.tick()
    assert checkpoints(world.sender) == []


def test_what_is_left_at_a_failure_goes_before_it() -> None:
    """Behind it, it would be refused: the attempt has ended."""
    world = GateWorld()
    world.arrive(activation_bytes("k"))
    (item,) = world.runner.running
    item.job.checkpoint({"page": 3})
    end(world, Failed("boom"))
    assert [type(each) for each in world.sender.sent] == [CheckpointJob, FailJob]
    assert checkpoints(world.sender) == [("k", 1, b'{"page":3}')]


@pytest.mark.parametrize("outcome", [Completed(b""), Errored("NO", "no")])
def test_what_is_left_when_the_job_ends_is_dropped(outcome: Outcome) -> None:
    world = GateWorld()
    world.arrive(activation_bytes("k"))
    world.runner.running[0].job.checkpoint({"page": 3})
    end(world, outcome)
    assert checkpoints(world.sender) == []


def end(world: GateWorld, outcome: Outcome) -> None:
    (item,) = world.runner.running
    item.outcome = outcome
    world.gate.finished([item])
    world.turn()


def test_an_end_waits_for_a_sending_under_way() -> None:
    """Else the failure overtakes it, and the next attempt begins from the start."""
    note = Note()
    note.put(b"1")
    sending, go_on, order = threading.Event(), threading.Event(), list[str]()

    def send(detail: bytes) -> bool:
        sending.set()
        assert go_on.wait(10)
        order.append("sent")
        return True

    def close() -> None:
        note.close()
        order.append("closed")

    threads = [threading.Thread(target=note.send, args=(0.0, send)), threading.Thread(target=close)]
    threads[0].start()
    assert sending.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert order == ["sent", "closed"]
    note.put(b"2")
    note.send(100.0, send)
    assert order == ["sent", "closed"], "nothing is sent once it has ended"


def test_a_later_attempt_that_comes_before_the_handler_began_brings_its_progress() -> None:
    """As after a restart: the first attempt is read again, and superseded while we ask about it."""
    world = GateWorld(concurrency=1)
    world.arrive(activation_bytes("other"), activation_bytes("k"))
    world.arrive(activation_bytes("k", attempt=2, checkpoint=b"7"), slot=1)
    end(world, Completed(b""))
    world.sender.acknowledge()
    world.turn()
    job = world.runner.running[-1].job
    assert (job.key, job.attempt, job.progress) == ("k", 2, 7)


def test_a_handler_that_runs_keeps_the_attempt_it_began_with() -> None:
    world = GateWorld()
    world.arrive(activation_bytes("k"))
    world.arrive(activation_bytes("k", attempt=2, checkpoint=b"7"), slot=1)
    (item,) = world.runner.running
    assert (item.job.attempt, item.job.progress, item.attempt) == (1, None, 2)


# --- Which slots are ours ---


def test_leaders_are_told_which_slots_are_ours_when_that_changes_and_now_and_then() -> None:
    """A leader that is new knows nothing of it."""
    sender, tracker = FakeSender(), OffsetTracker()
    reports = SlotReports("c.commands", "me", "send-email", tracker, sender)  # type: ignore[arg-type]
    for partition in (2, 0):
        tracker.assign("t", partition, 0)
    for now in (1.0, 1.1, AGAIN_S):
        reports.tell(5, b"k", now)
    assert sender.sent == [ReportSlots("me", "send-email", (0, 2))]
    reports.tell(6, b"k", 1.2)
    reports.tell(5, b"k", 1.0 + AGAIN_S)
    tracker.end([("t", 0)])
    reports.tell(5, b"k", 1.1 + AGAIN_S)
    assert [each.slots for each in sender.sent] == [(0, 2), (0, 2), (0, 2), (2,)]  # type: ignore[attr-defined]


def test_what_is_not_taken_is_told_again() -> None:
    sender, tracker = FakeSender(), OffsetTracker()
    reports = SlotReports("c.commands", "me", "send-email", tracker, sender)  # type: ignore[arg-type]
    sender.room = 0
    reports.tell(5, b"k", 1.0)
    sender.room = 1
    reports.tell(5, b"k", 1.0)
    assert len(sender.sent) == 1


def test_it_is_public() -> None:
    assert relevo.Job.checkpoint.__doc__
    assert relevo.Job.progress.__doc__
