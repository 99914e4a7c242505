"""One term against a Kafka and a ZooKeeper that fail on command."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from relevo_partitions.errors import NotLeader, TooManyReads
from relevo_partitions.ports import Verdict
from relevo_partitions.settings import TermSettings
from relevo_partitions.statemachine import Heard, Incoming, Term, Write
from relevo_partitions.term.barrier import is_barrier
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.roles import Role
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import (
    FakeKafka,
    FakeSeat,
    Fault,
    Running,
    SlowSeat,
    abort_because_of,
    fenced_from_outside,
    unclear_and_lost,
    unclear_but_committed,
)


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka()


def test_a_term_goes_through_its_steps_in_order(kafka: FakeKafka) -> None:
    kafka.send(id="a", add=2)
    running = Running(kafka).wait_leading()
    running.wait_total(2)
    running.term.end(Ending.STOPPED, "")
    assert running.over().ending is Ending.STOPPED
    assert running.path == [
        Role.FOLLOWING, Role.STANDBY, Role.FENCING, Role.VERIFYING, Role.REPLAYING, Role.ANNOUNCING,
        Role.LEADING, Role.ENDING,
    ]  # fmt: skip


def test_a_new_term_has_the_next_epoch_and_goes_on_where_the_log_says(kafka: FakeKafka) -> None:
    kafka.send(id="a", add=2)
    first = Running(kafka).wait_leading()
    first.wait_total(2)
    first.term.end(Ending.STOPPED, "")
    first.over()
    kafka.send(id="b", add=3)
    second = Running(kafka).wait_leading()
    second.wait_total(5)
    assert second.term.progress.epoch == 2
    assert [event["kind"] for event in kafka.events()] == ["elected", "added", "elected", "added"]


@pytest.mark.parametrize("fault", [unclear_but_committed, unclear_and_lost])
def test_an_unknown_outcome_is_learnt_from_the_log(kafka: FakeKafka, fault: Fault) -> None:
    """A lost answer taken for "no" means writing twice; taken for "yes", maybe not at all."""
    kafka.faults.append(fault)
    running = Running(kafka).wait_leading()
    kafka.send(id="a", add=7)
    wait_until(lambda: kafka.newest == 2, "a new producer was initialised")
    running.wait_total(7)
    assert [event["id"] for event in kafka.events() if event["kind"] == "added"] == ["a"]
    assert "commit_unclear" in running.heard.faults


def test_an_unknown_outcome_waits_for_zookeeper_before_it_fences_again(kafka: FakeKafka) -> None:
    """Whoever fences without asking may hit the rightful leader."""
    seat = FakeSeat([Verdict.OURS, Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.OURS])
    kafka.faults.append(unclear_and_lost)
    running = Running(kafka, seat).wait_leading()
    kafka.send(id="a", add=7)
    running.wait_total(7)
    assert seat.asked >= 4
    assert kafka.newest == 2


def test_a_lone_leader_that_is_fenced_goes_on_when_zookeeper_confirms_it(kafka: FakeKafka) -> None:
    """Brokers tell the only producer now and then that it was fenced."""
    kafka.faults.append(fenced_from_outside)
    running = Running(kafka).wait_leading()
    kafka.send(id="a", add=7)
    wait_until(lambda: running.term.progress.epoch == 2, "leads again in a new epoch")
    running.wait_total(7)
    assert running.heard.faults == ["fenced"]


@pytest.mark.parametrize(
    ("verdict", "ending"), [(Verdict.UNKNOWN, Ending.FENCED), (Verdict.LOST, Ending.LOST)]
)
def test_a_fenced_leader_without_confirmation_never_fences_back(
    kafka: FakeKafka, verdict: Verdict, ending: Ending
) -> None:
    """Cut off from ZooKeeper it hears of its end from Kafka only, and must leave its successor alone."""
    kafka.faults.append(fenced_from_outside)
    running = Running(kafka, FakeSeat([Verdict.OURS, verdict])).wait_leading()
    kafka.send(id="a", add=7)
    assert running.over().ending is ending
    assert kafka.newest == 2, "its own first fence, and the successor's"
    assert running.roles.role is Role.ENDING


@pytest.mark.parametrize(
    ("verdict", "ending"), [(Verdict.UNKNOWN, Ending.UNCONFIRMED), (Verdict.LOST, Ending.LOST)]
)
@pytest.mark.parametrize("barrier_fails", [False, True])
def test_a_sleeper_finds_out_behind_the_fence_and_decides_nothing(
    kafka: FakeKafka, verdict: Verdict, ending: Ending, barrier_fails: bool
) -> None:
    """A barrier that didn't commit is no reason to try again without ZooKeeper's word."""
    kafka.barrier_faults.extend([abort_because_of(None)] * barrier_fails)
    running = Running(kafka, FakeSeat([verdict]))
    assert running.over().ending is ending
    assert [is_barrier(record.value) for record in kafka.log] == [True] * (not barrier_fails)


def test_the_barrier_does_not_wait_for_zookeepers_word(kafka: FakeKafka) -> None:
    """With three servers and two cores that took a twentieth of a takeover."""
    seat = SlowSeat()
    running = Running(kafka, seat)
    wait_until(lambda: len(kafka.log) == 1, "the barrier was written")
    assert seat.asked == 1
    assert running.path[-1] is Role.VERIFYING, "and nothing goes on without it"
    seat.may_answer.set()
    running.wait_leading()


def test_a_topic_that_cannot_be_written_holds_up_only_itself(kafka: FakeKafka) -> None:
    kafka.faults.append(abort_because_of("c.activations.bad"))
    running = Running(kafka).wait_leading()
    kafka.send(id="a", add=1, to="c.activations.bad")
    kafka.send(id="b", add=2)
    wait_until(lambda: running.topic_failures, "the failure was reported")
    running.wait_leading()
    running.wait_total(3)
    assert running.topic_failures == ["c.activations.bad"]
    assert kafka.newest == 1, "the producer of a clean abort still serves"
    assert [event["id"] for event in kafka.events() if event["kind"] == "added"] == ["a", "b"]


def test_a_log_that_cannot_be_written_is_no_topics_fault(kafka: FakeKafka) -> None:
    kafka.faults.extend([abort_because_of(None), abort_because_of("c.log")])
    running = Running(kafka).wait_leading()
    kafka.send(id="a", add=1)
    running.wait_total(1)
    assert running.topic_failures == []


def test_a_damaged_log_is_not_led(kafka: FakeKafka) -> None:
    kafka.log.append(Incoming(0, b"", b'{"seq": 2, "epoch": 0, "kind": "added", "at": 0, "source": 0}'))
    running = Running(kafka)
    over = running.over()
    assert over.ending is Ending.LOG_DAMAGED
    assert "expected seq 1" in over.detail
    assert kafka.events() == [{"seq": 2, "epoch": 0, "kind": "added", "at": 0, "source": 0}]


def test_commands_that_vanish_under_an_idle_leader_are_noticed(kafka: FakeKafka) -> None:
    """A consumer of a deleted topic waits for ever without a word."""
    running = Running(kafka, settings=TermSettings(stall_s=0.01, idle_wait_s=0.005)).wait_leading()
    kafka.commands_gone = True
    over = running.over()
    assert (over.ending, over.detail) == (Ending.LOG_DAMAGED, "the commands are gone")


def test_a_leader_whose_reader_is_stuck_gives_the_partition_up(kafka: FakeKafka) -> None:
    """It would take it for silence of the clients, and lead on while their commands pile up."""
    running = Running(kafka, settings=TermSettings(stall_s=0.01, idle_wait_s=0.005)).wait_leading()
    kafka.stuck = True
    kafka.send(id="a", add=1)
    over = running.over()
    assert over.ending is Ending.KAFKA_UNAVAILABLE
    assert (
        "c.commands: nothing comes from offset 0 on, although what lies before 1 can be read" in over.detail
    )


def test_a_leader_without_commands_leads_on(kafka: FakeKafka) -> None:
    """Nothing to read is no reason to give up, however long; nor is Kafka without an answer."""
    running = Running(kafka, settings=TermSettings(stall_s=0.01, idle_wait_s=0.005)).wait_leading()
    kafka.ends_asked = 0
    wait_until(lambda: kafka.ends_asked > 3, "Kafka was asked several times", timeout_s=10)
    kafka.ends_unknown = True
    wait_until(lambda: kafka.ends_asked > 6, "and didn't answer", timeout_s=10)
    kafka.ends_unknown = False
    kafka.send(id="a", add=1)
    wait_until(lambda: len(kafka.events()) == 2, "a command is worked off", timeout_s=10)
    assert running.path[-1] is Role.LEADING


def test_a_sleeper_whose_commands_were_trimmed_is_no_longer_the_leader_and_nothing_is_damaged(
    kafka: FakeKafka,
) -> None:
    """Its successor has decided them, and deleted what nobody needs any more."""
    seat = FakeSeat([Verdict.OURS, Verdict.LOST])
    running = Running(kafka, seat, settings=TermSettings(stall_s=0.01, idle_wait_s=0.005)).wait_leading()
    kafka.commands_gone = True
    assert running.over().ending is Ending.LOST


def test_kafka_away_ends_the_term_with_a_reason(kafka: FakeKafka) -> None:
    kafka.fence_fails = True
    over = Running(kafka).over()
    assert over.ending is Ending.KAFKA_UNAVAILABLE
    assert "isn't reachable" in over.detail


class Raises(CounterMachine):
    def step(self, commands: Sequence[Incoming], now: int, heard: Heard | None = None) -> Sequence[Write]:
        if commands:
            raise ZeroDivisionError("a mistake")
        return []


def test_a_machine_that_raises_ends_the_term_and_nothing_else(kafka: FakeKafka) -> None:
    running = Running(kafka, machine=lambda number: Raises(number, "c")).wait_leading()
    kafka.send(id="a", add=1)
    over = running.over()
    assert over.ending is Ending.MACHINE_FAILED
    assert "ZeroDivisionError: a mistake" in over.detail


def test_no_read_is_answered_from_a_term_that_was_shut_out(kafka: FakeKafka) -> None:
    """A cut-off leader's memory is stale without its knowing."""
    running = Running(kafka, FakeSeat([Verdict.OURS, Verdict.UNKNOWN])).wait_leading()
    kafka.newest += 1  # the successor's fence
    with pytest.raises(NotLeader):
        running.total()
    assert running.over().ending is Ending.FENCED


