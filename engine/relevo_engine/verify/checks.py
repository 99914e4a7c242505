"""`LogVerifier`: takes the records of a log, checks every promise, and remembers what it found."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from relevo_engine.verify.expected import look_for, note_pending
from relevo_engine.verify.facts import CACHED_MAX, FactStore
from relevo_engine.verify.findings import Fault, Invariant, Violation
from relevo_engine.verify.order import Order
from relevo_engine.verify.place import check_key, check_place, key_of, read_record
from relevo_engine.verify.report import Expected, PartitionReport, VerifyReport
from relevo_engine.verify.stories import Remembered, Stories
from relevo_engine.verify.tally import Tally, Term
from relevo_engine.verify.witnesses import Reach, Witness
from relevo_schemas.delivery import Barrier
from relevo_schemas.events import LeaderElected
from relevo_schemas.records import Event

VIOLATIONS_MAX: Final = 100
"""Violations that are kept; further ones only count, but for the first of each partition."""
_BATCH_MAX: Final = 2_000


class LogRecord(NamedTuple):
    """A record of the log as read from Kafka."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class _Partition:
    """What is remembered of one partition."""

    def __init__(self, number: int, start: int, end: int, high: int, stories: Stories, reach: Reach) -> None:
        self.number = number
        self.start = start
        self.end = end
        self.high = high
        self.order = Order(trimmed=start > 0)
        self.stories = stories
        self.reach = reach
        self.term = Term()
        self.violations = 0
        self.first: Violation | None = None

    def report(self) -> PartitionReport:
        order = self.order
        return PartitionReport(
            self.number, self.start, self.end, self.high, self.high - self.end, order.trimmed,
            order.first_seq, order.seq, order.epoch, order.at, self.violations, self.first,
            [each.who for each in self.reach.witnesses],
        )  # fmt: skip


