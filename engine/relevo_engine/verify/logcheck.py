"""`LogCheck`: the order of a log, for those who read it themselves and keep what it tells."""

from __future__ import annotations

from typing import Final

from relevo_engine.verify.findings import Fault, Invariant
from relevo_engine.verify.order import Order
from relevo_engine.verify.place import read_record
from relevo_schemas.delivery import Barrier
from relevo_schemas.records import Event

FAULTS_MAX: Final = 100
"""Faults that are kept in words; further ones only count."""


class LogCheck:
    """What holds between a log's events: numbers without hole or repeat, rising epochs, time that goes on.

    Feed it every record from the beginning, each partition in order. `LogVerifier` checks more: the jobs.

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
        self._partitions: dict[int, Order] = {}

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
        found = read_record(value)
        if isinstance(found, Barrier):
            return None
        if isinstance(found, Event):
            faults, _ = self._partitions.setdefault(partition, Order()).take(found)
        else:
            faults = [found]
        for each in faults:
            self._note(f"{self._topic}[{partition}] offset {offset}", each)
        return found if isinstance(found, Event) else None

    def _note(self, where: str, fault: Fault) -> None:
        if fault.invariant in (Invariant.SEQ, Invariant.RECORD):
            self.contiguous = False
        elif fault.invariant is Invariant.EPOCH:
            self.epochs_rising = False
        self.fault(f"{where}: expected {fault.expected}, found {fault.found}")