def test_a_read_waits_for_a_commit_that_began_after_it(kafka: FakeKafka) -> None:
    """A commit under way when the read arrived proves nothing: a successor may have written since."""
    running = Running(kafka).wait_leading()
    kafka.may_commit.clear()
    kafka.committing.clear()
    kafka.send(id="a", add=1)
    assert kafka.committing.wait(10)
    late = running.term.read(lambda machine: machine.total)
    kafka.newest += 1
    successor = CounterMachine(0, "c")
    successor.replay([record for record in kafka.log if not is_barrier(record.value)])
    kafka.append(successor.lead(Term("n2", "i2"), 1))
    kafka.append(successor.step([Incoming(0, b"", b'{"id": "theirs", "add": 100}')], 1))
    kafka.may_commit.set()
    assert late.result(10) >= 100
    assert "fenced" in running.heard.faults


def test_reads_end_with_the_term_and_never_hang(kafka: FakeKafka) -> None:
    running = Running(kafka).wait_leading()
    kafka.may_commit.clear()
    waiting = [running.term.read(lambda machine: machine.total) for _ in range(3)]
    running.term.end(Ending.LOST, "")
    kafka.may_commit.set()
    running.over()
    for read in [*waiting, running.term.read(lambda machine: machine.total)]:
        assert read.exception(10) is None or isinstance(read.exception(10), NotLeader)
    assert isinstance(running.term.read(lambda machine: 1).exception(1), NotLeader)


