"""Notices when somebody's open transaction holds a partition's readers back: nothing else would say so.

A reader of committed records gets none from where the oldest open transaction begins. Ours are over within
ten seconds, whatever happens to their producers; another program's may stay open for a quarter of an hour or,
where its end was lost, for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relevo_partitions.observer import Observer
from relevo_partitions.ports import Reader, Stability

AGAIN_S: Final = 60.0
"""How often it is told while it lasts."""


class HeldBackWatch:
    """Follows one partition of a topic. Used by one thread; `text` may be read from any.

    Args:
        topic: Name of the topic.
        partition: Number of the partition.
        limit_s: For so long the stable offset may stand still although records lie behind it. Above the
            timeout of our own transactions.
        observer: Told how many records wait, and the fault ``held_back``.
        now: Seconds of a clock that never goes back.
        of: The partition of the cluster that the fault is told of, where that has another number.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        limit_s: float,
        observer: Observer,
        now: Callable[[], float],
        *,
        of: int | None = None,
    ) -> None:
        self.text: str | None = None
        """What is the matter, for people; None where nothing is."""
        self._topic, self._partition = topic, partition
        self._of = partition if of is None else of
        self._limit_s = limit_s
        self._observer = observer
        self._now = now
        self._stable, self._records = -1, 0
        self._since = self._told_at = 0.0

    def look(self, reader: Reader) -> None:
        """Take in what ``reader`` last heard; asks nobody."""
        self.take(reader.stability())

    def take(self, found: Stability) -> None:
        """Take in how the partition stands now."""
        stable, end = found
        if stable < 0 or stable >= end:
            self._clear(-1)
            return
        now = self._now()
        if stable != self._stable:
            self._clear(stable)
            self._since = now
        elif now - self._since >= self._limit_s:
            self._tell(now, end - stable)

    def _tell(self, now: float, records: int) -> None:
        if records != self._records:
            self._records = records
            self._observer.held_back(self._topic, self._partition, records)
        if self.text is not None and now - self._told_at < AGAIN_S:
            return
        self._told_at = now
        self.text = (
            f"{self._topic} [{self._partition}]: {records} records have waited for {now - self._since:.0f} s "
            f"behind offset {self._stable}, where another producer has a transaction open. To end it: "
            f"kafka-transactions.sh --bootstrap-server … abort --topic {self._topic} "
            f"--partition {self._partition} --start-offset {self._stable}"
        )
        self._observer.fault(self._of, "held_back", self.text)

    def close(self) -> None:
        """The reader is read no more."""
        self._clear(-1)

    def _clear(self, stable: int) -> None:
        self._stable, self._records = stable, 0
        if self.text is not None:
            self.text = None
            self._observer.held_back(self._topic, self._partition, 0)
