"""Ready jobs of one type, in the order they are to be handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from relevo_engine.core.job import ReadyEntry

SLACK: Final = 32
"""Dead entries that are always tolerated, so that a small queue isn't rebuilt all the time."""


class Queued(Protocol):
    """What a queue must know of a job: its current place, None when it has none."""

    entry: ReadyEntry | None


def rank_of(ready_at: int, priority: int, aging_ms: int) -> int:
    """The order in which ready jobs are handed out, lowest first.

    A job of priority p counts as if it had become ready p times ``aging_ms`` earlier. That is aging without
    ever moving anything: a rank stays fixed while every later job's rank grows with the clock, so nothing
    starves.
    """
    return ready_at - priority * aging_ms


class ReadyQueue:
    """A priority queue with lazy deletion.

    An entry is alive while its job still points at this very tuple; to take a job out, clear ``job.entry``
    and call `drop`. Entries that arrive in order (the usual case: equal priorities, rising time) go to the
    end of a plain run at no cost of ordering, the others to a heap. Both ends are kept free of dead entries,
    and both are rebuilt when more than half of all is dead.
    """

    __slots__ = ("_heap", "_jobs", "_live", "_run")

    def __init__(self, jobs: Mapping[str, Queued]) -> None:
        self._jobs = jobs
        self._run: deque[ReadyEntry] = deque()
        self._heap: list[ReadyEntry] = []
        self._live = 0

    def __len__(self) -> int:
        """Number of jobs that wait."""
        return self._live

    @property
    def footprint(self) -> int:
        """Number of entries held, the dead ones included."""
        return len(self._run) + len(self._heap)

    def fill(self, entries: list[ReadyEntry]) -> None:
        """Put all ``entries`` into an empty queue, in any order."""
        self._run = deque(sorted(entries))
        self._live = len(entries)

    def push(self, entry: ReadyEntry) -> None:
        """Put in ``entry``, which its job points at."""
        run = self._run
        if not run or entry > run[-1]:
            run.append(entry)
        else:
            heappush(self._heap, entry)
        self._live += 1

    def drop(self) -> None:
        """A job's entry was cleared."""
        self._live -= 1
        run, heap, jobs = self._run, self._heap, self._jobs
        while run:
            # As _is_dead, in place: this is on the way of every job.
            entry = run[0]
            job = jobs.get(entry[2])
            if job is not None and job.entry is entry:
                break
            run.popleft()
        while heap and self._is_dead(heap[0]):
            heappop(heap)
        if len(run) + len(heap) > 2 * self._live + SLACK:
            self._run = deque(entry for entry in run if not self._is_dead(entry))
            self._heap = [entry for entry in heap if not self._is_dead(entry)]
            heapify(self._heap)

    def head(self) -> str | None:
        """Key of the job that is next."""
        run, heap = self._run, self._heap
        if heap and (not run or heap[0] < run[0]):
            return heap[0][2]
        return run[0][2] if run else None

    def oldest_first(self) -> Iterator[str]:
        """All keys in order; costs a sort."""
        alive = [
            entry for entries in (self._run, self._heap) for entry in entries if not self._is_dead(entry)
        ]
        return (entry[2] for entry in sorted(alive))

    def _is_dead(self, entry: ReadyEntry) -> bool:
        job = self._jobs.get(entry[2])
        return job is None or job.entry is not entry
