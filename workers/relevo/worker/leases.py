"""The thread that tells the engine and the dedup store that handlers are alive, whatever the handlers do."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, Message

from relevo.dedup.store import Answer, Claim, DedupStore, Done, Held, Mine, Unknown
from relevo.follower import Follower
from relevo.sender import Sender
from relevo.stats import WorkerStats
from relevo.worker.execution import Runner
from relevo.worker.item import Item
from relevo.worker.slot_reports import SlotReports
from relevo.worker.watch import LossWatch
from relevo_schemas.codec import encode
from relevo_schemas.commands import CheckpointJob, ExtendJobs, LeaseRef, StartJobs

_log: Final = logging.getLogger("relevo.worker")

TICK_S: Final = 0.025
REPORT_AFTER_S: Final = 0.05
"""Shorter jobs just complete: Kafka keeps what nobody has reported as started."""
BATCH_MAX: Final = 500
RENEW_AGAIN_S: Final = 1.0


class LeaseKeeper:
    """Reports and renews the running jobs of one type. `tick` is called by the thread of `LeaseThread`.

    Args:
        commands: The commands topic.
        namespace: Put before the key of a job that has no claim yet, to make its dedup key.
        identity: Names this worker process.
        running: Handlers at work, by key; owned by the gate.
        runner: Runs the handlers.
        sender: Sends the commands.
        store: The dedup store; None: nothing is claimed.
        lease_ms: The type's own lease in milliseconds; 0: the job's.
        claim_s: How long a claim holds, from the job's lease in milliseconds, in seconds.
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
        namespace: str,
        identity: str,
        running: dict[str, Item],
        runner: Runner,
        sender: Sender,
        store: DedupStore | None,
        lease_ms: int,
        claim_s: Callable[[int], float],
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
        self._namespace = namespace
        self._identity = identity
        self._running = running
        self._runner = runner
        self._sender = sender
        self._store = store
        self._lease_ms = lease_ms
        self._claim_s = claim_s
        self._timeout = timeout
        self._watcher = LossWatch(follower, self._lose, superseded) if follower is not None else None
        self._stats = stats

    def tick(self) -> None:
        """Do what is due."""
        if not self._running:
            return
        now = time.monotonic()
        to_report: dict[int, list[Item]] = defaultdict(list)
        to_renew: list[Item] = []
        to_store: list[Item] = []
        # A copy in one step: the gate changes the dict at any time.
        for item in list(self._running.values()):
            age = now - item.started_at
            note = item.job._note
            noted = note is not None and note.due(now) and not item.job.lost
            if noted:
                to_store.append(item)
            elif age < REPORT_AFTER_S:
                continue
            if self._timeout is not None and age > self._timeout and not item.timed_out:
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
        self._lose(item, f"the handler runs longer than {self._timeout:g} s")
        self._runner.cancel(item)

    def _lose(self, item: Item, reason: str) -> None:
        if not item.job.lost:
            self._stats.add("lost")
            item.job._mark_lost(reason)
            if self._cancel_when_lost and not item.timed_out:
                item.called_off = True
                self._runner.cancel(item)

    # The engine

    def _report(self, partition: int, items: list[Item]) -> None:
        attempts = [(item, item.attempt) for item in items]
        self._tell_slots(partition, items)
        command = StartJobs(
            self._identity,
            tuple(LeaseRef(item.key, attempt, self._lease_ms or item.lease_ms) for item, attempt in attempts),
        )
        if not self._send(partition, items, encode(command)):
            return
        self._stats.add("started_sent", len(items))
        now = time.monotonic()
        for item, attempt in attempts:
            item.reported = attempt
            item.renew_at = min(item.renew_at, now + self._lease_s(item) / 3)

    def _lease_s(self, item: Item) -> float:
        """The lease that was asked for; a claim holds as long or longer."""
        return (self._lease_ms or item.lease_ms) / 1_000

    def _extend(self, items: Sequence[Item]) -> None:
        by_partition: dict[int, list[Item]] = defaultdict(list)
        for item in items:
            by_partition[item.partition].append(item)
        for partition, some in by_partition.items():
            self._tell_slots(partition, some)
            refs = tuple(LeaseRef(item.key, item.attempt, self._lease_ms or item.lease_ms) for item in some)
            if self._send(partition, some, encode(ExtendJobs(self._identity, refs))):
                self._stats.add("extended", len(some))

    def _store_progress(self, item: Item, detail: bytes) -> bool:
        command = CheckpointJob(item.key, item.attempt, detail)
        return self._send(item.partition, [item], encode(command))

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

    # The store

    def _renew(self, items: list[Item], now: float) -> None:
        for at in range(0, len(items), BATCH_MAX):
            some = items[at : at + BATCH_MAX]
            self._extend(some)
            for item in some:
                item.renew_at = now + self._lease_s(item) / 3
                if item.watch is None and self._watcher is not None:
                    self._watcher.watch(item)
            if self._store is not None:
                self._renew_claims(self._store, some, now)

    def _renew_claims(self, store: DedupStore, items: list[Item], now: float) -> None:
        claims = [
            item.claim or Claim(self._namespace + item.key, item.token, self._claim_s(item.lease_ms))
            for item in items
        ]
        locks = [(item, lock) for item in items if (lock := item.lock) is not None]
        wanted = claims + [lock for _, lock in locks]
        try:
            answers: list[Answer] = store.renew(wanted)
        except Exception as error:
            answers = [Unknown(type(error).__name__)] * len(wanted)
        of_locks = {item: answer for (item, _), answer in zip(locks, answers[len(items) :], strict=False)}
        for item, claim, answer in zip(items, claims, answers, strict=False):
            taken_by = "another worker has claimed the job"
            if isinstance(answer, Mine) and item in of_locks:
                answer, taken_by = of_locks[item], "another job of its correlation id has begun"
            match answer:
                case Mine():
                    item.claim_until = now + claim.seconds
                case Done() | Held():
                    # It may just have ended: then the done mark is its own.
                    if item.running:
                        self._lose(item, taken_by)
                case Unknown(reason):
                    item.renew_at = min(item.renew_at, now + RENEW_AGAIN_S)
                    self._stats.add("unknown_claims")
                    if now > item.claim_until and item.running:
                        self._lose(item, f"the claim could not be renewed in time: {reason}")
        # Given back while we asked: it has been taken again, for nobody.
        late = [lock for item, lock in locks if item.lock is not lock]
        if late:
            store.release(late)


class LeaseThread:
    """One thread for all types of a process."""

    def __init__(self) -> None:
        self._keepers: list[LeaseKeeper] = []
        self._stop = threading.Event()
        #: When it last came round, in monotonic seconds; 0: not yet.
        self.turned_at = 0.0
        self._thread = threading.Thread(target=self._run, name="relevo-leases", daemon=True)

    def add(self, keeper: LeaseKeeper) -> None:
        """Serve ``keeper`` too."""
        self._keepers = [*self._keepers, keeper]

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            self.turned_at = time.monotonic()
            for keeper in self._keepers:
                try:
                    keeper.tick()
                except Exception:
                    # The others' leases must not run out because of this one.
                    _log.exception("renewing leases failed")

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
