"""Notices when somebody else's open transaction keeps workers from activations: nobody else would.

The leader writes these topics and never reads them, and a worker that gets nothing can't know that there is
something. So the leader of a partition asks Kafka now and then whether what it has written can be read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from relevo_engine.errors import EngineError
from relevo_engine.topics import activations_topic
from relevo_partitions.observer import Observer
from relevo_partitions.ports import Stability
from relevo_partitions.term.held_back import HeldBackWatch

LOOK_S: Final = 5.0
"""How often Kafka is asked: two questions to each broker that leads any of the topics, however many."""
TOLD_MAX: Final = 3
"""So many places are told of a partition at once; an open transaction may touch them all."""

Place = tuple[str, int]
"""A topic, and the number of a Kafka partition of it."""


class StabilitySource(Protocol):
    """What the watch needs of Kafka."""

    def stability(self, places: Collection[Place]) -> dict[Place, Stability]:
        """How each stands, without those that nothing could be learnt of; raises `EngineError`."""


class HeldActivations:
    """Watches the activation topics behind the partitions that this node leads, on a thread of its own.

    Args:
        source: Asks Kafka.
        cluster: Name of the cluster.
        partitions: How many it has.
        slots: The partition count of each activation topic, by job type, as known now.
        led: The partitions that this node leads now.
        limit_s: For so long nothing may become readable although something waits; see `HeldBackWatch`.
        observer: Told how many records wait, and the fault ``held_back``.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        source: StabilitySource,
        cluster: str,
        partitions: int,
        *,
        slots: Callable[[], Mapping[str, int]],
        led: Callable[[], Iterable[int]],
        limit_s: float,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._partitions = partitions
        self._slots = slots
        self._led = led
        self._limit_s = limit_s
        self._observer = observer
        self._clock = clock
        # Replaced as a whole, so that other threads read it without a lock.
        self._watches: Mapping[Place, HeldBackWatch] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look, now and then."""
        self._thread = threading.Thread(target=self._run, name="relevo-activations", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Ends the thread. Says whether it ended in time; it may be waiting for Kafka."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def text(self, partition: int) -> str | None:
        """What is the matter behind a partition of the cluster, for people; None where nothing is."""
        held = [
            each.text
            for (_, slot), each in sorted(self._watches.items())
            if slot % self._partitions == partition and each.text is not None
        ]
        if not held:
            return None
        more = [f"and {len(held) - TOLD_MAX} more"] if len(held) > TOLD_MAX else []
        return "; ".join(held[:TOLD_MAX] + more)

    def look(self) -> None:
        """One round.

        Raises:
            EngineError: Kafka didn't answer. What was told stays so.
        """
        led = set(self._led())
        places = {
            (activations_topic(self._cluster, job_type), slot): slot % self._partitions
            for job_type, count in self._slots().items()
            for slot in range(count)
            if slot % self._partitions in led
        }
        before = self._watches
        self._watches = {
            place: before.get(place)
            or HeldBackWatch(*place, self._limit_s, self._observer, self._clock, of=partition)
            for place, partition in places.items()
        }
        for place in before.keys() - places.keys():  # another node leads now, and watches
            before[place].close()
        if not places:
            return
        for place, found in self._source.stability(places.keys()).items():
            self._watches[place].take(found)

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_S):
                try:
                    self.look()
                except EngineError:
                    continue  # Kafka is away: leaders and standbys have much to say about that
                except Exception as error:  # whatever it is: without this thread nobody looks any more
                    self._observer.note("activations not looked at", reason=type(error).__name__)
        finally:
            for watch in self._watches.values():
                watch.close()
