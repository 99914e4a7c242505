"""Consumer groups of event readers: shared partitions, stored positions, members that come, leave and die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import relevo
from tests.support.brokers import Brokers
from tests.support.waiting import wait_until
from tests.support.written_log import WrittenLog

PARTITIONS = 4
PROTOCOLS = [pytest.param({}, id="classic"), pytest.param({"group.protocol": "consumer"}, id="consumer")]


@pytest.fixture
def log(brokers: Brokers, cluster_name: str) -> Iterator[WrittenLog]:
    with WrittenLog(brokers.kafka, cluster_name, PARTITIONS) as log:
        for partition in range(PARTITIONS):
            log.write(*(f"{partition}-{number}" for number in range(10)), partition=partition)
        yield log


def member(log: WrittenLog, options: dict[str, Any], **more: Any) -> relevo.JobEvents:
    return relevo.JobEvents(log.kafka, log.cluster, group=f"{log.cluster}.g", **options, **more)


def read_until(reader: relevo.JobEvents, count: int) -> list[relevo.JobEvent]:
    found: list[relevo.JobEvent] = []

    def enough() -> bool:
        found.extend(reader.read(0.5))
        return len(found) >= count

    wait_until(enough, f"{count} events are read")
    return found


@pytest.mark.parametrize("options", PROTOCOLS)
def test_members_share_the_partitions_and_take_over_from_each_other(
    log: WrittenLog, options: dict[str, Any]
) -> None:
    """Each event is told once while everybody commits, in order within its partition, whoever reads it."""
    seen: list[relevo.JobEvent] = []
    with ExitStack() as members:
        first = members.enter_context(member(log, options))
        seen += read_until(first, 10 * PARTITIONS)
        assert first.commit()
        second = members.enter_context(member(log, options))

        def shared() -> bool:
            for each in (first, second):
                seen.extend(each.read(0.1))
                each.commit(0.2)
            return {len(first.positions), len(second.positions)} == {PARTITIONS // 2}

        wait_until(shared, "each member has half of the partitions")
        assert not set(first.positions) & set(second.positions)
        for partition in range(PARTITIONS):
            log.write(f"{partition}-x", f"{partition}-y", partition=partition)
        mine, theirs = read_until(first, PARTITIONS), read_until(second, PARTITIONS)
        assert {each.partition for each in mine} == set(first.positions)
        assert {each.partition for each in theirs} == set(second.positions)
        assert first.commit()
        assert second.commit()
        seen += mine + theirs
        second.close()
        wait_until(lambda: not first.read(0.1) and len(first.positions) == PARTITIONS, "one has all again")
        for partition in range(PARTITIONS):
            log.write(f"{partition}-z", partition=partition)
        seen += read_until(first, PARTITIONS)
    assert Counter(Counter(event.key for event in seen).values()) == {1: PARTITIONS * 13}
    for partition in range(PARTITIONS):
        seqs = [event.event.seq for event in seen if event.partition == partition]
        assert seqs == list(range(1, 14))


@pytest.mark.parametrize("options", PROTOCOLS)
def test_what_was_not_committed_comes_again(log: WrittenLog, options: dict[str, Any]) -> None:
    with member(log, options) as reader:
        read_until(reader, 10 * PARTITIONS)
    with member(log, options) as reader:
        first = reader.read(30, limit=1)
        assert reader.commit()
    with member(log, options, follow=False) as reader:
        again = list(reader)
    assert len(again) == 10 * PARTITIONS - 1
    assert first[0].position not in {event.position for event in again}


def test_a_stored_position_of_a_trimmed_log(log: WrittenLog) -> None:
    """The group would jump over events in silence, as auto.offset.reset does."""
    with member(log, {}) as reader:
        read_until(reader, 10 * PARTITIONS)
        assert reader.commit()
    for partition in range(PARTITIONS):
        log.write("lost", "lost too", "kept", partition=partition)
        log.trim(13, partition)
    with member(log, {}) as reader, pytest.raises(relevo.LogGap, match=r"2 events, offsets 1[01] to 12"):
        list(reader)
    with member(log, {}, follow=False, on_gap="skip") as reader:
        found = list(reader)
    assert [(event.key, event.skipped and event.skipped.events) for event in found] == [
        ("kept", 2)
    ] * PARTITIONS


def test_types_are_known_to_whoever_takes_a_partition_over(log: WrittenLog) -> None:
    """The end of a job would be missed by a member that hasn't read its beginning."""
    with member(log, {}, types=["work"]) as reader:
        read_until(reader, 10 * PARTITIONS)
        assert reader.commit()
    log.write("0-3", kind="completed")
    with member(log, {}, types=["work"], follow=False) as reader:
        assert [(event.key, event.kind) for event in reader] == [("0-3", "JobCompleted")]


def test_a_position_that_another_tool_has_set(log: WrittenLog) -> None:
    """Operators reset groups with Kafka's own tools, which know of offsets alone."""
    tool = Consumer({"bootstrap.servers": log.kafka, "group.id": f"{log.cluster}.g"})
    places = [TopicPartition(log.topic, partition, 8) for partition in range(PARTITIONS)]
    tool.commit(offsets=places, asynchronous=False)
    tool.close()
    with member(log, {}, follow=False) as reader:
        assert len(list(reader)) == 2 * PARTITIONS


def test_commit_needs_a_group_and_an_open_reader(log: WrittenLog) -> None:
    with relevo.JobEvents(log.kafka, log.cluster) as reader, pytest.raises(relevo.InvalidRequest):
        reader.commit()
    closed = member(log, {})
    closed.close()
    with pytest.raises(relevo.Closed):
        closed.commit()


async def test_coroutines_in_a_group(log: WrittenLog) -> None:
    for expected in (10 * PARTITIONS, 0):
        async with relevo.AsyncJobEvents(
            log.kafka, log.cluster, group=f"{log.cluster}.g", follow=False
        ) as reader:
            assert len([event async for event in reader]) == expected
            assert await reader.commit()
