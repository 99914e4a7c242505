"""Reading the job log: committed events, in order within a partition, each with its position."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection
from types import TracebackType
from typing import Any, Final

from relevo import names
from relevo.environment import find_place
from relevo.errors import Closed, InvalidRequest
from relevo.events.event_choice import Choice, OnGap, Start, check_gap, check_start
from relevo.events.job_event import JobEvent, Skipped, key_of
from relevo.events.log_progress import Progress, stored
from relevo.events.log_reader import LogReader, Taken
from relevo.events.type_history import TypeHistory
from relevo.forks import ForkGuard
from relevo.kafka_options import membership, options_for_consumer
from relevo_schemas.records import Event

__all__ = ["JobEvent", "JobEvents"]

POLL_S: Final = 0.2
END_WAIT_MS: Final = 20


class JobEvents:
    """Iterates over a cluster's job events: every committed one, once, in order within its partition.

    Use it in one thread, and close it (or use ``with``); `close` may be called by another thread, which ends
    the reading one's wait with `Closed`.

    Args:
        bootstrap: ``host:port`` of Kafka, several separated by commas; None: ``RELEVO_KAFKA`` in the
            environment (with ``RELEVO_KAFKA_OPTIONS``), else localhost:9092.
        cluster: The cluster's name; None: ``RELEVO_CLUSTER`` in the environment, else relevo.
        from_: Where to start: ``beginning`` (of what is kept), ``now``, a time (datetime with a time zone, or
            milliseconds since the Unix epoch), behind the last events seen (`LogPosition`, or its text; one
            for each partition), or the next offset by partition, such as `positions` gave. Partitions that
            aren't named begin at the beginning.
        types: Only events of jobs of these types. Events tell a job's key; its type is known from its
            creation. With a start other than the beginning the reader therefore goes through what stands
            before it once (see ``learn_types``). Events of jobs whose creation was trimmed are left out and
            counted (`untyped`).
        keys: Only events of these jobs.
        kinds: Only these kinds, such as ``JobCompleted``.
        group: A consumer group: members share the partitions, and go on where `commit` was last called;
            ``from_`` counts where it never was. Events read and not committed come again, to whoever gets
            the partition. None: all partitions, and the caller keeps positions.
        follow: Go on waiting for new events; False: end where the log ended when it was opened.
        on_gap: What to do where events were trimmed off the log before they were read: ``error`` raises
            `LogGap`; ``skip`` goes on with what is left, and tells by `JobEvent.skipped` of the next event;
            a function is called with what is `Skipped`, and the reader goes on when it returns. Anything else
            that is wrong with the log is an error whatever is chosen here.
        learn_types: False: start at once, and leave out the events of jobs created before the start.
        **kafka_options: librdkafka's options, with underscores for dots or by ``**{"…": …}``.

    Raises:
        InvalidRequest: An argument can't be right.
        Unreachable: Kafka doesn't answer.
        ClusterNotFound: There is no such cluster.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        cluster: str | None = None,
        from_: Start = "beginning",
        *,
        types: Collection[str] | None = None,
        keys: Collection[str] | None = None,
        kinds: Collection[str | type[Event]] | None = None,
        group: str | None = None,
        follow: bool = True,
        on_gap: OnGap = "error",
        learn_types: bool = True,
        **kafka_options: Any,
    ) -> None:
        place = find_place(bootstrap, cluster, kafka_options)
        self._topic = names.log_topic(names.check_cluster(place.cluster))
        start = check_start(from_)
        self._choice = Choice(types, keys, kinds)
        self._on_gap = check_gap(on_gap)
        self._grouped = group is not None
        self._fork = ForkGuard("event reader")
        # Held while librdkafka is called: a consumer must not be closed under a call.
        self._lock = threading.RLock()
        self._given: dict[int, Progress] = {}
        self._ready: deque[JobEvent] = deque()
        self._markers: dict[int, Skipped] = {}
        self._closed = False
        self._released = False
        options = options_for_consumer(
            place.bootstrap,
            place.options,
            {
                "group.id": group or f"{place.cluster}.events",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            },
            # The end is told by a fetch that found nothing: it needn't wait for more to come.
            **({} if follow else {"fetch.wait.max.ms": END_WAIT_MS}),
            **membership(place.options),
        )
        learn = self._choice.by_type and learn_types
        history = TypeHistory(self._topic, options, self._choice.learn) if learn else None
        self._reader = LogReader(
            options,
            self._topic,
            start,
            to_end=not follow,
            allow_gap=self._allow_gap,
            history=history,
        )
        try:
            if self._grouped:
                self._reader.join(self._gone)
            else:
                self._reader.assign_all()
        except BaseException:
            self.close()
            raise
        self._catch_up()

    # Reading

    def __iter__(self) -> JobEvents:
        return self

    def __next__(self) -> JobEvent:
        while not self._ready:
            self._fill(POLL_S)
            if not self._ready and self._reader.ended:
                raise StopIteration
        return self._give()

    def read(self, timeout: float = 1.0, limit: int | None = None) -> list[JobEvent]:
        """The next events, as many as are at hand, ``limit`` at most; none after ``timeout`` seconds.

        Raises:
            LogGap: The next event is gone or out of order.
            ClusterNotFound: The log's topic was deleted.
            Unreachable: Kafka doesn't answer where it has to; read on to ask it again.
            Closed: It was closed.
        """
        self.wait(timeout)
        count = len(self._ready) if limit is None else min(limit, len(self._ready))
        return [self._give() for _ in range(count)]

    def wait(self, timeout: float = 1.0) -> bool:
        """Wait until an event is at hand, for ``timeout`` seconds at most; whether one is.

        Raises:
            RelevoError: As `read`.
        """
        deadline = time.monotonic() + timeout
        while not self._ready:
            left = deadline - time.monotonic()
            self._fill(max(0.0, min(left, POLL_S)))
            if left <= 0 or self._reader.ended:
                break
        return bool(self._ready)

    @property
    def at_hand(self) -> int:
        """How many events can be read without waiting."""
        return len(self._ready)

    @property
    def ended(self) -> bool:
        """Whether the end was reached, with ``follow=False``."""
        return not self._ready and self._reader.ended

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the next offset: behind the last event given out, and what wasn't wanted after it."""
        return {partition: given.offset for partition, given in sorted(self._given.items())}

    @property
    def untyped(self) -> int:
        """How many events ``types`` left out because the creation of their job is not known."""
        return self._choice.untyped

    def commit(self, timeout: float = 10.0) -> bool:
        """Let the group go on behind the last event given out.

        Returns:
            False where Kafka did not store that in ``timeout`` seconds, or the group was just shared out
            anew. Nothing is lost by it: what was read since the last commit that was stored comes again, to
            whoever gets the partition.

        Raises:
            InvalidRequest: It has no group.
            Unreachable: Kafka refuses.
            Closed: It was closed.
        """
        if not self._grouped:
            raise InvalidRequest("commit needs a group; without one keep positions yourself")
        with self._lock:
            self._check_open()
            places = [stored(self._topic, given) for given in self._given.values()]
            if not places:
                return True
            self._reader.begin_commit(places)
            deadline = time.monotonic() + timeout
            while (answer := self._reader.committed()) is None and time.monotonic() < deadline:
                self._reader.serve(POLL_S / 10)
            return bool(answer)

    def close(self) -> None:
        """Give back the connection; any thread may. Twice does no harm."""
        if self._fork.foreign:
            return
        self._closed = True
        with self._lock:
            if not self._released:
                self._released = True
                self._reader.close()

    def __enter__(self) -> JobEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Filling

    def _check_open(self) -> None:
        self._fork.check()
        if self._closed:
            raise Closed("the event reader was closed")

    def _fill(self, timeout: float) -> None:
        with self._lock:
            self._check_open()
            for taken in self._reader.read(timeout):
                self._choose(taken)
            if not self._ready:
                self._catch_up()
        self._check_open()

    def _choose(self, taken: Taken) -> None:
        partition, offset, event, skipped = taken
        if skipped is not None:
            # Two gaps without a wanted event between them are told as one.
            before = self._markers.get(partition)
            self._markers[partition] = skipped if before is None else _joined(before, skipped)
        if self._choice.wants(partition, event):
            marker = self._markers.pop(partition, None)
            self._ready.append(
                JobEvent(partition, offset, type(event).__name__, key_of(event), event, marker)
            )

    def _give(self) -> JobEvent:
        self._check_open()
        event = self._ready.popleft()
        if self._ready:
            self._given[event.partition] = _behind(event)
        else:
            self._catch_up()
        return event

    def _catch_up(self) -> None:
        """Everything read was given out or isn't wanted: positions move behind all of it."""
        for partition, progress in self._reader.progress.items():
            self._given[partition] = Progress(
                partition, progress.offset, 0, seq=progress.seq, epoch=progress.epoch
            )

    def _gone(self, partition: int) -> None:
        """The group took it: what was read of it is for its next owner."""
        self._ready = deque(event for event in self._ready if event.partition != partition)
        self._given.pop(partition, None)
        self._markers.pop(partition, None)
        self._choice.forget(partition)

    def _allow_gap(self, skipped: Skipped) -> bool:
        if callable(self._on_gap):
            self._on_gap(skipped)
            self._check_open()
            return True
        return self._on_gap == "skip"


def _behind(event: JobEvent) -> Progress:
    return Progress(event.partition, event.offset + 1, 0, seq=event.event.seq, epoch=event.event.epoch)


def _joined(first: Skipped, second: Skipped) -> Skipped:
    events = None if first.events is None or second.events is None else first.events + second.events
    return Skipped(first.partition, first.offset, second.resumed_at, events)
