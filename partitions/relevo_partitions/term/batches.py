"""How much of the commands goes into one transaction.

A backlog that piled up while nobody led must not become one transaction that no broker takes in time, or one
so large that its making keeps the process from answering ZooKeeper: the leader would meet it again and again.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from relevo_partitions.ports import Reader
from relevo_partitions.statemachine import Incoming

SHRINK: Final = 8
"""A batch that didn't commit is tried again with so many times fewer commands."""
CALM: Final = 16
"""After so many batches in a row that did commit, the next ones may be twice as large."""


class Batches:
    """Cuts what a reader has into batches, smaller ones after a batch that didn't commit.

    Args:
        records_max: Most commands of a batch.
        bytes_max: No further command is added to a batch that has so many bytes.
    """

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._limit = records_max
        self._committed = 0
        self._held: deque[Incoming] = deque()
        self._open: deque[int] = deque()
        self.full = False
        """Whether the last batch has as much as one may have: there is a backlog."""

    @property
    def reached(self) -> int | None:
        """Offset of the first command that was read and is in no batch yet; None where there is none."""
        return self._held[0].offset if self._held else None

    def next(self, reader: Reader, wait_s: float) -> list[Incoming]:
        """The next batch; see `relevo_partitions.ports.Reader.read`. To be followed by `done`."""
        if not self._held:
            self._held.extend(reader.read(wait_s, self._records_max))
        batch: list[Incoming] = []
        size = 0
        while self._held and len(batch) < self._limit and size < self._bytes_max:
            batch.append(self._held.popleft())
            size += len(batch[-1].value or b"")
        self.full = len(batch) == self._limit or size >= self._bytes_max
        self._open.append(len(batch))
        return batch

    def done(self) -> None:
        """The oldest batch that wasn't done has committed, or there was nothing to commit."""
        if self._open.popleft() and self._limit < self._records_max:
            self._committed += 1
            if self._committed % CALM == 0:
                self._limit = min(self._limit * 2, self._records_max)

    def start_over(self) -> None:
        """The oldest batch that wasn't done didn't commit, and another reader will begin with it anew."""
        failed = next(filter(None, self._open), 0)
        if failed:
            self._limit = max(1, failed // SHRINK)
        self._committed = 0
        self._open.clear()
        self._held.clear()
