"""Reading while partitions come and go, against a consumer that does what the test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relevo.consumer import ActivationConsumer, Arrivals
from relevo.offsets import OffsetTracker
from relevo.stats import WorkerStats

TOPIC = "c.activations.t"


class Place:
    """A topic's partition and an offset, as librdkafka names them."""

    def __init__(self, partition: int, offset: int = -1) -> None:
        self.topic, self.partition, self.offset, self.error = TOPIC, partition, offset, None


class Read:
    """A message."""

    def __init__(self, partition: int, offset: int) -> None:
        self._place = (partition, offset)

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def value(self) -> bytes:
        return b""

    def error(self) -> None:
        return None


class FakeConsumer:
    """Gives out what is in `polled`; `during_consume` is served, as callbacks are, within the next read."""

    def __init__(self) -> None:
        self.polled: list[Read] = []
        self.during_consume: Callable[[], None] = lambda: None
        self.assigned: set[int] = set()
        self.stored = 0
        self.sought: list[tuple[int, int]] = []
        self.committed_offsets: list[tuple[int, int]] = []

    def poll(self, timeout: float) -> Read | None:
        return self.polled.pop(0) if self.polled else None

    def consume(self, count: int, timeout: float) -> list[Read]:
        self.during_consume()
        return []

    def assignment(self) -> list[Place]:
        return [Place(each) for each in self.assigned]

    def incremental_assign(self, places: list[Any]) -> None:
        self.assigned |= {each.partition for each in places}

    def incremental_unassign(self, places: list[Any]) -> None:
        self.assigned -= {each.partition for each in places}

    def committed(self, places: list[Any], timeout: float) -> list[Place]:
        return [Place(each.partition, self.stored) for each in places]

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        return 0, 1_000

    def position(self, places: list[Any]) -> list[Place]:
        return [Place(each.partition, -1001) for each in places]

    def seek(self, place: Any) -> None:
        self.sought.append((place.partition, place.offset))

    def commit(self, offsets: list[Any], asynchronous: bool) -> None:
        self.committed_offsets += [(each.partition, each.offset) for each in offsets]


class Reading:
    """An `ActivationConsumer` on a `FakeConsumer`, turned by hand; every delivery is finished at once."""

    def __init__(self) -> None:
        self.tracker = OffsetTracker()
        self.seen: list[int] = []
        self.worker = ActivationConsumer(
            "nowhere:1",
            {},
            topic=TOPIC,
            group="g",
            tracker=self.tracker,
            deliver=self._deliver,
            buffer=100,
            drain_s=0.0,
            stats=WorkerStats(),
        )
        self.kafka = self.worker._consumer = FakeConsumer()

    def _deliver(self, arrivals: Arrivals) -> None:
        self.seen += [entry.offset for entry, _ in arrivals]
        self.tracker.finish([entry for entry, _ in arrivals])

    def assign(self, stored: int) -> None:
        self.kafka.stored = stored
        self.worker._on_assign(self.kafka, [Place(0)])  # type: ignore[arg-type,list-item]

    def lose(self) -> None:
        self.worker._on_lost(self.kafka, [Place(0)])  # type: ignore[arg-type,list-item]

    def turn(self, *messages: Read) -> None:
        self.kafka.polled += messages
        self.worker._next_commit = 0.0
        self.worker._turn()


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
