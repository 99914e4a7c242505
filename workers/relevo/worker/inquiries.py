"""Asks the engine before running what an earlier owner of the partition may have started.

Most of what is read again after a crash or a rebalance is finished, or superseded by a later attempt: the
engine knows. And a job that kills its worker is counted only if its start was reported before it ran: the
next worker's report of the same attempt ends that attempt, and the job comes back as another one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, Message

from relevo.follower import Follower, Interest
from relevo.sender import Sender
from relevo.worker.item import Item
from relevo_schemas.codec import encode_about
from relevo_schemas.commands import LeaseRef, StartJobs
from relevo_schemas.events import CommandRejected, JobTimedOut
from relevo_schemas.records import Event

BATCH_MAX: Final = 500
SUPERSEDED: Final = frozenset(
    {"STALE_ATTEMPT", "NOT_ACTIVE", "NOT_FOUND", "ALREADY_FINISHED", "ALREADY_COMPLETED"}
)
"""Reasons by which the engine says that it has moved on from an attempt."""

Answered = Callable[[Item, bool], None]


class Inquiries:
    """Reports items as started and waits for what the engine decides.

    Args:
        follower: Reads the log.
        sender: Sends the commands.
        topic: The commands topic.
        identity: Names this worker process.
        answered: Called from any thread, once per item that is answered: whether it may run. No call where no
            answer can be had.
    """

    def __init__(
        self, follower: Follower, sender: Sender, topic: str, identity: str, answered: Answered
    ) -> None:
        self._follower = follower
        self._sender = sender
        self._topic = topic
        self._identity = identity
        self._answered = answered

    def ask(self, items: Iterable[Item]) -> None:
        """Ask about each; returns at once."""
        by_partition: dict[int, list[Item]] = defaultdict(list)
        for item in items:
            by_partition[item.partition].append(item)
        for partition, some in by_partition.items():
            for at in range(0, len(some), BATCH_MAX):
                _Inquiry(some[at : at + BATCH_MAX], self._answered).start(
                    self._follower, partial(self._send, partition)
                )

    def _send(self, partition: int, inquiry: _Inquiry) -> None:
        refs = tuple(
            LeaseRef(item.key, item.created_seq, attempt, item.lease_ms) for item, attempt in inquiry.attempts
        )
        value = encode_about(max(ref.created_seq for ref in refs), StartJobs(self._identity, refs))
        key = refs[0].key.encode()
        self._sender.try_send(self._topic, key, value, inquiry.reported, partition)


class _Inquiry:
    """One StartJobs command, and the events that answer it; they may be read before its offset is known."""

    def __init__(self, items: list[Item], answered: Answered) -> None:
        self.attempts = [(item, item.attempt) for item in items]
        self._items = {item.key: item for item in items}
        self._answered = answered
        self._lock = threading.Lock()
        self._to_follow = len(items)
        self._interests: dict[str, Interest] = {}
        self._offset: int | None = None
        self._early: list[Event] = []

    def start(self, follower: Follower, send: Callable[[_Inquiry], None]) -> None:
        """Follow all, then send."""
        for item, _ in self.attempts:
            item.watch = _Asked(self, item.key)
            item.reported = item.attempt
            following = follower.follow(item.key, self._heard, lambda error: None, partition=item.partition)
            following.add_done_callback(partial(self._followed, item.key, send))

    def _followed(self, key: str, send: Callable[[_Inquiry], None], following: Future[Interest]) -> None:
        interest = following.result() if following.exception() is None else None
        with self._lock:
            unwanted = key not in self._items
            if interest is not None and not unwanted:
                self._interests[key] = interest
            self._to_follow -= 1
            complete = self._to_follow == 0
        if interest is not None and unwanted:
            interest.cancel()
        if complete:
            send(self)

    def reported(self, error: KafkaError | None, message: Message) -> None:
        """In the sender's thread: Kafka has the command, or hasn't."""
        with self._lock:
            early, self._early = self._early, []
            if error is None:
                self._offset = message.offset()
        for event in early:
            self._look(event)

    def _heard(self, _: int, event: Event) -> None:
        with self._lock:
            if self._offset is None:
                if len(self._early) < 4 * BATCH_MAX:
                    self._early.append(event)
                return
        self._look(event)

    def _look(self, event: Event) -> None:
        if event.source != self._offset:
            return
        key: str = event.key  # type: ignore[attr-defined]
        with self._lock:
            item = self._items.pop(key, None)
            interest = self._interests.pop(key, None)
        if interest is not None:
            interest.cancel()
        if item is not None:
            self._answered(item, not _has_moved_on(event))

    def forget(self, key: str) -> None:
        """Wait no longer for this one's answer."""
        with self._lock:
            self._items.pop(key, None)
            interest = self._interests.pop(key, None)
        if interest is not None:
            interest.cancel()


def _has_moved_on(event: Event) -> bool:
    """Whether the engine's answer is that another attempt follows, or none."""
    if isinstance(event, CommandRejected):
        return event.reason in SUPERSEDED
    return isinstance(event, JobTimedOut)


class _Asked:
    """Ends the wait for one item's answer."""

    __slots__ = ("_inquiry", "_key")

    def __init__(self, inquiry: _Inquiry, key: str) -> None:
        self._inquiry = inquiry
        self._key = key

    def cancel(self) -> None:
        """Wait no longer. Twice does no harm."""
        self._inquiry.forget(self._key)