def test_more_reads_than_the_queue_holds_are_refused(kafka: FakeKafka) -> None:
    running = Running(kafka, settings=TermSettings(reads_max=2, idle_wait_s=0.005)).wait_leading()
    kafka.may_commit.clear()
    kafka.committing.clear()
    kafka.send(id="a", add=1)
    assert kafka.committing.wait(10)
    reads = [running.term.read(lambda machine: machine.total) for _ in range(3)]
    assert isinstance(reads[2].exception(1), TooManyReads)
    kafka.may_commit.set()
    assert [read.result(10) for read in reads[:2]] == [1, 1]


def test_a_query_that_raises_is_its_callers_business(kafka: FakeKafka) -> None:
    running = Running(kafka).wait_leading()
    assert isinstance(running.term.read(lambda machine: 1 / 0).exception(10), ZeroDivisionError)
    assert running.total() == 0


def test_everything_the_term_owned_is_gone_when_it_ends(kafka: FakeKafka) -> None:
    """Threads, producers and consumers that outlive a term act beside the next one."""
    running = Running(kafka).wait_leading()
    running.term.end(Ending.LOST, "")
    running.over()
    running.thread.join(10)
    assert (running.thread.is_alive(), kafka.readers_open, kafka.writers_open) == (False, 0, 0)


