"""What was seen while a drill ran: activations and terms, as data that can be asked for gaps and firsts."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Arrival(NamedTuple):
    """One activation, as a reader of committed records saw it.

    Attributes:
        seconds: When, by the monotonic clock.
        wall: When, in milliseconds since the Unix epoch.
        epoch: The term that wrote it.
        attempt: Number of the hand-over.
        sent: When the job was sent, in milliseconds since the Unix epoch; None: not known.
        key: The job.
    """

    seconds: float
    wall: float
    epoch: int
    attempt: int
    sent: float | None
    key: str


def longest_gap_ms(times: Sequence[float], begin: float, end: float) -> float:
    """The longest time without an arrival between ``begin`` and ``end``, in milliseconds.

    What comes right before ``begin`` counts as the start of the first gap, so that a fault in the middle of
    one sees all of it; without any, ``begin`` does.

    Args:
        times: Arrivals in seconds, rising.
        begin: From here on, in the same clock.
        end: Up to here.
    """
    first = bisect.bisect_left(times, begin)
    last = bisect.bisect_right(times, end)
    edges = [times[first - 1] if first else begin, *times[first:last], end]
    return max((later - earlier) * 1000 for earlier, later in itertools.pairwise(edges))


class Activations:
    """Activations by engine partition, in the order of their arrival. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_partition: dict[int, list[Arrival]] = defaultdict(list)

    def add(self, partition: int, arrival: Arrival) -> None:
        """One more."""
        with self._lock:
            self._by_partition[partition].append(arrival)

    def of(self, partition: int) -> list[Arrival]:
        """A copy of those of a partition."""
        with self._lock:
            return list(self._by_partition.get(partition, ()))

    def all(self) -> list[tuple[int, Arrival]]:
        """A copy of all, with their partitions, by time of arrival."""
        with self._lock:
            found = [(p, each) for p, arrivals in self._by_partition.items() for each in arrivals]
        return sorted(found, key=lambda item: item[1].seconds)

    def count(self, partition: int | None = None, since: float = 0.0) -> int:
        """How many have come since then, of one partition or all."""
        with self._lock:
            chosen = [self._by_partition[partition]] if partition is not None else self._by_partition.values()
            return sum(
                len(each) - bisect.bisect_left(each, since, key=lambda a: a.seconds) for each in chosen
            )

    def count_sent(self, partition: int, after: float) -> int:
        """How many have come of jobs that were sent after then, in milliseconds since the Unix epoch."""
        found = 0
        with self._lock:
            for arrival in reversed(self._by_partition.get(partition, ())):
                if arrival.wall < after:
                    break
                found += arrival.sent is not None and arrival.sent > after
        return found

    def first_of_term(self, partition: int, epoch_min: int) -> Arrival | None:
        """The first one written by a term of at least this epoch."""
        with self._lock:
            for arrival in self._by_partition.get(partition, ()):
                if arrival.epoch >= epoch_min:
                    return arrival
        return None

    def gap_ms(self, partition: int, begin: float, end: float) -> float:
        """See `longest_gap_ms`."""
        with self._lock:
            times = [arrival.seconds for arrival in self._by_partition.get(partition, ())]
        return longest_gap_ms(times, begin, end)


class Term(NamedTuple):
    """One `LeaderElected`, as a reader of committed records saw it.

    Attributes:
        partition: Of which.
        epoch: Its number.
        node: Who leads.
        wall: When it was seen, in milliseconds since the Unix epoch.
    """

    partition: int
    epoch: int
    node: str
    wall: float


class Lease(NamedTuple):
    """One `JobStarted`: a worker runs the job, and the lease has begun.

    Attributes:
        partition: Whose job it is.
        epoch: The term that took the report.
        at: When, by the leader's clock, in milliseconds since the Unix epoch.
    """

    partition: int
    epoch: int
    at: float


@dataclass
class LogFacts:
    """What the job log told while the drill ran. Written by one thread, read by any.

    Attributes:
        terms: Every announcement.
        epochs: The newest epoch of each partition.
        accepts: When the first decision about a command was seen, by partition and epoch.
        created: How many jobs came to be.
        completed: When each job was completed, by the leader's clock, by key.
        ended_otherwise: The event that ended it, by key.
        completed_twice: Keys with more than one completion.
        ended_before: Keys of jobs whose completion was refused, since they had ended, or are forgotten.
        timeouts: When each lease ran out, and the key.
        timed_out_in: The epoch in which a lease of each job ran out last, by key.
        leases: The first attempt of each job that was reported as started, by key.
        ended_in: The epoch in which each job came to its end, by key.
        newest_lease: When the latest lease of each partition was seen to begin.
        stale: Events of a term that stand behind the announcement of a newer one, in words.
        kinds: Events by kind.
    """

    terms: list[Term] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    accepts: dict[tuple[int, int], float] = field(default_factory=dict)
    created: int = 0
    completed: dict[str, float] = field(default_factory=dict)
    ended_otherwise: dict[str, str] = field(default_factory=dict)
    completed_twice: list[str] = field(default_factory=list)
    ended_before: set[str] = field(default_factory=set)
    timeouts: list[tuple[float, str]] = field(default_factory=list)
    timed_out_in: dict[str, int] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    ended_in: dict[str, int] = field(default_factory=dict)
    newest_lease: dict[int, float] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def ended(self, key: str) -> bool:
        """Whether the job has come to any end."""
        return key in self.completed or key in self.ended_otherwise

    def first_accept(self, partition: int, epoch_min: int) -> float | None:
        """When the first decision of a term of at least this epoch was seen."""
        found = [
            wall for (p, epoch), wall in list(self.accepts.items()) if p == partition and epoch >= epoch_min
        ]
        return min(found, default=None)
