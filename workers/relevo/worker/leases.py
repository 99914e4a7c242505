"""Tells the engine that handlers are alive, whatever the handlers do."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, Message

from relevo.follower import Follower
from relevo.sender import Sender
from relevo.stats import WorkerStats
from relevo.worker.execution import Runner
from relevo.worker.item import Item
from relevo.worker.slot_reports import SlotReports
from relevo.worker.watch import LossWatch
from relevo_schemas.codec import encode_about
from relevo_schemas.commands import CheckpointJob, ExtendJobs, LeaseRef, StartJobs

REPORT_AFTER_S: Final = 0.05
"""Shorter jobs just complete: Kafka keeps what nobody has reported as started."""
BATCH_MAX: Final = 500


class LeaseKeeper:
    """Reports and renews the leases of one type's jobs. `tick` is called by a thread that never waits long.

    Args:
        commands: The commands topic.
        identity: Names this worker process.
        kept: Handlers at work, and whatever else must not lose its lease, by key; owned by the gate.
        runner: Runs the handlers.
        sender: Sends the commands.
        lease_ms: The type's own lease in milliseconds; 0: the job's.
        timeout: Longest run of a handler in seconds; None: any.
        follower: Reads the log for what runs long; None: nobody does.
        superseded: Called when the engine has moved on from an item's attempt.
        stats: Counters.
        slots: Tells leaders which partitions are ours; None: nobody does.
        cancel_when_lost: Whether the handler of an attempt that is lost is cancelled.
    """

    def __init__(
        self,
        *,
        commands: str,
        identity: str,
        kept: dict[str, Item],
        runner: Runner,
        sender: Sender,
        lease_ms: int,
        timeout: float | None,
        follower: Follower | None,
        superseded: Callable[[Item, int], None],
        stats: WorkerStats,
        slots: SlotReports | None = None,
        cancel_when_lost: bool = False,
    ) -> None:
        self._cancel_when_lost = cancel_when_lost
        self._slots = slots
        self._commands = commands
        self._identity = identity
        self._kept = kept
        self._runner = runner
        self._sender = sender
        self._lease_ms = lease_ms
        self._timeout = timeout
        self._losing = threading.Lock()
        self._watcher = LossWatch(follower, self.lose, superseded) if follower is not None else None
        self._stats = stats

    def tick(self) -> None:
        """Do what is due."""
        if not self._kept:
            return
        now = time.monotonic()
        to_report: dict[int, list[Item]] = defaultdict(list)
        to_renew: list[Item] = []
        to_store: list[Item] = []
        # A copy in one step: the gate changes the dict at any time.
        for item in list(self._kept.values()):
            age = now - item.started_at
            note = item.job._note
            noted = note is not None and note.due(now) and not item.job.lost
            if noted:
                to_store.append(item)
            elif age < REPORT_AFTER_S:
                continue
            if self._timeout is not None and item.running and age > self._timeout and not item.timed_out:
                self._time_out(item)
            if item.reported != item.attempt:
                to_report[item.partition].append(item)
            elif now >= item.renew_at and not item.timed_out:
                to_renew.append(item)
        for partition, items in to_report.items():
            for at in range(0, len(items), BATCH_MAX):
                self._report(partition, items[at : at + BATCH_MAX])
        for item in to_store:
            # Behind the report that it runs: what is not started has no lease to begin anew.
            if item.reported == item.attempt and item.job._note is not None and not item.job.lost:
                item.job._note.send(now, partial(self._store_progress, item))
        if to_renew:
            self._renew(to_renew, now)

    def _time_out(self, item: Item) -> None:
        """From here on the lease runs out by itself, and another worker gets the job."""
        item.timed_out = True
        self.lose(item, f"the handler runs longer than {self._timeout:g} s")
        self._runner.cancel(item)

    def lose(self, item: Item, reason: str) -> None:
        """An item's attempt is not its own any more: once, its handler hears of it. For any thread."""
        with self._losing:
            if item.job.lost:
                return
            item.job._mark_lost(reason)
        self._stats.add("lost")
        if self._cancel_when_lost and not item.timed_out:
            item.called_off = True
            self._runner.cancel(item)

    def _report(self, partition: int, items: list[Item]) -> None:
        attempts = [(item, item.attempt) for item in items]
        self._tell_slots(partition, items)
        command = StartJobs(self._identity, self._refs(attempts))
        if not self._send(partition, items, encode_about(_known(items), command)):
            return
        self._stats.add("started_sent", len(items))
        now = time.monotonic()
        for item, attempt in attempts:
            item.reported = attempt
            item.renew_at = min(item.renew_at, now + self._lease_s(item) / 3)

    def _refs(self, attempts: Iterable[tuple[Item, int]]) -> tuple[LeaseRef, ...]:
        return tuple(
            LeaseRef(item.key, item.created_seq, attempt, self._lease_ms or item.lease_ms)
            for item, attempt in attempts
        )

    def _lease_s(self, item: Item) -> float:
        """The lease that was asked for; a claim holds as long or longer."""
        return (self._lease_ms or item.lease_ms) / 1_000

    def _extend(self, items: Sequence[Item]) -> None:
        by_partition: dict[int, list[Item]] = defaultdict(list)
        for item in items:
            by_partition[item.partition].append(item)
        for partition, some in by_partition.items():
            self._tell_slots(partition, some)
            command = ExtendJobs(self._identity, self._refs((item, item.attempt) for item in some))
            if self._send(partition, some, encode_about(_known(some), command)):
                self._stats.add("extended", len(some))

    def _store_progress(self, item: Item, detail: bytes) -> bool:
        command = CheckpointJob(item.key, item.created_seq, item.attempt, detail)
        return self._send(item.partition, [item], encode_about(item.created_seq, command))

    def _tell_slots(self, partition: int, items: Sequence[Item]) -> None:
        if self._slots is not None:
            self._slots.tell(partition, items[0].key.encode(), time.monotonic())

    def _send(self, partition: int, items: Sequence[Item], value: bytes) -> bool:
        attempts = [(item, item.attempt) for item in items]

        def sent(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None and self._watcher is not None:
                self._watcher.sent(attempts, partition, offset)

        return self._sender.try_send(self._commands, items[0].key.encode(), value, sent, partition)

    def _renew(self, items: list[Item], now: float) -> None:
        for at in range(0, len(items), BATCH_MAX):
            some = items[at : at + BATCH_MAX]
            self._extend(some)
            for item in some:
                item.renew_at = now + self._lease_s(item) / 3
                if item.running and item.watch is None and self._watcher is not None:
                    _begin_to_watch(item, self._watcher)


def _known(items: Iterable[Item]) -> int:
    """For `encode_about`: by what at least one of them is known; 0: none is."""
    return max(item.created_seq for item in items)


def _begin_to_watch(item: Item, watcher: LossWatch) -> None:
    watcher.watch(item)
    if not item.running:
        item.unwatch()  # it ended meanwhile: who ends one found nothing to cancel
