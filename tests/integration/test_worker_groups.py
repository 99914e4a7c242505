"""Members of a group that fall silent, share a name, stand still or lose their broker, in both protocols."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

import relevo
from relevo.consumer.consumer import Arrivals
from relevo.consumer.offsets import Entry
from relevo_engine.local.kafka import admin
from tests.support.brokers import Brokers
from tests.support.fixtures import StartBrokers
from tests.support.group_members import Member, Topic, finish_at_once, set_session
from tests.support.waiting import wait_until
from tests.unit.workers.fakes import activation_bytes

protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def make_topic(brokers: Brokers, cluster_name: str) -> Callable[[int], Topic]:
    return lambda partitions: Topic(brokers.kafka, f"{cluster_name}.t", partitions)


@pytest.fixture
def spawned() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for each in processes:
        each.kill()
        each.wait(30)


@protocols
def test_a_dead_member_is_noticed_when_its_session_ends(
    make_topic: Callable[[int], Topic], protocol: str, spawned: list[subprocess.Popen[bytes]]
) -> None:
    """Its jobs wait for that long: in one protocol members ask for the time, in the other brokers set it."""
    topic = make_topic(2)
    options: dict[str, Any] = {"group_protocol": protocol}
    if protocol == "classic":
        options |= {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 500}
    else:
        set_session(topic.kafka, topic.group, 2_000)
    survivor = Member(topic, finish_at_once, **options).start()
    wait_until(lambda: survivor.owns() == {0, 1}, "it has both")
    arguments = [topic.kafka, topic.name, *(f"{name}={value}" for name, value in options.items())]
    other = subprocess.Popen([sys.executable, "-m", "tests.support.group_members", *arguments])
    spawned.append(other)
    wait_until(lambda: len(survivor.owns()) == 1, "the other has one", timeout_s=60)
    other.kill()
    killed_at = time.monotonic()
    wait_until(lambda: survivor.owns() == {0, 1}, "it has both again", timeout_s=60)
    print(f"{protocol}: noticed after {time.monotonic() - killed_at:.1f} s of a session of 2 s")
    topic.fill(20)
    wait_until(lambda: sum(topic.committed()) == 20, "all are worked off")
    survivor.stop()


@protocols
def test_of_two_processes_with_one_name_one_ends_and_says_why(
    brokers: Brokers, cluster_name: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both would do the same jobs, and one that gets none any more would look like one that works."""
    client = admin(brokers.kafka)
    names = [f"{cluster_name}.commands", f"{cluster_name}.activations.work"]
    for made in client.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(30)

    def app() -> relevo.WorkerApp:
        made = relevo.WorkerApp(
            brokers.kafka, cluster_name, watch=False, group_instance_id="w", group_protocol=protocol
        )
        made.job("work")(lambda job: job.key)
        return made

    apps = [app(), app()]
    producer = Producer({"bootstrap.servers": brokers.kafka})
    with ThreadPoolExecutor(2) as pool:
        try:
            running = [pool.submit(apps[0].run, 5)]
            wait_until(lambda: apps[0].stats.rebalances, "the first has its partition", timeout_s=60)
            running.append(pool.submit(apps[1].run, 5))
            wait_until(lambda: any(each.done() for each in running), "one ends", timeout_s=60)
            # The classic coordinator believes the newcomer, the newer one whoever was there.
            ended, left = (0, 1) if protocol == "classic" else (1, 0)
            with pytest.raises(relevo.ConfigurationError, match=r"group\.instance\.id 'w'"):
                running[ended].result(10)
            wait_until(lambda: apps[left].stats.rebalances, "the other has the partition", timeout_s=60)
            producer.produce(names[1], activation_bytes("a"))
            assert producer.flush(30) == 0
            wait_until(lambda: apps[left].stats.done == 1, "the other goes on")
        finally:
            for each in apps:
                each.request_stop()
    assert "Traceback" not in caplog.text


