"""The job log as the public reads it: committed events, in order, from anywhere, and never past a hole."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

import relevo
from relevo_engine.local.kafka import admin
from relevo_schemas.codec import encode
from relevo_schemas.events import JobDue
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread
from tests.support.waiting import wait_until
from tests.support.written_log import WrittenLog

TYPE = "work"
EXAMPLE = Path(__file__).parents[2] / "examples" / "read_job_log.py"


@pytest.fixture
def engine(brokers: Brokers, cluster_name: str) -> Iterator[EngineThread]:
    with EngineThread(brokers.kafka, cluster_name, 2, [TYPE, "other"]) as engine:
        yield engine


@pytest.fixture
def client(engine: EngineThread) -> Iterator[relevo.Client]:
    with relevo.Client(engine.kafka, engine.cluster) as client:
        yield client


def read(engine: EngineThread, **arguments: object) -> list[relevo.JobEvent]:
    with relevo.JobEvents(engine.kafka, engine.cluster, follow=False, **arguments) as events:  # type: ignore[arg-type]
        return list(events)


def test_all_events_in_order_with_their_positions(engine: EngineThread, client: relevo.Client) -> None:
    jobs = [client.create(TYPE, wait="decided") for _ in range(20)]
    found = read(engine)
    for partition in range(2):
        mine = [event for event in found if event.partition == partition]
        assert [event.event.seq for event in mine] == list(range(1, len(mine) + 1))
        assert [event.offset for event in mine] == sorted(event.offset for event in mine)
        assert [event.at for event in mine] == sorted(event.at for event in mine)
    assert {event.key for event in found if event.kind == "JobCreated"} == {job.key for job in jobs}


def test_choices(engine: EngineThread, client: relevo.Client) -> None:
    client.create(TYPE, key="a", wait="decided")
    client.create("other", key="b", wait="decided")
    client.cancel("b", wait="decided")
    assert {event.key for event in read(engine, types=["other"])} == {"b"}
    assert [event.kind for event in read(engine, keys=["b"], kinds=["JobCreated", "JobCancelled"])] == [
        "JobCreated",
        "JobCancelled",
    ]
    assert {event.kind for event in read(engine, kinds=["LeaderElected"])} == {"LeaderElected"}


def test_starts(engine: EngineThread, client: relevo.Client) -> None:
    client.create(TYPE, key="old", wait="decided")
    time.sleep(0.05)  # times are told in milliseconds: the two jobs must not share one
    moment = datetime.now(UTC)
    with relevo.JobEvents(engine.kafka, engine.cluster, "now", kinds=["JobCreated"]) as events:
        client.create(TYPE, key="new", wait="decided")
        assert next(events).key == "new"
    assert [event.key for event in read(engine, from_=moment, kinds=["JobCreated"])] == ["new"]
    assert read(engine, from_=round(time.time() * 1_000) + 60_000) == []


def test_reading_goes_on_behind_a_stored_position(engine: EngineThread, client: relevo.Client) -> None:
    for number in range(10):
        client.create(TYPE, key=str(number), wait="decided")
    everything = read(engine)
    with relevo.JobEvents(engine.kafka, engine.cluster, follow=False) as events:
        first = [next(events) for _ in range(len(everything) // 2)]
        positions = events.positions
    rest = read(engine, from_=positions)
    place = [(event.partition, event.offset) for event in first + rest]
    assert sorted(place) == [
        (event.partition, event.offset) for event in sorted(everything, key=lambda e: (e.partition, e.offset))
    ]
    assert len(place) == len(set(place))


def test_a_group_goes_on_where_it_committed(engine: EngineThread, client: relevo.Client) -> None:
    client.create(TYPE, key="a", wait="decided")
    arguments = {"group": f"{engine.cluster}.audit", "kinds": ["JobCreated"]}
    with relevo.JobEvents(engine.kafka, engine.cluster, **arguments) as events:  # type: ignore[arg-type]
        assert next(events).key == "a"
        events.commit()
    client.create(TYPE, key="b", wait="decided")
    with relevo.JobEvents(engine.kafka, engine.cluster, **arguments) as events:  # type: ignore[arg-type]
        assert next(events).key == "b"


def test_a_position_whose_events_are_gone_is_an_error_and_no_jump(
    engine: EngineThread, client: relevo.Client
) -> None:
    for _ in range(20):
        client.create(TYPE, wait="decided")
    first = dict.fromkeys(range(2), 0)
    wanted = [TopicPartition(f"{engine.cluster}.log", partition, 5) for partition in range(2)]
    client_of_topics = admin(engine.kafka)
    for future in client_of_topics.delete_records(wanted).values():
        future.result(30)
    with (
        relevo.JobEvents(engine.kafka, engine.cluster, first) as events,
        pytest.raises(relevo.LogGap, match="trimmed"),
    ):
        list(events)
    with (
        relevo.JobEvents(engine.kafka, engine.cluster, {0: 10**9}) as events,
        pytest.raises(relevo.LogGap, match="another one"),
    ):
        list(events)


@pytest.mark.parametrize(
    "value", [b"garbage", encode(JobDue(10_000, 1, 1, -1, "k"))], ids=["garbage", "hole"]
)
def test_damage_stops_the_reader_behind_what_was_sound(
    engine: EngineThread, client: relevo.Client, value: bytes
) -> None:
    job = client.create(TYPE, wait="decided")
    wait_until(lambda: len(read(engine, keys=[job.key])) >= 2, "it is created and activated")
    engine.stop()
    producer = Producer({"bootstrap.servers": engine.kafka})
    producer.produce(f"{engine.cluster}.log", value, b"k", job.partition)
    producer.flush(30)
    with relevo.JobEvents(engine.kafka, engine.cluster, follow=False) as events:
        sound: list[str] = []
        with pytest.raises(relevo.LogGap, match=rf"\[{job.partition}\] at \d+"):
            sound.extend(event.key for event in events)
        with pytest.raises(relevo.LogGap):
            next(events)
    assert job.key in sound


async def test_coroutines_read_the_same(engine: EngineThread, client: relevo.Client) -> None:
    for number in range(5):
        client.create(TYPE, key=str(number), wait="decided")
    async with relevo.AsyncJobEvents(
        engine.kafka, engine.cluster, follow=False, kinds=["JobCreated"]
    ) as events:
        keys = [event.key async for event in events]
        assert sorted(keys) == ["0", "1", "2", "3", "4"]
        assert sum(events.positions.values()) > 0


def test_a_cluster_or_a_broker_that_is_not_there(brokers: Brokers) -> None:
    with pytest.raises(relevo.ClusterNotFound, match=r"nosuch\.log"):
        relevo.JobEvents(brokers.kafka, "nosuch")
    with pytest.raises(relevo.Unreachable, match=r"127\.0\.0\.1:1"):
        relevo.JobEvents("127.0.0.1:1")


def test_the_log_is_read_with_nothing_but_kafka_avro_and_the_schemas(
    engine: EngineThread, client: relevo.Client
) -> None:
    """The log is a public contract: its example must need no line of ours."""
    job = client.create(TYPE, {"a": 1}, wait="decided")
    lines = EXAMPLE.read_text().splitlines()
    assert len(lines) <= 24
    assert not any("relevo" in line for line in lines if line.startswith(("import", "from")))
    command = [sys.executable, str(EXAMPLE), engine.kafka, engine.cluster]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert [line.split()[1] for line in told if job.key in line][:2] == ["JobCreated", "JobActivated"]
    expected = [(event.partition, event.offset) for event in read(engine)]
    assert sorted(int(line.split()[0]) for line in told) == sorted(offset for _, offset in expected)


def test_the_example_reads_what_is_left_of_a_trimmed_log(brokers: Brokers, cluster_name: str) -> None:
    """It asked for offset 0, jumped to the end, and said nothing at all."""
    with WrittenLog(brokers.kafka, cluster_name) as log:
        log.write("a", "b", "c")
        log.trim(2)
        log.write("d")
        command = [sys.executable, str(EXAMPLE), log.kafka, log.cluster]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (told.returncode, told.stderr) == (0, "")
        assert [line.split()[:2] for line in told.stdout.splitlines()] == [
            ["2", "JobCreated"],
            ["4", "JobCreated"],
        ]
