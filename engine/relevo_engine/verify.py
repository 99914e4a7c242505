"""Checks what a job log promises its readers, record by record. Pure: somebody else reads Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from relevo_schemas import codec
from relevo_schemas.delivery import Barrier
from relevo_schemas.errors import RecordError
from relevo_schemas.events import LeaderElected
from relevo_schemas.records import Event

FAULTS_MAX: Final = 100
"""Faults that are kept in words; further ones only count."""


@dataclass(slots=True)
class PartitionCheck:
    """Where one partition's log stands.

    Attributes:
        seq: Number of its last event, 0 before the first.
        epoch: Its current term, 0 before the first.
        at: Time of its last event.
    """

    seq: int = 0
    epoch: int = 0
    at: int = 0


class LogCheck:
    """What a job log promises: numbers without hole or repeat, rising epochs, time that never goes back.

    Feed it every record from the beginning, each partition in order.

    Args:
        topic: Name of the log's topic, for the faults' texts.

    Attributes:
        contiguous: No number was missing, doubled or out of order, and every record could be read.
        epochs_rising: Every term's epoch was above the ones before, every event of the term it stood in.
        faults: What is wrong, in words, the first `FAULTS_MAX`.
        fault_count: How much is wrong.
    """

    def __init__(self, topic: str) -> None:
        self.contiguous = True
        self.epochs_rising = True
        self.faults: list[str] = []
        self.fault_count = 0
        self._topic = topic
        self._partitions: dict[int, PartitionCheck] = {}

    @property
    def sound(self) -> bool:
        """Nothing is wrong so far."""
        return not self.fault_count

    def fault(self, text: str) -> None:
        """Note that something is wrong."""
        self.fault_count += 1
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)

    def take(self, partition: int, offset: int, value: bytes | None) -> Event | None:
        """Check the next record of ``partition``; the event in it, or None where it holds none."""
        where = f"{self._topic}[{partition}] offset {offset}"
        try:
            record = codec.decode(value)
        except RecordError as error:
            self.contiguous = False
            self.fault(f"{where}: {error}")
            return None
        if isinstance(record, Barrier):
            return None
        if not isinstance(record, Event):
            self.contiguous = False
            self.fault(f"{where}: {type(record).__name__} doesn't belong on the log")
            return None
        self._check(where, self._partitions.setdefault(partition, PartitionCheck()), record)
        return record

    def _check(self, where: str, so_far: PartitionCheck, event: Event) -> None:
        if event.seq != so_far.seq + 1:
            self.contiguous = False
            self.fault(f"{where}: seq {event.seq} follows {so_far.seq}")
        if isinstance(event, LeaderElected):
            if event.epoch <= so_far.epoch:
                self.epochs_rising = False
                self.fault(f"{where}: epoch {event.epoch} is announced after {so_far.epoch}")
        elif event.epoch != so_far.epoch:
            self.epochs_rising = False
            self.fault(f"{where}: an event of epoch {event.epoch} in the term of epoch {so_far.epoch}")
        if event.at < so_far.at:
            self.fault(f"{where}: time goes back from {so_far.at} to {event.at}")
        so_far.seq, so_far.epoch, so_far.at = event.seq, event.epoch, max(so_far.at, event.at)
