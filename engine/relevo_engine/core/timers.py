"""What falls due by time: scheduled jobs, expiries, leases."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from relevo_engine.core.job import Job

SLACK: Final = 32
"""Dead entries that are always tolerated."""

EXPIRY: Final = 0
DUE: Final = 1
TimerEntry = tuple[int, int, str]
"""(time, `EXPIRY` or `DUE`, key)."""


class Timers:
    """When scheduled jobs become due and open jobs expire. Follows from the jobs alone.

    A heap with lazy deletion: an entry is alive while its job still says so. The head is always alive; the
    whole is rebuilt when more than half is dead.
    """

    __slots__ = ("_heap", "_jobs", "_live")

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._heap: list[TimerEntry] = []
        self._live = 0

    def __len__(self) -> int:
        return self._live

    @property
    def footprint(self) -> int:
        """Number of entries held, the dead ones included."""
        return len(self._heap)

    def fill(self, entries: list[TimerEntry]) -> None:
        """Arm all ``entries`` of an empty instance; they are kept, and put in order."""
        heapify(entries)
        self._heap = entries
        self._live = len(entries)

    def arm(self, at: int, kind: int, key: str) -> None:
        """A job's ``due_at`` or ``expires_at`` was set to ``at``."""
        heappush(self._heap, (at, kind, key))
        self._live += 1

    def disarm(self) -> None:
        """A job left SCHEDULED, or an expiring job ended."""
        self._live -= 1
        heap = self._heap
        while heap and self._is_dead(heap[0]):
            heappop(heap)
        if len(heap) > 2 * self._live + SLACK:
            self._heap = [entry for entry in set(heap) if not self._is_dead(entry)]
            heapify(self._heap)

    def head(self) -> TimerEntry | None:
        """What falls due first."""
        return self._heap[0] if self._heap else None

    def _is_dead(self, entry: TimerEntry) -> bool:
        at, kind, key = entry
        job = self._jobs.get(key)
        if job is None:
            return True
        if kind == EXPIRY:
            return job.expires_at != at
        return job.due_at != at


class Leases:
    """When started attempts run out of time: a leader's own memory, never part of the state.

    Extending moves only the entry in a dict; the heap follows when the old time is reached. So a million
    extensions leave the heap as small as it was.
    """

    __slots__ = ("_heap", "_until")

    def __init__(self) -> None:
        self._until: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, key: str) -> bool:
        return key in self._until

    @property
    def footprint(self) -> int:
        """Number of heap entries, the dead ones included."""
        return len(self._heap)

    def fill(self, until: dict[str, int]) -> None:
        """Begin all leases at once, or anew: ends by key, in a dict that is kept."""
        self._until = until
        self._rebuild()

    def until(self, key: str) -> int | None:
        """When the lease of ``key`` runs out, None where it has none."""
        return self._until.get(key)

    def arm(self, key: str, until: int) -> None:
        """Begin a lease, or give one a new end, later or earlier."""
        before = self._until.get(key)
        self._until[key] = until
        # For every lease the heap holds an entry that isn't later than its end.
        if before is None or until < before:
            heappush(self._heap, (until, key))
            if len(self._heap) > 2 * len(self._until) + SLACK:
                self._rebuild()

    def disarm(self, key: str) -> None:
        """End a lease, if there is one."""
        if self._until.pop(key, None) is not None and len(self._heap) > 2 * len(self._until) + SLACK:
            self._rebuild()

    def head(self) -> tuple[int, str] | None:
        """The lease that runs out first: (time, key)."""
        heap = self._heap
        while heap:
            at, key = heap[0]
            until = self._until.get(key)
            if until == at:
                return heap[0]
            heappop(heap)
            if until is not None and until > at:
                heappush(heap, (until, key))
        return None

    def _rebuild(self) -> None:
        self._heap = [(until, key) for key, until in self._until.items()]
        heapify(self._heap)