class LogVerifier:
    """Checks a log that somebody else reads. For one thread; used in a ``with`` block.

    Memory doesn't grow with the log: what must be known of each job lies in a temporary database.

    Args:
        topic: Name of the log, for the findings.
        partitions: How many it has.
        remembered: For how long the cluster remembers ended jobs.
        folder: Where the database goes; by default where temporary files do.
        cached_max: Jobs held in memory.
    """

    def __init__(
        self,
        topic: str,
        partitions: int,
        *,
        remembered: Remembered | None = None,
        folder: Path | None = None,
        cached_max: int = CACHED_MAX,
    ) -> None:
        self._topic = topic
        self._count = partitions
        self._remembered = remembered or Remembered()
        self._store = FactStore(folder, cached_max=cached_max)
        self._expected: Expected | None = None
        self._partitions: dict[int, _Partition] = {}
        self._tally = Tally()
        self._violations: list[Violation] = []
        self._by_invariant: Counter[str] = Counter()
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        """Its end deletes the database."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete the database."""
        self._store.close()

    def begin(
        self,
        partition: int,
        start: int = 0,
        end: int = 0,
        high: int = 0,
        witnesses: Collection[Witness] = (),
    ) -> None:
        """Announce a partition before its records; one that begins above offset 0 was trimmed.

        Args:
            partition: Its number.
            start: First offset that Kafka holds.
            end: Up to where it will be read.
            high: End of all that is written.
            witnesses: Whoever knew, before these bounds were asked for, how far the log reached.
        """
        stories = Stories(partition, self._store, self._remembered)
        begun = _Partition(partition, start, end, high, stories, Reach(witnesses))
        self._partitions[partition] = begun
        fault = begun.reach.begin(high)
        if fault is not None:
            self._note(begun, high, fault)

    def extend(self, partition: int, end: int, high: int) -> None:
        """Announce that a partition is read on, up to ``end``; for ``high`` see `begin`."""
        found = self._partitions[partition]
        found.end, found.high = max(found.end, end), max(found.high, high)

    def take(self, records: Sequence[LogRecord]) -> None:
        """Check the next records, each partition's in order.

        Raises:
            VerifyError: There is no room for the facts.
        """
        for first in range(0, len(records), _BATCH_MAX):
            batch = [(each, read_record(each.value)) for each in records[first : first + _BATCH_MAX]]
            self._store.load({key_of(found) for _, found in batch if isinstance(found, Event)})
            for record, found in batch:
                self._tally.counts.records += 1
                partition = self._partitions[record.partition]
                if isinstance(found, Event):
                    self._event(partition, record, found)
                elif isinstance(found, Barrier):
                    self._tally.counts.barriers += 1
                else:
                    self._note(partition, record.offset, found)

    def fault(self, partition: int, offset: int, fault: Fault) -> None:
        """Note what whoever reads the log has found."""
        self._note(self._partitions[partition], offset, fault)

    def position(self, partition: int) -> int:
        """Offset of the first command of ``partition`` that no event speaks of."""
        return self._partitions[partition].order.position

    def short(self) -> set[int]:
        """Partitions in which something is missing that their witnesses tell of, as far as they were read."""
        return {
            number
            for number, each in self._partitions.items()
            if each.reach.missing(each.order, each.end) is not None
        }

    def truncated(self, partitions: Iterable[int]) -> None:
        """Note what `short` found in these, where no open transaction can hold it back."""
        for each in (self._partitions[number] for number in sorted(partitions)):
            fault = each.reach.missing(each.order, each.end)
            if fault is not None:
                each.reach.told = True
                self._note(each, each.end, fault, each.order.seq)

    def pending(self, partition: int, keys: Collection[str]) -> None:
        """Jobs of ``partition`` whose creation stands in the commands, at `position` or later.

        Raises:
            VerifyError: There is no room for the facts.
        """
        note_pending(keys, partition, self._store)

    def expect(self, keys: Iterable[str]) -> None:
        """Look for jobs that were accepted, once the log was read to its end; a lost one is a violation.

        Raises:
            VerifyError: There is no room for the facts.
        """
        trimmed = {each.number: each.order.trimmed for each in self._partitions.values()}
        self._expected = look_for(keys, self._store, self._count, trimmed, self._lost)

    def _lost(self, partition: int, key: str) -> None:
        fault = Fault(Invariant.ACCEPTED, f"the accepted job {key!r}", "nothing about it")
        self._note(self._partitions[partition], -1, fault, key=key)

    def report(self) -> VerifyReport:
        """What was found so far."""
        counts = self._tally.counts
        open_jobs: Counter[str] = Counter()
        for each in self._partitions.values():
            for state, count in each.stories.open.items():
                if count or state is not None:
                    open_jobs[state.value if state is not None else "UNKNOWN"] += count
        counts.open = dict(open_jobs)
        counts.refusals = dict(self._tally.refusals)
        return VerifyReport(
            self._topic,
            [self._partitions[number].report() for number in sorted(self._partitions)],
            counts,
            list(self._tally.takeovers),
            list(self._violations),
            self._by_invariant.total(),
            dict(self._by_invariant),
            self._expected,
            round(time.monotonic() - self._began, 3),
        )

    def _event(self, partition: _Partition, record: LogRecord, event: Event) -> None:
        counts, order = self._tally.counts, partition.order
        counts.events += 1
        key = key_of(event)
        fault = check_key(key, record.key)
        if fault is not None:
            self._note(partition, record.offset, fault, event.seq, key)
        known = self._store.get(key) if key else None
        misplaced = check_place(event, key, partition.number, self._count, known)
        if misplaced is not None:
            self._note(partition, record.offset, misplaced, event.seq, key)
        last_at = order.at if order.first_seq else None
        faults, new = order.take(event)
        for fault in faults:
            self._note(partition, record.offset, fault, event.seq, key)
        if misplaced is not None or not new:
            return  # it is no part of this partition's story
        fault = partition.reach.meet(event.seq, event.epoch)
        if fault is not None:
            self._note(partition, record.offset, fault, event.seq, key)
        if isinstance(event, LeaderElected):
            self._tally.begin(partition.number, record.offset, event, last_at, partition.term)
            return
        self._tally.take(event, partition.term)
        fault = partition.stories.take(event, last_at or 0, incomplete=order.incomplete)
        if fault is not None:
            self._note(partition, record.offset, fault, event.seq, key)

    def _note(
        self, partition: _Partition, offset: int, fault: Fault, seq: int | None = None, key: str = ""
    ) -> None:
        self._by_invariant[fault.invariant.value] += 1
        partition.violations += 1
        if partition.first is not None and len(self._violations) >= VIOLATIONS_MAX:
            return
        violation = Violation(
            fault.invariant, self._topic, partition.number, offset, seq, key, fault.expected, fault.found
        )
        partition.first = partition.first or violation
        self._violations.append(violation)
