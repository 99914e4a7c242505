"""A second failure during the first: refused commits, a member that is put out, a drain that is cut short."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from relevo.consumer import backpressure, commits
from relevo.errors import ConfigurationError, RelevoError
from tests.unit.workers.scripted_consumer import TOPIC, KafkaError, Read, Reading, Trouble

REFUSALS = {
    "unknown member": KafkaError.UNKNOWN_MEMBER_ID,
    "old generation": KafkaError.ILLEGAL_GENERATION,
    "rebalance": KafkaError.REBALANCE_IN_PROGRESS,
    "stale epoch": KafkaError.STALE_MEMBER_EPOCH,
    "fenced epoch": KafkaError.FENCED_MEMBER_EPOCH,
    "coordinator moves": KafkaError.NOT_COORDINATOR,
    "coordinator loads": KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    "no answer": KafkaError._TIMED_OUT,
}
refusals = pytest.mark.parametrize("code", REFUSALS.values(), ids=REFUSALS)


@refusals
def test_a_refused_commit_is_made_again_and_reading_goes_on(code: int) -> None:
    """It may be all there is to a coordinator that moves, or the first sign of a lost partition."""
    reading = Reading()
    reading.assign(0)
    reading.kafka.refusals = [code]
    reading.turn(Read(0, 0))
    reading.turn()
    reading.turn(Read(0, 1))
    reading.turn()
    assert reading.kafka.asked == [(0, 1), (0, 1), (0, 2)]
    assert reading.kafka.committed_offsets == [(0, 1), (0, 2)]
    assert reading.stats.commit_errors == 1
    assert reading.seen == [0, 1]


@refusals
def test_refused_at_the_hand_over_the_partition_goes_all_the_same(code: int) -> None:
    """Its next owner begins at the last commit that was taken, and asks the store about what comes again."""
    reading = Reading()
    reading.assign(0)
    reading.turn(Read(0, 0))
    reading.turn()
    reading.turn(Read(0, 1))
    reading.kafka.refusals = [code]
    reading.kafka.silent = True
    reading.worker._commits._asked_at = None
    reading.revoke()
    assert reading.tracker.owned() == []
    reading.assign(1)
    reading.kafka.silent = False
    reading.turn(Read(0, 1))
    assert reading.seen == [0, 1, 1]
    assert reading.kafka.committed_offsets[-1] == (0, 2)


def test_commits_do_not_pile_up_while_the_coordinator_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that librdkafka keeps says less than the next one."""
    reading = Reading()
    reading.assign(0)
    reading.kafka.silent = True
    for offset in range(20):
        reading.turn(Read(0, offset))
    assert reading.kafka.asked == [(0, 1)]
    reading.kafka.silent = False
    reading.turn()
    reading.turn()
    assert reading.kafka.asked == [(0, 1), (0, 20)]
    # An answer that never comes doesn't end all committing.
    monkeypatch.setattr(commits, "ANSWER_WAIT_S", 0.0)
    reading.kafka.silent = True
    reading.turn(Read(0, 20))
    reading.turn(Read(0, 21))
    assert reading.kafka.asked[-1] == (0, 22)


def test_the_answer_to_a_former_ownership_is_not_the_next_ones() -> None:
    """The topic was made anew, its offsets begin at 0: 300 must not count as committed there."""
    reading = Reading()
    reading.assign(299)
    reading.kafka.silent = True
    reading.turn(Read(0, 299))
    reading.turn(Trouble(KafkaError.OFFSET_OUT_OF_RANGE))
    reading.kafka.silent = False
    reading.turn(Read(0, 0))
    reading.turn()
    assert reading.kafka.asked == [(0, 300), (0, 1)]


