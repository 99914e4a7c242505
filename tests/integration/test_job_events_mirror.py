"""The mirror in the Confluent wire format: decoded by plain Avro, each event once, whatever is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

import relevo
from relevo.errors import ConfigurationError, Refused
from relevo.events.mirror import KIND, POSITION, ConfluentMirror
from relevo.events.registry import SchemaRegistry
from relevo_engine.local.kafka import admin
from tests.support.brokers import Brokers
from tests.support.schema_registry import SchemaRegistryServer, decode
from tests.support.waiting import wait_until
from tests.support.written_log import WrittenLog

PARTITIONS = 2


@pytest.fixture
def registry() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as registry:
        yield registry


@pytest.fixture
def log(brokers: Brokers, cluster_name: str) -> Iterator[WrittenLog]:
    with WrittenLog(brokers.kafka, cluster_name, PARTITIONS) as log:
        make_topic(log, topic_of(log), PARTITIONS)
        for partition in range(PARTITIONS):
            log.write(*(f"{partition}-{number}" for number in range(20)), partition=partition)
            log.write(f"{partition}-0", partition=partition, kind="completed")
        yield log


def topic_of(log: WrittenLog) -> str:
    return f"{log.cluster}.open"


def make_topic(log: WrittenLog, topic: str, partitions: int) -> None:
    client = admin(log.kafka)
    client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def mirror(log: WrittenLog, registry: SchemaRegistryServer, **more: Any) -> ConfluentMirror:
    return ConfluentMirror(topic_of(log), registry.url, log.kafka, log.cluster, follow=False, **more)


def copy_all(log: WrittenLog, registry: SchemaRegistryServer, **more: Any) -> int:
    count = 0
    with mirror(log, registry, **more) as copying:
        while not copying.ended:
            count += copying.copy()
    return count


def copied(log: WrittenLog) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": log.kafka,
            "group.id": "any-tool",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic_of(log), partition, 0) for partition in range(PARTITIONS)])
    found: list[Message] = []
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            found.append(message)
        else:
            ends += 1
    consumer.close()
    return found


def positions(messages: list[Message]) -> list[relevo.LogPosition]:
    return [relevo.LogPosition.parse(dict(m.headers() or ())[POSITION].decode()) for m in messages]  # type: ignore[union-attr]


def expected(log: WrittenLog) -> list[relevo.JobEvent]:
    with relevo.JobEvents(log.kafka, log.cluster, follow=False) as events:
        return list(events)


def test_any_tool_decodes_the_mirror(log: WrittenLog, registry: SchemaRegistryServer) -> None:
    assert copy_all(log, registry) == 21 * PARTITIONS
    messages = copied(log)
    pairs = zip(messages, positions(messages), strict=True)
    found = {(message.partition(), position.offset): message for message, position in pairs}
    assert len(found) == 21 * PARTITIONS
    for event in expected(log):
        message = found[event.partition, event.offset]
        name, fields = decode(registry.url, message.value() or b"")
        assert name == f"relevo.{event.kind}"
        assert dict(message.headers() or ())[KIND] == event.kind.encode()
        assert fields["seq"] == event.event.seq
        assert message.key() == event.key.encode()
        assert message.timestamp()[1] == event.at
        assert fields.get("key", fields.get("job", {}).get("key")) == event.key
    assert set(registry.subjects) >= {
        f"{topic_of(log)}-relevo.JobCreated",
        f"{topic_of(log)}-relevo.JobErrored",
    }


def test_it_goes_on_where_the_topic_ends(log: WrittenLog, registry: SchemaRegistryServer) -> None:
    copy_all(log, registry)
    assert copy_all(log, registry) == 0
    log.write("more", partition=1)
    assert copy_all(log, registry) == 1
    assert sorted(positions(copied(log))) == sorted(event.position for event in expected(log))


def test_aborted_leftovers_behind_the_last_copy(log: WrittenLog, registry: SchemaRegistryServer) -> None:
    """The last record that counts would not be found among the last offsets."""
    copy_all(log, registry)
    producer = Producer({"bootstrap.servers": log.kafka, "transactional.id": f"{log.cluster}-other"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(600):
        producer.produce(topic_of(log), str(number), partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    assert copy_all(log, registry) == 0


def test_killed_anywhere_each_event_is_copied_once(log: WrittenLog, registry: SchemaRegistryServer) -> None:
    dice = random.Random(3)
    command = [sys.executable, "-m", "relevo", "events", "mirror", "--to", topic_of(log), "--no-follow"]
    command += ["--kafka", log.kafka, "--cluster", log.cluster]
    environment = {**os.environ, "RELEVO_SCHEMA_REGISTRY": registry.url}
    for _ in range(5):
        for partition in range(PARTITIONS):
            log.write(*(f"x{number}" for number in range(700)), partition=partition)
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        time.sleep(dice.uniform(0.8, 1.8))  # the moment of the kill, not a wait for anything
        process.kill()
        process.communicate(timeout=60)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "events copied to" in done.stderr
    found = positions(copied(log))
    for partition in range(PARTITIONS):
        mine = [each.seq for each in found if each.partition == partition]
        assert mine == list(range(1, log.seqs[partition] + 1))


def test_an_older_mirror_can_write_no_more(log: WrittenLog, registry: SchemaRegistryServer) -> None:
    """Two of them would copy everything twice."""
    with mirror(log, registry) as old, mirror(log, registry) as new:
        with pytest.raises(Refused, match="another mirror"):
            wait_until(old.copy, "the old one reads events")
        wait_until(new.copy, "the new one copies")
    copy_all(log, registry)
    assert sorted(positions(copied(log))) == sorted(event.position for event in expected(log))


def test_a_log_that_was_trimmed_before_it_was_copied(log: WrittenLog, registry: SchemaRegistryServer) -> None:
    copy_all(log, registry)
    log.write("lost", "kept")
    log.trim(24)
    with pytest.raises(relevo.LogGap, match="1 events"):
        copy_all(log, registry)
    assert copy_all(log, registry, on_gap="skip") == 1


def test_topics_that_can_not_be_a_mirror(log: WrittenLog, registry: SchemaRegistryServer) -> None:
    def into(topic: str) -> None:
        ConfluentMirror(topic, registry.url, log.kafka, log.cluster).close()

    with pytest.raises(relevo.InvalidRequest, match="the cluster's own"):
        into(log.topic)
    with pytest.raises(relevo.ClusterNotFound, match="make it first"):
        into(f"{log.cluster}.nosuch")
    make_topic(log, f"{log.cluster}.narrow", 1)
    with pytest.raises(relevo.InvalidRequest, match="1 partitions, and must have as many"):
        into(f"{log.cluster}.narrow")
    producer = Producer({"bootstrap.servers": log.kafka})
    producer.produce(topic_of(log), b"somebody else's", partition=0)
    assert producer.flush(30) == 0
    with pytest.raises(relevo.InvalidRequest, match="is no copy of an event"):
        into(topic_of(log))


def test_a_mirror_that_was_emptied(log: WrittenLog, registry: SchemaRegistryServer) -> None:
    """It would be filled from the beginning again, without a word."""
    copy_all(log, registry)
    places = [TopicPartition(topic_of(log), partition, -1) for partition in range(PARTITIONS)]
    client = admin(log.kafka)
    for future in client.delete_records(places).values():
        future.result(30)
    with pytest.raises(relevo.LogGap, match="was written and is empty now"):
        copy_all(log, registry)


# The registry


def test_a_registry_that_refuses_fails_or_is_not_there(registry: SchemaRegistryServer) -> None:
    def register(url: str) -> int:
        return SchemaRegistry(url, timeout=5).register("a/b", '"string"')

    assert register(registry.url) == register(f"{registry.url}/")
    assert registry.subjects["a/b"] == 70_000
    assert register(f"http://user:p%40ss@{registry.address}") == 70_000
    assert registry.asked == [None, None, "Basic dXNlcjpwQHNz"]
    registry.answer = (409, "it doesn't fit")
    with pytest.raises(Refused, match=r"409.*it doesn't fit"):
        register(registry.url)
    registry.answer = (503, "soon")
    with pytest.raises(relevo.Unreachable, match="503") as told:
        register(f"http://user:secret@{registry.address}")
    assert "secret" not in str(told.value)
    with pytest.raises(relevo.Unreachable, match=r"doesn't answer at http://127\.0\.0\.1:1"):
        register("http://user:secret@127.0.0.1:1")
    for wrong in ("127.0.0.1:8081", "file:///etc/passwd", "http://", "http://a:b:c"):
        with pytest.raises(ConfigurationError):
            SchemaRegistry(wrong)
