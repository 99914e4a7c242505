"""Reading while partitions come and go, against a consumer that does what the test says."""

from __future__ import annotations

from typing import Any

from tests.unit.workers.scripted_consumer import KafkaError, KafkaException, Place, Read, Reading


def test_a_message_read_just_before_its_partition_is_lost_moves_no_offset() -> None:
    """Another worker has the partition: a commit by us would make it skip all that lies before."""
    reading = Reading()
    reading.assign(300)
    reading.kafka.during_consume = reading.lose
    reading.kafka.stored = 184  # where the others are by now
    reading.turn(Read(0, 350))
    reading.kafka.during_consume = lambda: None
    reading.turn()
    assert reading.kafka.committed_offsets == []
    assert reading.tracker.owned() == []


def test_a_message_of_a_former_ownership_does_not_count_in_the_next() -> None:
    """The partition comes back at an earlier offset: what lies between must be read."""
    reading = Reading()
    reading.assign(300)

    def lose_and_regain() -> None:
        reading.lose()
        reading.assign(184)

    reading.kafka.during_consume = lose_and_regain
    reading.turn(Read(0, 350))
    reading.kafka.during_consume = lambda: None
    for offset in range(184, 190):
        reading.turn(Read(0, offset))
    assert reading.seen[-6:] == list(range(184, 190))
    assert max(offset for _, offset in reading.kafka.committed_offsets) <= 190


def test_messages_of_a_partition_that_is_not_ours_are_left_alone() -> None:
    reading = Reading()
    reading.turn(Read(0, 350))
    reading.turn()
    assert (reading.seen, reading.tracker.owned(), reading.kafka.committed_offsets) == ([], [], [])


def test_what_librdkafka_assigned_by_itself_is_read_from_where_the_group_is() -> None:
    """Our part of the assignment failed; the message that tells us so isn't the first one due."""
    reading = Reading()
    reading.kafka.assigned, reading.kafka.stored = {0}, 184
    reading.turn(Read(0, 350))
    assert reading.kafka.sought == [(0, 184)]
    for offset in range(184, 187):
        reading.turn(Read(0, offset))
    assert reading.seen == [184, 185, 186]


def test_a_batch_that_a_raising_callback_swallowed_is_read_again() -> None:
    """Librdkafka's position needn't have moved over it, so nothing else would tell."""
    reading = Reading()
    reading.assign(184)

    def swallow() -> None:
        raise RuntimeError("a callback without a guard")

    reading.kafka.during_consume = swallow
    reading.turn(Read(0, 184))
    assert reading.seen == [184]
    assert reading.kafka.sought == [(0, 185)]


def test_all_that_was_there_at_the_assignment_may_have_been_started_before() -> None:
    """Its former owner ran on behind a job that takes long, up to 20 times a buffer that isn't ours."""
    reading = Reading(hold=True, buffer=5)
    reading.assign(100)
    reading.turn(Read(0, 100), Read(0, 999))
    reading.turn(Read(0, 1_000))
    reading.turn()
    assert [(each.offset, each.doubtful) for each in reading.held] == [
        (100, True),
        (999, True),
        (1_000, False),
    ]


def test_where_kafka_did_not_say_how_far_a_partition_goes_all_may_have_been_started() -> None:
    """Until it is known, which librdkafka is told with what it reads."""
    reading = Reading(hold=True)
    ends: list[tuple[int, int]] = [(-1001, -1001), (0, 1_000)]

    def committed(places: list[Any], timeout: float) -> list[Place]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    reading.kafka.committed = committed  # type: ignore[method-assign]
    reading.kafka.get_watermark_offsets = lambda *_, **__: ends[0]  # type: ignore[method-assign]
    reading.assign(0)
    reading.turn(Read(0, 5))
    assert reading.held[0].doubtful
    ends.pop(0)
    reading.turn(Read(0, 6))
    reading.turn(Read(0, 1_000))
    assert [each.doubtful for each in reading.held] == [True, True, False]
