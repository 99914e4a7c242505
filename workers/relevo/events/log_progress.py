"""How far a partition of the log was read, and whether the next event follows on the last."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from confluent_kafka import Consumer, KafkaException, TopicPartition

from relevo.errors import LogGap
from relevo.events.job_event import LogPosition, Skipped
from relevo_schemas.records import Event

_log: Final = logging.getLogger("relevo.events")

CALL_S = 10.0

#: Where to start, checked: a time in milliseconds, or by partition the next offset or the last event.
Place: TypeAlias = Literal["beginning", "now"] | int | Mapping[int, int | LogPosition]


@dataclass(slots=True)
class Progress:
    """How far a partition was read.

    Attributes:
        partition: Partition of the log.
        offset: Of the next record.
        begins: Where the log began when reading started.
        seq: Number of the last event before `offset`; None: not known.
        epoch: Term of that event.
        end: Offset to stop before; None: there is no end.
        at_end: Whether everything up to the end was read.
        trimmed_from: Set where the log begins behind the offset that was asked for, until the first event
            tells what is missing.
        tolerant: A trimmed log is no error: the beginning was asked for, wherever it is.
    """

    partition: int
    offset: int
    begins: int
    seq: int | None = None
    epoch: int = 0
    end: int | None = None
    at_end: bool = False
    trimmed_from: int | None = None
    tolerant: bool = False

    def missing_before(self, event: Event, offset: int, where: str) -> Skipped | None:
        """What was trimmed between the last event and this one; changes nothing.

        Raises:
            LogGap: It doesn't follow on the last, and trimming is not why.
        """
        if event.epoch < self.epoch:
            raise LogGap(
                f"{where} is of term {event.epoch}, after events of term {self.epoch}: it was written by a "
                f"deposed leader, or the topic was made anew"
            )
        missing = None if self.seq is None else event.seq - self.seq - 1
        if missing is not None and (missing < 0 or (missing > 0 and self.trimmed_from is None)):
            raise LogGap(
                f"{where} has event {event.seq}, expected {event.seq - missing}: the log has a hole or a "
                f"repeat, or the topic was made anew"
            )
        if self.trimmed_from is None or missing == 0:
            return None
        return Skipped(self.partition, self.trimmed_from, offset, missing)

    def take(self, event: Event, offset: int) -> None:
        """Go on behind ``event``."""
        self.offset, self.seq, self.epoch, self.trimmed_from = offset + 1, event.seq, event.epoch, None
        self.tolerant = False


def begin(
    consumer: Consumer, topic: str, partitions: list[int], start: Place, *, to_end: bool
) -> list[Progress]:
    """Where to begin in each partition: now is when this is called, not when the first fetch gets there.

    ``to_end`` bounds the reading by what is stable now.

    Raises:
        KafkaException: Kafka doesn't answer.
    """
    times: dict[int, int] = {}
    if isinstance(start, int):
        asked = [TopicPartition(topic, each, start) for each in partitions]
        times = {each.partition: each.offset for each in consumer.offsets_for_times(asked, timeout=CALL_S)}
    found = []
    for partition in partitions:
        # For a reader of committed records, the end is that of what no open transaction holds up.
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CALL_S)
        progress = _begin_one(partition, start, times.get(partition, -1), low, high)
        if to_end:
            progress.end = high
            progress.at_end = progress.offset == high
        found.append(progress)
    return found


def _begin_one(partition: int, start: Place, at_time: int, low: int, high: int) -> Progress:
    if isinstance(start, Mapping) and partition in start:
        return _behind(partition, start[partition], low)
    if start == "now":
        return Progress(partition, high, low)
    if isinstance(start, int):
        offset = at_time if at_time >= 0 else high
        trimmed = offset == low > 0
        return Progress(partition, offset, low, trimmed_from=0 if trimmed else None, tolerant=True)
    return Progress(partition, low, low, seq=0, trimmed_from=0 if low > 0 else None, tolerant=True)


def _behind(partition: int, last: int | LogPosition, low: int) -> Progress:
    """Reading that goes on behind a stored position."""
    if isinstance(last, LogPosition):
        return Progress(partition, last.offset + 1, low, seq=last.seq, epoch=last.epoch)
    # Whoever starts at 0 has missed nothing so far.
    return Progress(partition, last, low, seq=0 if last == 0 else None)


def known(place: TopicPartition) -> int | LogPosition:
    """What a group's stored position says; one that another program committed is an offset alone."""
    seq, _, epoch = (place.metadata or "").partition(" ")
    if not (seq.isdigit() and epoch.isdigit()):
        return place.offset
    return LogPosition(place.partition, place.offset - 1, int(seq), int(epoch))


def stored(topic: str, progress: Progress) -> TopicPartition:
    """A position for the group to store, which `known` reads."""
    metadata = f"{progress.seq} {progress.epoch}" if progress.seq is not None else None
    return TopicPartition(topic, progress.partition, progress.offset, metadata or "")


def keep(consumer: Consumer, topic: str, fresh: list[Progress]) -> None:
    """Store where a group begins "now": the next member's "now" would leave out what lies between.

    Where the group is being shared out anew it can't be stored; whoever gets the partition begins then.
    """
    if not fresh:
        return
    try:
        consumer.commit(offsets=[stored(topic, each) for each in fresh], asynchronous=False)
    except KafkaException as error:
        _log.info("%s: where the group begins could not be stored: %s", topic, error.args[0].str())