def test_a_member_that_is_put_out_starts_nothing_more_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """Another process has its name and its partitions: all that it still did, both would do."""
    reading = Reading(hold=True, kafka={"group_instance_id": "w1"})
    reading.assign(0)
    reading.turn(Read(0, 0), Read(0, 1))
    reading.turn()
    running, waiting = reading.held
    assert reading.tracker.start([running]) == [True]
    reading.turn(Trouble(KafkaError._FATAL))
    assert reading.tracker.start([waiting]) == [False]
    assert isinstance(reading.worker.fault, ConfigurationError)
    assert "'w1'" in str(reading.worker.fault)
    assert reading.worker._stop.is_set()
    reading.tracker.finish([running])
    reading.turn()
    assert reading.kafka.asked == []
    assert "Traceback" not in caplog.text


def test_a_commit_can_be_what_tells_that_it_was_put_out() -> None:
    reading = Reading()
    reading.assign(0)
    reading.kafka.refusals = [KafkaError._FATAL]
    reading.turn(Read(0, 0))
    reading.turn()
    assert reading.tracker.owned() == []
    assert isinstance(reading.worker.fault, RelevoError)
    assert not isinstance(reading.worker.fault, ConfigurationError)


def test_an_error_in_the_readers_thread_is_a_fault_and_not_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that says nothing and ends well is taken for one that was asked to end."""
    reading = Reading()

    def broken() -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(reading.worker, "_turn", broken)
    monkeypatch.setattr("relevo.consumer.consumer.await_topic", lambda *about: None)
    reading.worker.start()
    reading.worker.thread.join(30)
    assert "a mistake of ours" in str(reading.worker.fault)
    assert reading.kafka.closed


def test_thrown_out_for_not_polling_it_begins_where_the_group_is() -> None:
    """Its thread stood still for longer than the interval, while another one worked and committed."""
    reading = Reading(hold=True)
    reading.assign(0)
    reading.turn(Read(0, 0), Read(0, 1))
    reading.turn()
    late = list(reading.held)
    reading.turn(Trouble(KafkaError._MAX_POLL_EXCEEDED))
    reading.lose()
    reading.tracker.finish(late)
    reading.turn()
    assert reading.kafka.asked == []
    reading.assign(1)
    reading.turn(Read(0, 1))
    reading.turn()
    assert reading.seen == [0, 1, 1]
    assert reading.kafka.asked == []
    reading.tracker.finish(reading.held)
    reading.turn()
    assert reading.kafka.asked == [(0, 2)]


def leaving(reading: Reading) -> threading.Thread:
    thread = threading.Thread(target=reading.worker._leave)
    thread.start()
    return thread


def until(fact: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_it_polls_and_commits_while_it_drains() -> None:
    """A drain may be longer than the poll interval, and may be cut short by a kill."""
    reading = Reading(hold=True)
    reading.assign(0)
    reading.turn(Read(0, 0), Read(0, 1))
    reading.turn()
    reading.tracker.start(reading.held)
    reading.worker.stop(60.0)
    thread = leaving(reading)
    polls = len(reading.kafka.polls)
    reading.tracker.finish(reading.held[:1])
    until(lambda: reading.kafka.committed_offsets == [(0, 1)] and len(reading.kafka.polls) > polls)
    assert reading.kafka.paused == {0}
    reading.tracker.finish(reading.held)
    thread.join(30)
    assert reading.kafka.committed_offsets == [(0, 1), (0, 2)]
    assert reading.tracker.owned() == []


def test_a_drain_ends_when_there_is_no_more_time() -> None:
    """A second signal, while the first one waits for a handler that hangs."""
    reading = Reading(hold=True)
    reading.assign(0)
    reading.turn(Read(0, 0))
    reading.tracker.start(reading.held)
    reading.worker.stop(3_600.0)
    thread = leaving(reading)
    reading.worker.abandon()
    thread.join(30)
    assert not thread.is_alive()
    assert reading.kafka.committed_offsets == []


def test_a_partition_that_comes_while_it_drains_is_not_worked_on() -> None:
    reading = Reading(hold=True)
    reading.assign(0)
    reading.turn(Read(0, 0))
    reading.tracker.start(reading.held)
    reading.kafka.polled = [Read(1, 0)]
    came: list[bool] = []

    def gets_another() -> None:
        if not came:
            came.append(True)
            reading.assign(0, 1)

    reading.kafka.during_poll = gets_another
    reading.worker.stop(60.0)
    thread = leaving(reading)
    until(lambda: came)
    reading.tracker.finish(reading.held)
    thread.join(30)
    assert reading.kafka.paused == {0, 1}
    assert reading.seen == [0]
    assert reading.tracker.owned() == []


def full(buffer: int, concurrency: int, count: int) -> Reading:
    reading = Reading(hold=True, buffer=buffer, concurrency=concurrency)
    reading.assign(0, 0, 1)
    for offset in range(count):
        reading.turn(Read(0, offset))
    return reading


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpressure, "FULL_WAIT_S", 0.01)
    monkeypatch.setattr(backpressure, "PAUSED_WAIT_S", 0.01)


def test_a_full_worker_keeps_its_partitions_paused_until_reading_is_worth_it() -> None:
    """Each resume makes librdkafka fetch all it reads ahead anew: 2,000 times as much as the one job."""
    reading = full(40, 8, 40)
    reading.turn()
    assert reading.kafka.paused == {0, 1}
    reading.tracker.finish(reading.held[:10])
    reading.turn()
    assert reading.kafka.paused == {0, 1}
    reading.tracker.finish(reading.held[:11])
    reading.turn()
    assert reading.kafka.paused == set()


def test_nobody_is_idle_because_reading_is_not_worth_it() -> None:
    reading = full(10, 10, 10)
    reading.turn()
    assert reading.kafka.paused == {0, 1}
    reading.tracker.finish(reading.held[:1])
    reading.turn()
    assert reading.kafka.paused == set()


def test_a_job_that_holds_back_all_others_is_waited_for_in_peace() -> None:
    """So many are finished behind it that no more is read: looking again at once would take a whole core."""
    reading = full(1, 1, 0)
    reading.turn(Read(0, 0))
    first = list(reading.held)
    reading.tracker.set_aside(1)
    for offset in range(1, 20):
        reading.turn(Read(0, offset))
        reading.tracker.finish(reading.held[1:])
    assert (reading.tracker.tracked, reading.tracker.unfinished) == (20, 0)
    before = time.monotonic()
    for _ in range(5):
        reading.turn()
    assert time.monotonic() - before >= 0.04
    assert reading.kafka.paused == {0, 1}
    reading.tracker.finish(first)
    reading.turn()
    assert reading.kafka.paused == set()


def test_a_topic_made_anew_while_paused_leaves_no_partition_asleep() -> None:
    """Its new assignment isn't paused, the others still are, and must wake up all the same."""
    reading = full(4, 1, 4)
    reading.turn()
    assert reading.kafka.paused == {0, 1}
    reading.kafka.paused -= {0}
    reading.turn(Trouble(KafkaError.OFFSET_OUT_OF_RANGE))
    assert reading.kafka.paused == {0, 1}
    reading.tracker.finish(reading.held)
    reading.turn()
    assert reading.kafka.paused == set()
    assert {(owned.topic, owned.partition) for owned in reading.tracker.owned()} == {(TOPIC, 0), (TOPIC, 1)}


def test_what_was_read_before_its_topic_was_made_anew_says_nothing_of_the_new_one() -> None:
    """In one batch: with the old offsets as the new topic's, its jobs would be passed over, and committed."""
    reading = Reading(hold=True)
    reading.assign(498)
    batches: list[list[Read]] = [[Read(0, 499), Trouble(KafkaError.OFFSET_OUT_OF_RANGE)]]
    reading.kafka.consume = lambda *_: batches.pop() if batches else []  # type: ignore[method-assign]
    reading.turn(Read(0, 498))
    reading.turn(Read(0, 0))
    assert reading.seen == [498, 499, 0]
    reading.tracker.finish(reading.held)
    reading.turn()
    assert reading.kafka.asked == [(0, 0), (0, 1)]
