"""Which offsets may be committed: per partition, the highest below which everything is finished.

Pure bookkeeping, no Kafka. A partition that is lost and regained is another ownership: what was begun in an
earlier one finishes there, and moves nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence


class Entry:
    """One message that was read and is not finished yet.

    Attributes:
        ownership: Of its partition, when it was read.
        offset: Its offset.
        started: Whether a hand-over of the partition waits for it.
        finished: Whether nothing more is to be done for it.
        committed: Whether Kafka gives it to nobody any more, finished or not.
    """

    __slots__ = ("committed", "finished", "offset", "ownership", "started")

    def __init__(self, ownership: Ownership, offset: int) -> None:
        self.ownership = ownership
        self.offset = offset
        self.started = False
        self.finished = False
        self.committed = False

    @property
    def doubtful(self) -> bool:
        """Whether an earlier owner of the partition may have started this."""
        below = self.ownership.doubtful_below
        return below is None or self.offset < below

    @property
    def gone(self) -> bool:
        """Whether it is for the partition's next owner to see to."""
        return self.ownership.closing and not self.committed


class Ownership:
    """One partition, from its assignment until it is revoked or lost.

    Attributes:
        topic: The topic.
        partition: The partition.
        generation: Rises with every assignment in this process.
        next: Offset after the last message read; None until the first where the start is not known.
        committed: What Kafka has as committed, as far as known here.
        closing: Being revoked: nothing new is started.
        ended: Revoked or lost: nothing is committed any more.
        doubtful_below: Messages below this offset may have been started by an earlier owner; None: all may,
            as it isn't known yet how far the partition went when it was assigned.
        former: What it replaced, where the partition was made anew under us.
    """

    __slots__ = (
        "_entries",
        "closing",
        "committed",
        "doubtful_below",
        "ended",
        "former",
        "generation",
        "next",
        "partition",
        "running",
        "topic",
    )

    def __init__(self, topic: str, partition: int, generation: int, start: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.generation = generation
        self.next = start
        self.committed = start if start is not None else -1
        self.closing = False
        self.ended = False
        self.doubtful_below: int | None = 0
        self.former: Ownership | None = None
        self.running = 0
        self._entries: deque[Entry] = deque()

    @property
    def tracked(self) -> int:
        """Messages remembered: unfinished ones, and finished ones behind them."""
        return len(self._entries)

    @property
    def committable(self) -> int:
        """Offset to commit: all messages below it are finished. -1: not known yet."""
        if self._entries:
            return self._entries[0].offset
        return self.next if self.next is not None else -1

    def begin(self, offset: int) -> Entry | None:
        """Note a message as read; None where it was read in this ownership before.

        Offsets may jump: control records and aborted transactions take offsets that no reader sees.
        """
        if self.next is not None and offset < self.next:
            return None
        self.next = offset + 1
        entry = Entry(self, offset)
        self._entries.append(entry)
        return entry

    def trim(self) -> None:
        """Forget the finished messages that stand in front."""
        entries = self._entries
        while entries and entries[0].finished:
            entries.popleft()

    def pass_over(self, offset: int) -> None:
        """Kafka gives out nothing below ``offset`` any more; what is unfinished there is as good as begun."""
        self.committed = max(self.committed, offset)
        for entry in self._entries:
            if entry.offset >= offset:
                return
            entry.committed = True
            self.begin_work(entry)

    def begin_work(self, entry: Entry) -> None:
        """A hand-over of the partition waits for this message from now on."""
        if not entry.started:
            entry.started = True
            if not entry.finished:
                self.running += 1


class OffsetTracker:
    """All ownerships of one consumer. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._owned: dict[tuple[str, int], Ownership] = {}
        self._generation = 0
        self._unfinished = 0
        self._aside = 0
        self._called = False

    @property
    def unfinished(self) -> int:
        """Messages read and not finished, in all current ownerships, but for those set aside."""
        return self._unfinished - self._aside

    def set_aside(self, count: int) -> None:
        """So many messages wait for others, and shall not keep further ones from being read."""
        if count == self._aside:
            return
        with self._lock:
            self._aside = count
            self._progress.notify_all()

    @property
    def unstarted(self) -> int:
        """Messages read that no handler has begun with, in all current ownerships."""
        with self._lock:
            return self._unfinished - sum(owned.running for owned in self._owned.values())

    @property
    def tracked(self) -> int:
        """Messages remembered in all current ownerships."""
        with self._lock:
            return sum(owned.tracked for owned in self._owned.values())

    def owned(self) -> list[Ownership]:
        """The current ownerships."""
        with self._lock:
            return list(self._owned.values())

    def assign(
        self, topic: str, partition: int, start: int | None, doubtful_below: int | None = 0
    ) -> Ownership:
        """Begin an ownership whose first message has offset ``start`` or a higher one; None: not known."""
        with self._lock:
            self._end(topic, partition)
            self._generation += 1
            owned = self._owned[topic, partition] = Ownership(topic, partition, self._generation, start)
            owned.doubtful_below = doubtful_below
            return owned

    def replace(self, topic: str, partition: int) -> bool:
        """The partition is read from its new beginning on; says whether a position in it was known before.

        What was read before is nowhere else to be had: it is run as ever, and moves no offset of the new one.
        """
        with self._lock:
            former = self._owned.get((topic, partition))
            self._generation += 1
            owned = self._owned[topic, partition] = Ownership(topic, partition, self._generation, None)
            if former is not None:
                owned.former = former
                owned.closing = former.closing
                former.ended = True
                self._unfinished -= sum(not entry.finished for entry in former._entries)
                self._progress.notify_all()
            return former is not None and former.next is not None

    def close(self, partitions: Iterable[tuple[str, int]]) -> list[Ownership]:
        """From now on nothing is started in these partitions; what runs may still finish and be committed."""
        with self._lock:
            found = [self._owned[each] for each in partitions if each in self._owned]
            for owned in found:
                _close(owned)
            return found

    def end(self, partitions: Iterable[tuple[str, int]]) -> None:
        """End these ownerships: nothing that belongs to them is committed or started any more."""
        with self._lock:
            for topic, partition in partitions:
                self._end(topic, partition)
            self._progress.notify_all()

    def _end(self, topic: str, partition: int) -> None:
        owned = self._owned.pop((topic, partition), None)
        if owned is not None:
            _close(owned)
            owned.ended = True
            self._unfinished -= sum(not entry.finished for entry in owned._entries)

    def begin(self, messages: Iterable[tuple[str, int, int]]) -> list[Entry | None]:
        """Note messages (topic, partition, offset) as read, each answered in its place.

        None: read before, or of a partition that is not ours.
        """
        with self._lock:
            entries = []
            for topic, partition, offset in messages:
                owned = self._owned.get((topic, partition))
                entries.append(owned.begin(offset) if owned is not None else None)
            self._unfinished += sum(entry is not None for entry in entries)
            return entries

    def start(self, entries: Sequence[Entry]) -> list[bool]:
        """Whether each may be started now: its partition is still ours, and stays so for the moment.

        One that has its answer keeps it while the partition is handed over, which waits for it.
        """
        with self._lock:
            answers = []
            for entry in entries:
                owned = entry.ownership
                promised = entry.committed or (entry.started and not owned.ended)
                allowed = promised or not owned.closing
                if allowed:
                    owned.begin_work(entry)
                answers.append(allowed)
            return answers

    def put_back(self, entries: Iterable[Entry]) -> None:
        """These don't run after all, or not yet: no hand-over waits for them."""
        with self._lock:
            for entry in entries:
                if entry.started and not entry.committed:
                    entry.started = False
                    if not entry.finished:
                        entry.ownership.running -= 1
            self._progress.notify_all()

    def finish(self, entries: Iterable[Entry]) -> None:
        """Nothing more is to be done for these messages. Harmless when said twice, or too late."""
        with self._lock:
            touched = set()
            for entry in entries:
                if entry.finished:
                    continue
                entry.finished = True
                owned = entry.ownership
                if entry.started:
                    owned.running -= 1
                if not owned.ended:
                    self._unfinished -= 1
                    touched.add(owned)
            for owned in touched:
                owned.trim()
            self._progress.notify_all()

    def committable(self, only: Iterable[Ownership] | None = None) -> list[tuple[Ownership, int]]:
        """What may be committed now, where that is more than what is committed already."""
        with self._lock:
            found = []
            for owned in self._owned.values() if only is None else only:
                offset = owned.committable
                if not owned.ended and offset > owned.committed:
                    found.append((owned, offset))
            return found

    def committed(self, owned: Ownership, offset: int) -> None:
        """Kafka has taken ``offset``."""
        with self._lock:
            owned.pass_over(offset)

    def call(self) -> None:
        """Let whoever waits here look after something else, at once, until `heed` is called."""
        with self._lock:
            self._called = True
            self._progress.notify_all()

    def heed(self) -> None:
        """Who was called has come."""
        with self._lock:
            self._called = False

    def wait_call(self, timeout: float) -> None:
        """Wait to be called, for ``timeout`` seconds at most."""
        with self._lock:
            self._wait(lambda: False, timeout)

    def wait_below(self, unfinished: int, timeout: float, tracked: float = math.inf) -> bool:
        """Wait until fewer messages are unfinished, and remembered.

        False: not in ``timeout`` seconds, or not before it was called.
        """

        def below() -> bool:
            return (
                self._unfinished - self._aside < unfinished
                and sum(owned.tracked for owned in self._owned.values()) < tracked
            )

        with self._lock:
            return self._wait(below, timeout)

    def wait_idle(self, ownerships: Sequence[Ownership], deadline: float) -> bool:
        """Wait until nothing runs in these ownerships.

        False: not until ``deadline`` (monotonic seconds), or not before it was called.
        """
        with self._lock:
            return self._wait(
                lambda: not any(owned.running for owned in ownerships), deadline - time.monotonic()
            )

    def _wait(self, fact: Callable[[], bool], timeout: float) -> bool:
        self._progress.wait_for(lambda: self._called or fact(), max(0.0, timeout))
        return fact()


def _close(owned: Ownership) -> None:
    each: Ownership | None = owned
    while each is not None:
        each.closing = True
        each = each.former
