"""A Kafka cluster of one mind: partitions, transactions and their fences, producers, groups' offsets."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from relevo_partitions.statemachine import Incoming, Write
from tests.simulation.world.network import ServerSays
from tests.simulation.world.scheduler import Fiber, Scheduler

TRANSACTION_TIMEOUT_S: Final = 10.0
MARKER_S: Final = 0.002
"""How long a transaction's end usually takes to reach a partition."""


class Busy(ServerSays):
    """CONCURRENT_TRANSACTIONS: the one before is still being ended; try again."""


class FencedOff(ServerSays):
    """A newer producer has this transactional id."""


class NotWritable(ServerSays):
    """One topic doesn't take records now."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"{topic} can't be written")
        self.topic = topic


class Confused(ServerSays):
    """The request doesn't fit what went before."""


class NotMember(ServerSays):
    """A commit of a former generation."""


class Txn:
    """One transaction."""

    def __init__(self, writer: str, began: float) -> None:
        self.writer = writer
        """Transactional id and epoch of its producer."""
        self.began = began
        self.state = "open"
        self.parts: list[Partition] = []
        self.records: dict[Partition, list[Record]] = {}


class Record(NamedTuple):
    """What stands at one offset; a control record has no value and no transaction."""

    offset: int
    key: bytes | None
    value: bytes | None
    txn: Txn | None
    control: bool
    at: float
    """When it was written."""


