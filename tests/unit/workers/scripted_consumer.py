"""A consumer that does what the test says, and an `ActivationConsumer` on it whose turns the test takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from relevo.consumer.commits import KafkaError, KafkaException  # type: ignore[attr-defined]
from relevo.consumer.consumer import ActivationConsumer, Arrivals
from relevo.consumer.offsets import Entry, OffsetTracker
from relevo.stats import WorkerStats

__all__ = ["TOPIC", "KafkaError", "KafkaException", "Place", "Read", "Reading", "ScriptedConsumer", "Trouble"]

TOPIC = "c.activations.t"


class Place:
    """A topic's partition and an offset, as librdkafka names them."""

    def __init__(self, partition: int, offset: int = -1, error: KafkaError | None = None) -> None:
        self.topic, self.partition, self.offset, self.error = TOPIC, partition, offset, error


class Read:
    """A message."""

    def __init__(self, partition: int, offset: int, value: bytes = b"") -> None:
        self._place = (partition, offset)
        self._value = value

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def value(self) -> bytes:
        return self._value

    def error(self) -> KafkaError | None:
        return None


class Trouble(Read):
    """What comes in a message's place."""

    def __init__(self, code: int, partition: int = 0) -> None:
        super().__init__(partition, -1)
        self._code = code

    def error(self) -> KafkaError:
        return KafkaError(self._code)


class ScriptedConsumer:
    """Gives out what is in `polled`; `during_poll` and `during_consume` are served within the next read.

    Commits are taken, or answered with what stands in `refusals`; those that aren't waited for are answered
    by the next poll, unless `silent`. Of partitions in `withheld` none is taken, which is no refusal of the
    others.
    """

    def __init__(self, on_commit: Callable[..., None] = lambda *about: None) -> None:
        self.polled: list[Read] = []
        self.polls: list[float] = []
        self.during_poll: Callable[[], None] = lambda: None
        self.during_consume: Callable[[], None] = lambda: None
        self.assigned: set[int] = set()
        self.paused: set[int] = set()
        self.stored = 0
        self.sought: list[tuple[int, int]] = []
        self.asked: list[tuple[int, int]] = []
        self.committed_offsets: list[tuple[int, int]] = []
        self.refusals: list[int] = []
        self.withheld: set[int] = set()
        self.silent = False
        self.closed = False
        self._on_commit = on_commit
        self._answers: list[Callable[[], None]] = []

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def poll(self, timeout: float) -> Read | None:
        self.polls.append(timeout)
        self.during_poll()
        if not self.silent:
            answers, self._answers = self._answers, []
            for answer in answers:
                answer()
        if self.polled and self.polled[0].partition() not in self.paused:
            return self.polled.pop(0)
        time.sleep(min(timeout, 0.001))
        return None

    def consume(self, count: int, timeout: float) -> list[Read]:
        self.during_consume()
        return []

    def assignment(self) -> list[Place]:
        return [Place(each) for each in self.assigned]

    def incremental_assign(self, places: list[Any]) -> None:
        self.assigned |= {each.partition for each in places}

    def incremental_unassign(self, places: list[Any]) -> None:
        gone = {each.partition for each in places}
        self.assigned -= gone
        self.paused -= gone

    def pause(self, places: list[Any]) -> None:
        self.paused |= {each.partition for each in places}

    def resume(self, places: list[Any]) -> None:
        self.paused -= {each.partition for each in places}

    def committed(self, places: list[Any], timeout: float) -> list[Place]:
        return [Place(each.partition, self.stored) for each in places]

    def get_watermark_offsets(
        self, place: Any, timeout: float = 0.0, cached: bool = False
    ) -> tuple[int, int]:
        return 0, 1_000

    def memberid(self) -> str:
        return "member"

    def position(self, places: list[Any]) -> list[Place]:
        return [Place(each.partition, -1001) for each in places]

    def seek(self, place: Any) -> None:
        self.sought.append((place.partition, place.offset))

    def commit(self, offsets: list[Any], asynchronous: bool) -> list[Place] | None:
        self.asked += [(each.partition, each.offset) for each in offsets]
        code = self.refusals.pop(0) if self.refusals else None
        not_taken = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        places = [
            Place(each.partition, each.offset, not_taken if each.partition in self.withheld else None)
            for each in offsets
        ]
        if code is None:
            taken = [(each.partition, each.offset) for each in places if each.error is None]
            self.committed_offsets += taken
            self.stored = max([self.stored, *(offset for _, offset in taken)])
        if asynchronous:
            error = KafkaError(code) if code is not None else None
            self._answers.append(lambda: self._on_commit(error, places))
            return None
        if code is not None:
            raise KafkaException(KafkaError(code))
        return places

    def close(self) -> None:
        self.closed = True


class Reading:
    """An `ActivationConsumer` on a `ScriptedConsumer`, turned by hand.

    Args:
        hold: Keep what is delivered in `held`; else every delivery is finished at once.
        options: What the `ActivationConsumer` is made with.
    """

    def __init__(self, *, hold: bool = False, buffer: int = 100, kafka: Any = None, **options: Any) -> None:
        self.tracker = OffsetTracker()
        self.stats = WorkerStats()
        self.seen: list[int] = []
        self.held: list[Entry] = []
        self._hold = hold
        self.worker = ActivationConsumer(
            "nowhere:1",
            kafka or {},
            topic=TOPIC,
            group="g",
            tracker=self.tracker,
            deliver=self._deliver,
            buffer=buffer,
            drain_s=0.0,
            stats=self.stats,
            **options,
        )
        self.kafka = self.worker._consumer = ScriptedConsumer(self.worker._commits.answered)

    def _deliver(self, arrivals: Arrivals) -> None:
        self.seen += [entry.offset for entry, _ in arrivals]
        if self._hold:
            self.held += [entry for entry, _ in arrivals]
        else:
            self.tracker.finish([entry for entry, _ in arrivals])

    def assign(self, stored: int, *partitions: int) -> None:
        self.kafka.stored = stored
        places: Any = [Place(each) for each in partitions or (0,)]
        self.worker._on_assign(self.kafka, places)  # type: ignore[arg-type]

    def revoke(self) -> None:
        self.worker._on_revoke(self.kafka, [Place(0)])  # type: ignore[arg-type,list-item]

    def lose(self) -> None:
        self.worker._on_lost(self.kafka, [Place(0)])  # type: ignore[arg-type,list-item]

    def turn(self, *messages: Read) -> None:
        self.kafka.polled += messages
        self.worker._next_commit = 0.0
        self.worker._turn()