@protocols
def test_a_named_member_that_comes_back_in_time_has_its_partition_and_moves_nobodys(
    make_topic: Callable[[int], Topic], protocol: str
) -> None:
    """A deployment that restarts workers one by one would else move all partitions twice for each."""
    topic = make_topic(2)
    held: list[Entry] = []

    def hold_some(member: Member, arrivals: Arrivals) -> None:
        held.extend(entry for entry, _ in arrivals if entry.offset >= 5)
        member.tracker.finish([entry for entry, _ in arrivals if entry.offset < 5])

    def member(name: str, deliver: Callable[[Member, Arrivals], None] = finish_at_once) -> Member:
        options: dict[str, Any] = {"session_timeout_ms": 30_000} if protocol == "classic" else {}
        return Member(
            topic, deliver, drain_s=0.1, group_instance_id=name, group_protocol=protocol, **options
        ).start()

    first, other = member("one", hold_some), member("two")
    wait_until(lambda: len(first.owns()) == len(other.owns()) == 1, "they share", timeout_s=60)
    (mine,) = first.owns()
    topic.fill(20)
    wait_until(lambda: len(held) == 5 and topic.committed()[mine] == 5, "half of its messages are done")
    first.tracker.start(held[:1])
    moves = other.stats.rebalances
    first.stop()
    again = member("one")
    wait_until(lambda: again.owns() == {mine}, "it has its partition again", timeout_s=60)
    wait_until(lambda: topic.committed() == [10, 10], "all are worked off", timeout_s=60)
    assert other.stats.rebalances == moves, "nothing moved meanwhile"
    assert sorted(again.seen) == [(mine, offset) for offset in range(5, 10)]
    (owned,) = again.tracker.owned()
    assert owned.doubtful_below == 10, "what its former self may have started is asked about first"
    first.tracker.finish(held)
    again.stop()
    other.stop()
    assert topic.committed() == [10, 10]


@pytest.mark.timeout(120)
def test_workers_are_moved_to_the_newer_protocol_one_by_one(make_topic: Callable[[int], Topic]) -> None:
    """Members of both kinds in one group, as in the middle of a deployment: nothing is left out."""
    topic = make_topic(4)
    old = Member(topic, finish_at_once, drain_s=0.5).start()
    wait_until(lambda: len(old.owns()) == 4, "the old one has all")
    topic.fill(400)
    new = Member(topic, finish_at_once, drain_s=0.5, group_protocol="consumer").start()
    wait_until(lambda: len(old.owns()) == len(new.owns()) == 2, "they share", timeout_s=60)
    topic.fill(400)
    wait_until(lambda: sum(topic.committed()) == 800, "both work", timeout_s=60)
    old.stop()
    wait_until(lambda: len(new.owns()) == 4, "the new one has all", timeout_s=60)
    back = Member(topic, finish_at_once, drain_s=0.5).start()
    wait_until(lambda: len(back.owns()) == 2, "and there is a way back", timeout_s=60)
    topic.fill(400)
    wait_until(lambda: sum(topic.committed()) == 1_200, "both work again", timeout_s=60)
    new.stop()
    back.stop()
    assert len(set(old.seen + new.seen + back.seen)) == 1_200 // 3 * 3
    assert new.stats.callback_errors == old.stats.callback_errors == back.stats.callback_errors == 0


@pytest.mark.timeout(120)
@protocols
def test_a_thread_that_stands_still_costs_the_partition_and_nothing_else(
    make_topic: Callable[[int], Topic], protocol: str
) -> None:
    """Its heartbeats go on; only the poll interval tells that nobody reads."""
    topic = make_topic(1)
    topic.fill(10)
    stuck, go_on = threading.Event(), threading.Event()
    held: list[Entry] = []

    def stand_still(member: Member, arrivals: Arrivals) -> None:
        if not stuck.is_set():
            held.extend(entry for entry, _ in arrivals)
            stuck.set()
            go_on.wait(60)
        else:
            finish_at_once(member, arrivals)

    session = {"session_timeout_ms": 1_500, "heartbeat_interval_ms": 300} if protocol == "classic" else {}
    options: dict[str, Any] = {"group_protocol": protocol, "max_poll_interval_ms": 2_000, **session}
    first = Member(topic, stand_still, drain_s=0.1, **options).start()
    wait_until(stuck.is_set, "the first one's thread stands still")
    second = Member(topic, finish_at_once, drain_s=0.1, **options).start()
    wait_until(lambda: topic.committed() == [10], "another works it off", timeout_s=60)
    go_on.set()
    wait_until(lambda: not first.owns(), "the first hears of it")
    first.tracker.finish(held)
    second.stop()
    topic.fill(10)
    wait_until(lambda: topic.committed() == [20], "the first is a member again", timeout_s=60)
    first.stop()
    assert first.consumer.fault is None
    assert Counter(second.seen) == Counter((0, offset) for offset in range(10))


def slowly(member: Member, arrivals: Arrivals) -> None:
    threading.Timer(0.2, finish_at_once, (member, arrivals)).start()


class Pair:
    """Two members of a group, of whom the second joins while the first has work."""

    def __init__(self, kafka: str, protocol: str) -> None:
        self.topic = Topic(kafka, protocol, 4)
        self.topic.fill(400)
        self.moving = threading.Event()
        self.first, self.second = (
            Member(self.topic, slowly, buffer=20, group_protocol=protocol) for _ in range(2)
        )
        self._hand_over = self.first.consumer._hand_over
        self.first.consumer._hand_over = self._note  # type: ignore[method-assign]

    def _note(self, partitions: list[tuple[str, int]], drain_s: float) -> None:
        self.moving.set()
        self._hand_over(partitions, drain_s)

    def share(self) -> bool:
        return len(self.first.owns()) == len(self.second.owns()) == 2


