"""One consumer, many threads, partitions that come and go: nothing is skipped or committed too early."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from relevo.consumer.consumer import Arrivals
from relevo.consumer.offsets import Entry, Ownership
from relevo.consumer.starts import starts_of
from tests.support.brokers import Brokers
from tests.support.group_members import Member, Topic, finish_at_once
from tests.support.waiting import wait_until

protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def make_topic(brokers: Brokers, cluster_name: str) -> Callable[[int], Topic]:
    return lambda partitions: Topic(brokers.kafka, f"{cluster_name}.t", partitions)


def test_a_raising_callback_swallows_no_message(make_topic: Callable[[int], Topic]) -> None:
    """An exception out of a callback makes the read that served it drop what it had taken already."""
    topic = make_topic(2)
    count = 60_000
    topic.fill(count)
    calls, raised = [0], [0]

    def raise_often(_: str) -> None:
        calls[0] += bool(member.seen)
        if calls[0] % 3 == 1 and raised[0] < 60 and len(member.seen) < count:
            raised[0] += 1
            raise RuntimeError("a callback without a guard")

    member = Member(topic, finish_at_once)
    # Past the guard that callbacks get, on purpose.
    member.consumer._config |= {"stats_cb": raise_often, "statistics.interval.ms": 2}
    member.start()
    wait_until(lambda: len(member.seen) >= count, "all messages came", timeout_s=60)
    wait_until(lambda: sum(topic.committed()) == count, "all are committed")
    # librdkafka leaks what a raising read had taken, and may wait for it for ever when it is closed.
    member.consumer.stop()
    assert raised[0] > 0
    assert sorted(member.seen) == sorted((number % 2, number // 2) for number in range(count))


@protocols
def test_a_failed_assignment_callback_loses_no_partition(
    make_topic: Callable[[int], Topic], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(2)
    topic.fill(100)
    member = Member(topic, finish_at_once, group_protocol=protocol)
    calls = []

    def fail_first(consumer: Any, topic: str, partitions: list[TopicPartition]) -> Any:
        calls.append(partitions)
        if len(calls) == 1:
            raise RuntimeError("in on_assign")
        return starts_of(consumer, topic, partitions)

    monkeypatch.setattr("relevo.consumer.consumer.starts_of", fail_first)
    member.start()
    wait_until(lambda: sum(topic.committed()) == 100, "all are committed")
    member.stop()
    assert len(set(member.seen)) == 100


@pytest.mark.timeout(180)
@protocols
def test_the_highest_seen_is_not_what_is_committed(make_topic: Callable[[int], Topic], protocol: str) -> None:
    """16 threads, random durations, a worker that vanishes without a word: every message is worked off."""
    topic = make_topic(2)
    count = 6_000
    topic.fill(count)
    chance = random.Random(1)
    worked: set[tuple[int, int]] = set()
    lock = threading.Lock()

    with ThreadPoolExecutor(16) as pool:

        def work(member: Member, entry: Entry) -> None:
            time.sleep(chance.random() * 0.01)
            with lock:
                worked.add((entry.ownership.partition, entry.offset))
            member.tracker.finish([entry])

        def deliver(member: Member, arrivals: Arrivals) -> None:
            for entry, _ in arrivals:
                pool.submit(work, member, entry)

        def checking(member: Member) -> Member:
            note = member.tracker.committed

            def committed(owned: Ownership, offset: int) -> None:
                with lock:
                    missing = [each for each in range(offset) if (owned.partition, each) not in worked]
                member.commits += [(owned.partition, each) for each in missing]
                note(owned, offset)

            member.tracker.committed = committed  # type: ignore[method-assign]
            return member

        first = checking(Member(topic, deliver, group_instance_id="one", group_protocol=protocol))
        first.start()
        wait_until(lambda: len(worked) > count // 3, "a third is done")
        first.consumer.abandon()
        first.consumer.thread.join(30)
        second = checking(Member(topic, deliver, group_instance_id="one", group_protocol=protocol))
        second.start()
        wait_until(lambda: sum(topic.committed()) == count, "all are committed", timeout_s=90)
        second.stop()
    assert len(worked) == count
    assert first.commits + second.commits == [], "committed over unfinished work"


@pytest.mark.timeout(180)
@protocols
def test_a_late_finish_of_an_earlier_ownership_commits_nothing(
    make_topic: Callable[[int], Topic], protocol: str
) -> None:
    """A partition goes from A to B to A, while a job that A began first ends late."""
    topic = make_topic(2)
    topic.fill(20)
    held: dict[int, list[Entry]] = {0: [], 1: []}

    def hold_the_first(member: Member, arrivals: Arrivals) -> None:
        for entry, _ in arrivals:
            if entry.offset == 0:
                held[entry.ownership.partition].append(entry)
            else:
                member.tracker.finish([entry])

    a = Member(topic, hold_the_first, drain_s=0.1, group_protocol=protocol).start()
    wait_until(lambda: len(a.seen) == 20, "A has read all")
    b = Member(topic, lambda *_: None, drain_s=0.1, group_protocol=protocol).start()
    wait_until(
        lambda: len(b.owns()) == 1 and a.owns().isdisjoint(b.owns()), "B has one of them", timeout_s=60
    )
    (moved,) = b.owns()
    b.stop()
    wait_until(lambda: len(held[moved]) == 2, "A has it again, and reads it again", timeout_s=60)
    early, late = held[moved]
    assert late.ownership.generation > early.ownership.generation
    a.tracker.finish([early])
    time.sleep(1.0)  # several commit rounds, in none of which anything may be committed
    assert topic.committed() == [0, 0]
    a.tracker.finish([late])
    wait_until(lambda: topic.committed()[moved] == 10, "the second ownership is committed")
    a.stop()


def test_error_entries_in_a_batch_move_no_position(make_topic: Callable[[int], Topic]) -> None:
    topic = make_topic(3)
    topic.fill(300)
    member = Member(topic, finish_at_once, enable_partition_eof=True).start()
    wait_until(lambda: sum(topic.committed()) == 300, "all are committed")
    topic.fill(30)
    wait_until(lambda: sum(topic.committed()) == 330, "and what came after the end")
    member.stop()
    assert len(member.seen) == len(set(member.seen)) == 330


@protocols
def test_a_topic_that_is_made_anew_is_read_from_its_beginning(
    make_topic: Callable[[int], Topic], protocol: str
) -> None:
    """Its first messages have offsets that were read before: taken for repeats they would never be run."""
    topic = make_topic(1)
    topic.fill(300)
    held: list[Entry] = []

    def hold_the_last(member: Member, arrivals: Arrivals) -> None:
        held.extend(entry for entry, _ in arrivals if entry.offset == 299)
        member.tracker.finish([entry for entry, _ in arrivals if entry.offset != 299])

    member = Member(topic, hold_the_last, group_protocol=protocol).start()
    wait_until(lambda: held and topic.committed() == [299], "all but one are committed")
    topic.make_anew()
    topic.fill(40)
    wait_until(lambda: len(member.seen) == 340, "the new ones are read")
    wait_until(lambda: topic.committed() == [40], "and committed by their own offsets")
    may_start = member.tracker.start(held)
    # The newer protocol knows topics by their ids: it may take the old one's partitions away first, or the
    # consumer has noticed before it.
    assert may_start == [True] or protocol == "consumer", "what was read of the old topic"
    member.tracker.finish(held)
    assert member.tracker.unfinished == 0
    member.stop()
    assert topic.committed() == [40]
    assert sorted(member.seen[300:]) == [(0, offset) for offset in range(40)]


@pytest.mark.timeout(120)
def test_work_longer_than_the_poll_interval_does_not_cost_the_partition(
    make_topic: Callable[[int], Topic],
) -> None:
    """With a full local queue nothing is read, but polling goes on: else the member is thrown out."""
    topic = make_topic(1)
    topic.fill(20)
    entries: list[Entry] = []
    member = Member(
        topic,
        lambda _, arrivals: entries.extend(e for e, _ in arrivals),
        buffer=2,
        max_poll_interval_ms=6_000,
    )
    member.start()
    wait_until(lambda: len(entries) == 2, "the buffer is full")
    time.sleep(9)  # one and a half times the interval: it is the duration that is tested
    assert len(entries) == 2
    assert member.stats.rebalances == 1
    member.tracker.finish(list(entries))
    wait_until(lambda: len(entries) > 2, "reading goes on")
    wait_until(lambda: topic.committed() == [2], "the commit is taken")
    member.consumer.abandon()
    member.consumer.thread.join(30)


@pytest.mark.timeout(180)
def test_a_consumer_is_closed_while_others_use_what_it_gave(
    make_topic: Callable[[int], Topic], caplog: pytest.LogCaptureFixture
) -> None:
    """One consumer and many threads: only its own ever touches it, so closing it is no race."""
    topic = make_topic(2)
    topic.fill(5_000)
    with ThreadPoolExecutor(4) as pool:

        def deliver(member: Member, arrivals: Arrivals) -> None:
            for entry, _ in arrivals:
                pool.submit(member.tracker.finish, [entry])

        for _ in range(25):
            member = Member(topic, deliver, group_instance_id="one").start()
            wait_until(lambda member=member: member.seen or sum(topic.committed()) == 5_000, "it reads")  # type: ignore[misc]
            stoppers = [threading.Thread(target=member.consumer.stop) for _ in range(3)]
            for stopper in stoppers:
                stopper.start()
            member.stop()
            for stopper in stoppers:
                stopper.join()
    assert "ended" not in caplog.text
    assert sum(topic.committed()) > 0