def test_a_call_that_never_returns_does_not_keep_the_partition(kafka: FakeKafka) -> None:
    """Kafka's client hangs in a commit: the thread is given up, and what it does later has no effect."""
    running = Running(kafka, settings=TermSettings(call_limit_s=0.05, idle_wait_s=0.005)).wait_leading()
    kafka.may_commit.clear()
    waiting = running.term.read(lambda machine: machine.total)
    wait_until(lambda: running.term.overdue() == "commit", "the call counts as lost")
    running.term.abandon("commit didn't return")
    assert isinstance(waiting.exception(1), NotLeader)
    running.roles.to(Role.ENDING)
    running.roles.to(Role.OUT)
    kafka.may_commit.set()
    assert running.over().ending is Ending.ABANDONED
    assert running.roles.role is Role.OUT


def test_the_clock_fires_without_commands(kafka: FakeKafka) -> None:
    running = Running(kafka).wait_leading()
    kafka.send(id="a", remind_ms=20)
    wait_until(lambda: [e for e in kafka.events() if e["kind"] == "rang"], "the reminder rang")
    assert running.roles.role is Role.LEADING


def test_time_in_the_log_never_goes_back(kafka: FakeKafka) -> None:
    """The next leader's wall clock may be an hour behind."""
    ahead = 4_000_000_000_000
    kafka.log.append(Incoming(0, b"", b'{"seq":1,"epoch":1,"kind":"elected","at":%d,"source":-1}' % ahead))
    running = Running(kafka).wait_leading()
    kafka.send(id="a", add=1)
    running.wait_total(1)
    times: list[Any] = [event["at"] for event in kafka.events()]
    assert times == sorted(times)
    assert times[-1] >= ahead
    assert running.heard.faults == ["clock"], "somebody has to know: for jobs it is that time from now on"


def test_many_slow_reads_do_not_hold_up_commands(kafka: FakeKafka) -> None:
    """A look at a million jobs takes a twentieth of a second, and a thousand of them may wait."""
    running = Running(kafka).wait_leading()
    kafka.may_commit.clear()

    def look(machine: CounterMachine) -> int:
        if not kafka.commands:
            kafka.send(id="a", add=1)
        time.sleep(0.005)
        return machine.total

    answers = [running.term.read(look) for _ in range(40)]
    kafka.may_commit.set()
    totals = [answer.result(10) for answer in answers]
    assert totals == sorted(totals)
    assert (totals[0], totals[-1]) == (0, 1)


def test_a_glance_writes_nothing(kafka: FakeKafka) -> None:
    """Gauges that are scraped every few seconds must not fill the log with barriers."""
    running = Running(kafka).wait_leading()
    before = len(kafka.log)
    assert running.term.read(lambda machine: machine.total, proven=False).result(10) == 0
    assert len(kafka.log) == before
    running.term.end(Ending.STOPPED, "")
    running.over()


def test_a_term_that_comes_to_no_commit_gives_the_partition_to_others(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim stands and its way to Kafka is broken: as long as it tries, nobody else may."""
    monkeypatch.setattr("relevo_partitions.term.leadership.FRUITLESS_S", 0.2)
    running = Running(kafka).wait_leading()
    kafka.silent = True
    kafka.send(id="a", add=1)
    over = running.over()
    assert over.ending is Ending.KAFKA_UNAVAILABLE
    assert over.detail == "no commit in 0.2 s of trying: no answer"


def test_a_term_that_commits_nothing_but_barriers_gives_the_partition_to_others(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt begins with one, and a log that takes it says nothing of the rest."""
    monkeypatch.setattr("relevo_partitions.term.leadership.FRUITLESS_S", 0.2)
    kafka.send(id="a", add=1)
    kafka.faults.extend([abort_because_of(None)] * 1_000)
    running = Running(kafka)
    assert running.over().ending is Ending.KAFKA_UNAVAILABLE
    assert sum(is_barrier(record.value) for record in kafka.log) > 1


def test_a_term_that_commits_between_its_setbacks_is_kept(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is mended; giving the partition away would only move the trouble."""
    monkeypatch.setattr("relevo_partitions.term.leadership.FRUITLESS_S", 0.0)
    running = Running(kafka).wait_leading()
    for number in range(4):
        kafka.faults.append(unclear_and_lost)
        kafka.send(id=str(number), add=1)
        running.wait_total(number + 1)
    running.term.end(Ending.STOPPED, "")
    assert running.over().ending is Ending.STOPPED