@pytest.mark.timeout(240)
def test_a_broker_that_restarts_in_the_middle_of_a_rebalance(own_brokers: StartBrokers) -> None:
    """The coordinator goes while partitions move: nothing is left out or left asleep."""
    brokers = own_brokers()
    pairs = [Pair(brokers.kafka, protocol) for protocol in ("classic", "consumer")]
    for pair in pairs:
        pair.first.start()
    for pair in pairs:
        wait_until(lambda: len(pair.first.seen) > 40, "the first works")  # noqa: B023
    for pair in pairs:
        pair.second.start()
    wait_until(lambda: any(pair.moving.is_set() for pair in pairs), "partitions move", timeout_s=60)
    (server,) = brokers.kafka_servers
    server.kill()
    server.restart()
    brokers.await_brokers()
    for pair in pairs:
        pair.topic.fill(100)
    for pair in pairs:
        all_done = f"all are worked off ({pair.topic.name})"
        wait_until(lambda: sum(pair.topic.committed()) >= 500, all_done, timeout_s=120)  # noqa: B023
        wait_until(pair.share, "they share", timeout_s=60)
        pair.first.stop()
        pair.second.stop()
        seen = set(pair.first.seen) | set(pair.second.seen)
        assert seen == {(number % 4, number // 4) for number in range(500)}
        assert sum(pair.topic.committed()) == 500


@pytest.mark.timeout(120)
def test_a_long_queue_of_large_jobs_is_not_read_into_memory(make_topic: Callable[[int], Topic]) -> None:
    """40,000 jobs of 8 KB wait for a handler that is slow: 320 MB, for each process and each type."""
    topic = make_topic(4)
    producer = Producer({"bootstrap.servers": topic.kafka, "linger.ms": 20, "compression.type": "lz4"})
    # As JSON is: it gets four times smaller or so.
    value = Path(__file__).read_bytes()[:8_192]
    for number in range(40_000):
        while True:
            try:
                producer.produce(topic.name, value, partition=number % 4)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    entries: list[Entry] = []
    values: list[bytes] = []

    def keep(member: Member, arrivals: Arrivals) -> None:
        entries.extend(entry for entry, _ in arrivals)
        values.extend(each for _, each in arrivals)

    before = resident_mb()
    most = 0

    def see_most() -> bool:
        nonlocal most
        most = max(most, resident_mb())
        return member.consumer.reading.paused

    member = Member(topic, keep, buffer=1_000).start()
    for _ in range(3):
        wait_until(see_most, "it is full, and paused")
        assert member.tracker.unfinished == 1_000
        member.tracker.finish(entries[-500:])
        wait_until(lambda: not see_most(), "it reads on")
    wait_until(see_most, "it is full again")
    member.consumer.abandon()
    member.consumer.thread.join(30)
    print(f"{most - before} MB more")
    assert most - before < 150


def resident_mb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096 // 1_000_000


@pytest.mark.timeout(120)
def test_a_type_whose_handlers_hang_does_not_starve_another(brokers: Brokers, cluster_name: str) -> None:
    """They share a process, its sender and its leases; the rest each has for itself."""
    commands, hangs, works = f"{cluster_name}.commands", "hangs", "works"
    topics = [f"{cluster_name}.activations.{each}" for each in (hangs, works)]
    client = admin(brokers.kafka)
    for made in client.create_topics([NewTopic(name, 2, 1) for name in [commands, *topics]]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": brokers.kafka, "linger.ms": 20})
    for number in range(600):
        for topic in topics:
            producer.produce(topic, activation_bytes(f"{topic}-{number}"), partition=number % 2)
    assert producer.flush(30) == 0
    end = threading.Event()
    app = relevo.WorkerApp(brokers.kafka, cluster_name, watch=False)
    app.job(hangs, buffer=200)(lambda job: end.wait(60))
    app.job(works, buffer=200)(lambda job: job.key)
    app.start()
    try:
        by_type = app.stats_by_type
        wait_until(lambda: by_type[works].done == 600, "one type is done", timeout_s=60)
        assert (by_type[hangs].started, by_type[hangs].done) == (8, 0)
        wait_until(lambda: by_type[hangs].received >= 200, "the other is full")
        assert by_type[hangs].received == 200
    finally:
        end.set()
        wait_until(lambda: by_type[hangs].done == 600, "and goes on when it can", timeout_s=60)
        app.stop(5)
    assert by_type[hangs].rebalances == by_type[works].rebalances