class Partition:
    """One partition of a topic."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.records: list[Record] = []
        self.begin = 0
        self.open: dict[Txn, int] = {}
        self.waiting: list[tuple[Fiber, int]] = []
        self.blocked = False
        self.seen: dict[str, int] = {}
        """Highest sequence number per plain producer."""

    @property
    def stable(self) -> int:
        """The end as read_committed readers see it."""
        return min(self.open.values()) if self.open else len(self.records)

    def append(
        self, key: bytes | None, value: bytes | None, txn: Txn | None, at: float, control: bool = False
    ) -> int:
        """Write a record; its offset."""
        offset = len(self.records)
        if txn is not None and not control and txn not in self.open:
            self.open[txn] = offset
            txn.parts.append(self)
        self.records.append(Record(offset, key, value, txn, control, at))
        return offset

    def committed(self, offset: int, records_max: int) -> tuple[list[Incoming], int]:
        """Committed records from ``offset`` on, and where to go on."""
        found: list[Incoming] = []
        stable = self.stable
        while offset < stable and len(found) < records_max:
            record = self.records[offset]
            offset += 1
            if not record.control and (record.txn is None or record.txn.state == "committed"):
                found.append(Incoming(record.offset, record.key, record.value))
        return found, offset


@dataclass
class Transactional:
    """What the coordinator keeps of one transactional id."""

    epoch: int = -1
    txn: Txn | None = None
    ending: bool = False
    ended: str = ""
    next_batch: int = 0


@dataclass
class Group:
    """A consumer group: who owns which partition of its topic, and what is committed."""

    owner: dict[int, str] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)


class Kafka:
    """All brokers together. Its methods are what requests do when they arrive.

    Args:
        scheduler: Of the world.
        rng: Decides how long transactions take to end.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self.topics: dict[str, list[Partition]] = {}
        self.ids: dict[str, Transactional] = {}
        self.groups: dict[str, Group] = {}
        self.marker_s = MARKER_S
        self.late: dict[str, list[Callable[[], None]]] = {}
        """Requests of each transactional id that are still on their way, given up by who sent them."""
        self.decided: Callable[[Txn], None] = lambda txn: None
        """Told of each transaction when its commit is decided."""
        self.moved: Callable[[Partition], None] = lambda partition: None
        """Told when the stable end of a partition may have moved."""
        self.offsets_committed: Callable[[str, int, int, int], None] = lambda *about: None
        """Told (topic, partition, before, offset) of each commit of a worker group."""

    def create(self, topic: str, partitions: int) -> None:
        """A new topic."""
        self.topics[topic] = [Partition(topic, number) for number in range(partitions)]

    def partition(self, topic: str, number: int) -> Partition:
        """One partition."""
        return self.topics[topic][number]

    # -- transactions

    def init(self, tid: str) -> int:
        """InitProducerId: fence all before; the epoch."""
        state = self.ids.setdefault(tid, Transactional())
        if state.ending:
            raise Busy("the last transaction is being ended")
        state.epoch += 1
        state.next_batch = 0
        state.ended = ""
        if state.txn is not None:
            self._end(state, "aborted")
            raise Busy("an open transaction is being aborted")
        return state.epoch

    def _current(self, tid: str, epoch: int) -> Transactional:
        state = self.ids[tid]
        if epoch != state.epoch:
            raise FencedOff(f"epoch {epoch} of {tid}: the newest is {state.epoch}")
        return state

    def produce(self, tid: str, epoch: int, batch: int, writes: Sequence[Write], more: bool) -> None:
        """Add records to the producer's transaction, opening one if there is none.

        Whether there is ``more`` to come no broker knows; chance does, and lets late requests come just then.
        """
        state = self._current(tid, epoch)
        if state.ending:
            raise Busy("the transaction before is being ended")
        if batch < state.next_batch:
            return  # a repeat of what was taken already
        if batch > state.next_batch:
            raise Confused(f"batch {batch} of {tid}: {state.next_batch} was due")
        for write in writes:
            if self.partition(write.topic, write.partition).blocked:
                raise NotWritable(write.topic)
        state.next_batch += 1
        if state.txn is None:
            state.txn = Txn(f"{tid}/{epoch}", self._scheduler.now)
            self._scheduler.after(TRANSACTION_TIMEOUT_S, partial(self._overdue, state, state.txn))
        for write in writes:
            place = self.partition(write.topic, write.partition)
            offset = place.append(write.key, write.value, state.txn, self._scheduler.now)
            state.txn.records.setdefault(place, []).append(place.records[offset])
        if self.late.get(tid) and self._rng.random() < (0.7 if more else 0.1):
            self._scheduler.after(0.0001, self.late[tid].pop(0))

    def end(self, tid: str, epoch: int, commit: bool) -> None:
        """EndTxn: decide the producer's transaction."""
        state = self._current(tid, epoch)
        wish = "committed" if commit else "aborted"
        if state.txn is None or state.ending:
            if state.ended == wish:
                return  # a repeat
            if not commit and state.txn is None:
                return
            raise Confused(f"there is no transaction of {tid} to be {wish}")
        self._end(state, wish)

    def bump(self, tid: str, epoch: int) -> int:
        """A producer that doesn't know which of its records arrived takes the next epoch for itself.

        Whatever of it is still under way is refused from now on. A transaction that late records have opened
        behind the abort is aborted too, as InitProducerId does it: they must not get into the next one.
        """
        state = self._current(tid, epoch)
        if state.txn is not None and not state.ending:
            self._end(state, "aborted")
        if state.ending:
            raise Busy("the aborted transaction is being ended")
        state.epoch += 1
        state.next_batch = 0
        return state.epoch

    def _overdue(self, state: Transactional, txn: Txn) -> None:
        if state.txn is txn and not state.ending:
            state.epoch += 1
            state.next_batch = 0
            self._end(state, "aborted")

    def _end(self, state: Transactional, how: str) -> None:
        txn = state.txn
        assert txn is not None
        state.ending = True
        state.ended = how
        if how == "committed":
            txn.state = "committing"
            self.decided(txn)
        left = [len(txn.parts)]
        for place in txn.parts:
            delay = self._rng.random() * self.marker_s
            self._scheduler.after(delay, partial(self._mark, state, txn, place, how, left))

    def _mark(self, state: Transactional, txn: Txn, place: Partition, how: str, left: list[int]) -> None:
        txn.state = how
        del place.open[txn]
        place.append(None, None, txn, self._scheduler.now, control=True)
        left[0] -= 1
        if not left[0]:
            state.txn, state.ending = None, False
        self.wake(place)

    def wake(self, place: Partition) -> None:
        """The partition has moved: whoever waits for it looks again."""
        self.moved(place)
        waiting, place.waiting = place.waiting, []
        for fiber, turn in waiting:
            self._scheduler.wake(fiber, turn)

    # -- plain producers, deletion, groups

    def send(self, producer: str, sequence: int, topic: str, number: int, key: bytes, value: bytes) -> int:
        """A record of an idempotent producer; its offset, -1 for a repeat."""
        place = self.partition(topic, number)
        if place.blocked:
            raise NotWritable(topic)
        if sequence <= place.seen.get(producer, -1):
            return -1
        place.seen[producer] = sequence
        offset = place.append(key, value, None, self._scheduler.now)
        self.wake(place)
        return offset

    def bounds(self, topic: str, number: int) -> tuple[int, int]:
        """First offset and end."""
        place = self.partition(topic, number)
        return place.begin, len(place.records)

    def commit_offset(self, topic: str, number: int, member: str, offset: int) -> None:
        """OffsetCommit of a member."""
        group = self.groups[topic]
        if group.owner.get(number) != member:
            raise NotMember(f"{member} doesn't own {topic} [{number}]")
        before = group.committed.get(number, 0)
        group.committed[number] = offset
        self.offsets_committed(topic, number, before, offset)

    def read_offset(self, topic: str, number: int) -> int:
        """OffsetFetch."""
        return self.groups[topic].committed.get(number, 0)

    def unblock(self) -> None:
        """Every topic takes records again."""
        for places in self.topics.values():
            for place in places:
                place.blocked = False
