"""The thread between reading and running: decides what may start, and sees it through.

The steps of an activation, in this order: (1) still ours, and not running here already; (2) claimed in the
dedup store; (3) reported as started, see `leases`; (4) run; (5) marked as done in the store; (6) completed,
and the completion acknowledged by Kafka; (7) its offset finished.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from confluent_kafka import KafkaError

from relevo.dedup.link import StoreLink, backoff_s
from relevo.dedup.store import Claim, DedupStore, Done, Held, Mine, Unknown
from relevo.endings import HELD_WAIT_MAX_S, Endings
from relevo.errors import RelevoError
from relevo.execution import Runner
from relevo.item import Item
from relevo.offsets import Entry, OffsetTracker
from relevo.outbox import Acknowledged, Outbox
from relevo.outcomes import Completed, Errored, Failed
from relevo.sender import Sender
from relevo.stats import WorkerStats
from relevo_schemas.codec import decode
from relevo_schemas.delivery import Activation
from relevo_schemas.errors import RecordError, RecordFault

_log: Final = logging.getLogger("relevo.worker")

IDLE_S: Final = 0.25
CLAIM_BATCH_MAX: Final = 500
FULL_WAIT_S: Final = 0.05


class Gate:
    """One job type's way from arrival to acknowledgement.

    Its state belongs to its thread; others put into the inbox.

    Args:
        commands: The commands topic.
        namespace: Put before a job's key to make its dedup key.
        tracker: Keeps what may be committed.
        sender: Sends what the handlers' ends mean.
        store: The dedup store; None: at most once, nothing is claimed.
        concurrency: How many handlers may run at once.
        claim_s: How long a claim of a job with this lease (in milliseconds) holds without renewal, in
            seconds.
        ttl: Window for done marks in seconds; None: the store's own.
        stats: Counters.
        name: What to call the worker in logs.
        on_fault: Called when the worker can't go on; `fault` says why.
    """

    def __init__(
        self,
        *,
        commands: str,
        namespace: str,
        tracker: OffsetTracker,
        sender: Sender,
        store: DedupStore | None,
        concurrency: int,
        claim_s: Callable[[int], float],
        ttl: float | None,
        stats: WorkerStats,
        name: str,
        on_fault: Callable[[], None],
    ) -> None:
        self._outbox = Outbox(commands, sender, self._hand_in)
        self._namespace = namespace
        self._tracker = tracker
        self._store = StoreLink(store, name, stats) if store is not None else None
        self._concurrency = concurrency
        self._claim_s = claim_s
        self._stats = stats
        self._name = name
        self._on_fault = on_fault
        self._endings = Endings(self._store, self._outbox, self._claim_of, ttl)
        self._runner: Runner | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._token_prefix = secrets.token_hex(8)
        self._token_numbers = itertools.count(1)
        self._by_key: dict[str, Item] = {}
        self._waiting: deque[Item] = deque()
        self._later: list[tuple[float, int, Item]] = []
        self._order = itertools.count()
        self._ended: list[Item] = []
        self._stopping = False
        #: Handlers at work, by key. Read by the lease thread.
        self.running: dict[str, Item] = {}
        #: Why the worker can't go on, if it can't.
        self.fault: Exception | None = None
        self.thread = threading.Thread(target=self._run, name=f"relevo-gate-{name}", daemon=True)

    def start(self, runner: Runner) -> None:
        """Start the thread; handlers run in ``runner``."""
        self._runner = runner
        self.thread.start()

    # From other threads

    def deliver(self, arrivals: list[tuple[Entry, bytes]]) -> None:
        """Activations have been read."""
        self._inbox.put(partial(self._arrived, arrivals))

    def finished(self, items: list[Item]) -> None:
        """Handlers have ended; each item has its outcome."""
        self._inbox.put(partial(self._came_back, items))

    def superseded(self, item: Item) -> None:
        """The engine has moved on from this attempt: its messages are of no more use."""
        self._inbox.put(partial(self._tracker.finish, item.entries))

    def stop(self) -> None:
        """Start nothing more; end when nothing is under way any more."""
        self._inbox.put(self._stop)

    def abandon(self) -> None:
        """End now."""
        self._inbox.put(None)

    def _hand_in(self, acked: Acknowledged) -> None:
        self._inbox.put(partial(self._acknowledged, acked))

    # The thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except RelevoError as error:
            _log.error("the worker for %s can't go on: %s", self._name, error)
            self.fault = error
        except Exception as error:
            _log.exception("the worker for %s ended", self._name)
            self.fault = error
        if self.fault is not None:
            self._on_fault()

    def _turn(self) -> bool:
        """One round; False: the end."""
        try:
            work = self._inbox.get(timeout=self._pause())
            while True:
                if work is None:
                    return False
                work()
                work = self._inbox.get_nowait()
        except queue.Empty:
            pass
        now = time.monotonic()
        self._bring_due(now)
        if self._ended:
            self._conclude(now)
        self._outbox.send()
        if not self._stopping:
            self._admit(now)
        return not (self._stopping and not self._busy())

    def _busy(self) -> bool:
        return bool(
            self.running
            or self._ended
            or self._outbox.waiting
            or any(each.outcome for each in self._by_key.values())
        )

    def _pause(self) -> float:
        if self._outbox.waiting:
            return FULL_WAIT_S
        if self._ended:
            return 0.0
        now = time.monotonic()
        due = now + IDLE_S
        if self._later:
            due = min(due, self._later[0][0])
        if self._waiting and len(self.running) < self._concurrency:
            due = min(due, self._store.pause_until if self._store is not None else now)
        return max(0.0, due - now)

    def _stop(self) -> None:
        self._stopping = True

    # Arrivals

    def _arrived(self, arrivals: list[tuple[Entry, bytes]]) -> None:
        for entry, value in arrivals:
            try:
                activation = decode(value)
                if not isinstance(activation, Activation):
                    raise RecordError(
                        RecordFault.NOT_A_RECORD, f"a {type(activation).__name__} is no activation"
                    )
            except RecordError as error:
                self._damaged(entry, error)
            else:
                self._take(entry, activation)

    def _damaged(self, entry: Entry, error: RecordError) -> None:
        where = f"{entry.ownership.topic} [{entry.ownership.partition}] at {entry.offset}"
        _log.error("%s can't be read, skipped: %s: %s", where, error.fault, error)
        self._stats.add("damaged")
        self._tracker.finish([entry])

    def _take(self, entry: Entry, activation: Activation) -> None:
        known = self._by_key.get(activation.job.key)
        if known is None:
            token = f"{self._token_prefix}-{next(self._token_numbers)}"
            item = self._by_key[activation.job.key] = Item(entry, activation, token)
            if self._store is None and activation.attempt > 1:
                item.outcome = Errored(
                    "MAYBE_RUN", "handed over before, and this type runs a job at most once"
                )
                self._ended.append(item)
            else:
                self._waiting.append(item)
            return
        if activation.attempt > known.attempt and isinstance(known.outcome, Failed | Errored):
            # The answer to our report: an attempt of its own, to be run when the report is through.
            known.behind = [*(known.behind or ()), (entry, activation)]
            return
        self._stats.add("duplicates_suppressed")
        known.entries.append(entry)
        known.attempt = max(known.attempt, activation.attempt)
        if known.running:
            self._tracker.start([entry])

    # Starting

    def _bring_due(self, now: float) -> None:
        later = self._later
        while later and later[0][0] <= now:
            _, _, item = heapq.heappop(later)
            if item.outcome is None:
                self._waiting.appendleft(item)
            else:
                self._ended.append(item)

    def _postpone(self, item: Item, due: float) -> None:
        heapq.heappush(self._later, (due, next(self._order), item))

    def _admit(self, now: float) -> None:
        free = self._concurrency - len(self.running)
        if free <= 0 or not self._waiting or (self._store is not None and not self._store.ready()):
            return
        # While the store is down one job at a time asks it, not the whole buffer.
        limit = 1 if self._store is not None and self._store.silent else min(free, CLAIM_BATCH_MAX)
        batch: list[Item] = []
        while self._waiting and len(batch) < limit:
            item = self._waiting.popleft()
            if self._still_ours(item):
                batch.append(item)
        if batch:
            self._run_mine(self._claim(batch, now), now)

    def _still_ours(self, item: Item) -> bool:
        """Drop an item whose messages have all gone to another worker."""
        if item.outcome is not None or not item.entries[0].ownership.closing:
            return True
        item.entries = [entry for entry in item.entries if not entry.ownership.closing]
        if item.entries:
            return True
        self._stats.add("stale_dropped")
        self._forget(item)
        return False

    def _claim(self, batch: list[Item], now: float) -> list[Item]:
        """Ask the store for each; returns those that may run."""
        if self._store is None:
            return batch
        claims = [self._claim_of(item) for item in batch]
        answers = self._store.claim(claims)
        silent = self._store.silent > 0
        mine = []
        for item, claim, answer in zip(batch, claims, answers, strict=True):
            match answer:
                case Mine():
                    item.tries = 0
                    item.claim_until = now + claim.seconds
                    mine.append(item)
                case Done(result):
                    self._stats.add("duplicates_suppressed")
                    item.tries = 0
                    item.job._stored = result
                    item.outcome = Completed(result)
                    self._outbox.add(item, item.outcome)
                case Held(until):
                    self._stats.add("claim_waits")
                    item.tries += 1
                    wait = min(until - time.time(), HELD_WAIT_MAX_S, backoff_s(item.tries))
                    self._postpone(item, now + max(wait, 0.02))
                case Unknown():
                    self._after_unknown(item, now, silent)
        self._outbox.send()
        return mine

    def _claim_of(self, item: Item) -> Claim:
        return Claim(self._namespace + item.key, item.token, self._claim_s(item.lease_ms))

    def _after_unknown(self, item: Item, now: float, silent: bool) -> None:
        if silent:
            # The link decides when the store is asked again; this one then comes first.
            self._waiting.appendleft(item)
        else:
            item.tries += 1
            self._postpone(item, now + backoff_s(item.tries))

    def _run_mine(self, mine: list[Item], now: float) -> None:
        if not mine:
            return
        allowed = self._tracker.start([item.entries[0] for item in mine])
        if not all(allowed):
            mine = self._give_back(mine, allowed)
        for item in mine:
            item.running = True
            item.started_at = now
            item.renew_at = now + self._claim_s(item.lease_ms) / 3
            self.running[item.key] = item
            if len(item.entries) > 1:
                self._tracker.start(item.entries[1:])
        if mine and self._runner is not None:
            self._stats.add("started", len(mine))
            self._runner.submit(mine)

    def _give_back(self, mine: list[Item], allowed: list[bool]) -> list[Item]:
        """Revoked between claim and start: the next owner shall not wait for our claims."""
        dropped = [item for item, ours in zip(mine, allowed, strict=True) if not ours]
        if self._store is not None:
            self._store.release([self._claim_of(item) for item in dropped])
        for item in dropped:
            if self._still_ours(item):
                self._waiting.appendleft(item)
        return [item for item, ours in zip(mine, allowed, strict=True) if ours]

    # Ending

    def _came_back(self, items: list[Item]) -> None:
        for item in items:
            item.running = False
            item.task = None
            self.running.pop(item.key, None)
            if item.watch is not None:
                item.watch.cancel()
                item.watch = None
        self._ended.extend(items)

    def _conclude(self, now: float) -> None:
        ended, self._ended = self._ended, []
        for item, due in self._endings.conclude(ended, now):
            self._postpone(item, due)

    # Acknowledgement

    def _acknowledged(self, acked: Acknowledged) -> None:
        finished: list[Entry] = []
        counts = {"done": 0, "failed": 0, "errored": 0}
        for item, error in acked:
            if error is not None:
                self._resend(item, error)
                continue
            match item.outcome:
                case Completed():
                    counts["done"] += 1
                case Failed():
                    counts["failed"] += 1
                case _:
                    counts["errored"] += 1
            finished += item.entries
            self._forget(item)
        self._tracker.finish(finished)
        for name, count in counts.items():
            if count:
                self._stats.add(name, count)

    def _resend(self, item: Item, error: KafkaError) -> None:
        item.tries += 1
        self._stats.add("resent")
        if item.tries in (1, 10, 100):
            _log.warning("the outcome of job %r is not acknowledged (%s): sent again", item.key, error.str())
        self._postpone(item, time.monotonic() + backoff_s(item.tries))

    def _forget(self, item: Item) -> None:
        if self._by_key.get(item.key) is item:
            del self._by_key[item.key]
        for entry, activation in item.behind or ():
            self._take(entry, activation)
        item.behind = None
