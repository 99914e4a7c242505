"""The thread between reading and running: decides what may start, and sees it through.

The steps of an activation, in this order: (1) still ours, not running here already and, where its type is
ordered, the first of its correlation id, see `lanes`; (2) claimed in the dedup store, its correlation id
before itself; (3) reported as started, see `leases`; (4) run; (5) marked as done in the store; (6) completed,
and the completion acknowledged by Kafka; (7) its offset finished.

A suspect, a job of which several attempts fell silent, is reported before it runs, as it may leave no time
after that, and runs alone in its process, see `solitude`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from relevo.consumer.arrivals import activations
from relevo.consumer.offsets import Entry, OffsetTracker
from relevo.dedup.link import StoreLink
from relevo.dedup.store import DedupStore
from relevo.errors import RelevoError
from relevo.sender import Sender
from relevo.stats import WorkerStats
from relevo.worker.claims import Claims
from relevo.worker.dedup_key import KeyOf
from relevo.worker.doubts import Doubts
from relevo.worker.endings import Endings, not_acknowledged
from relevo.worker.execution import Runner
from relevo.worker.inquiries import Inquiries
from relevo.worker.item import Item, tokens
from relevo.worker.lanes import Lanes
from relevo.worker.outbox import Acknowledged, Outbox
from relevo.worker.outcomes import Errored, Failed, counted_as
from relevo.worker.schedule import Schedule
from relevo.worker.solitude import Desk, Solitude
from relevo.worker.waiting import SUSPECT_AFTER, Waiting, note_suspect
from relevo_schemas.delivery import Activation

_log: Final = logging.getLogger("relevo.worker")

IDLE_S: Final = 0.25
CLAIM_BATCH_MAX: Final = 500
FULL_WAIT_S: Final = 0.05


class Gate:
    """One job type's way from arrival to acknowledgement.

    Its state belongs to its thread; others put into the inbox.

    Args:
        commands: The commands topic.
        namespace: Put before a job's key to make its dedup key; or a function of the job that makes it.
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
        solitude: Where suspects of this process run alone; shared with its other job types.
        suspect_after: So many silent attempts make a job a suspect; None: none is one.
        order_prefix: Put before a correlation id to make the key of its lock; None: the type is not ordered.
    """

    def __init__(
        self,
        *,
        commands: str,
        namespace: str | KeyOf,
        tracker: OffsetTracker,
        sender: Sender,
        store: DedupStore | None,
        concurrency: int,
        claim_s: Callable[[int], float],
        ttl: float | None,
        stats: WorkerStats,
        name: str,
        on_fault: Callable[[], None],
        solitude: Solitude | None = None,
        suspect_after: int | None = SUSPECT_AFTER,
        order_prefix: str | None = None,
    ) -> None:
        self._outbox = Outbox(commands, sender, self._hand_in)
        self._tracker = tracker
        link = StoreLink(store, name, stats) if store is not None else None
        self._at_most_once = store is None
        self._desk = Desk(solitude or Solitude(), lambda: self._inbox.put(lambda: None))
        self._lanes = Lanes(order_prefix)
        self._waiting = Waiting(self._desk, self._still_ours, suspect_after, self._lanes)
        self._later = Schedule()
        self._claims = Claims(
            link, namespace, claim_s, self._outbox, self._later.put, self._waiting.put_first, stats, ttl
        )
        self._concurrency = concurrency
        self._stats = stats
        self._name = name
        self._on_fault = on_fault
        self._endings = Endings(link, self._outbox, self._claims.of, ttl)
        self._inquiries: Inquiries | None = None
        self._doubts = Doubts(self._later, self._claims.seconds)
        self._runner: Runner | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tokens = tokens()
        self._by_key: dict[str, Item] = {}
        self._ended: list[Item] = []
        self._stopping = False
        #: Handlers at work, by key. Read by the threads that renew leases and claims.
        self.running: dict[str, Item] = {}
        #: When its thread last came round, in monotonic seconds; 0: not yet.
        self.turned_at = 0.0
        #: Why the worker can't go on, if it can't.
        self.fault: Exception | None = None
        self.thread = threading.Thread(target=self._run, name=f"relevo-gate-{name}", daemon=True)

    def start(self, runner: Runner, inquiries: Inquiries | None = None) -> None:
        """Start the thread; ``runner`` runs the handlers, ``inquiries`` asks about doubtful starts."""
        self._runner = runner
        self._inquiries = inquiries
        self.thread.start()

    # From other threads

    def deliver(self, arrivals: list[tuple[Entry, bytes]]) -> None:
        """Activations have been read."""
        self._inbox.put(partial(self._arrived, arrivals))

    def finished(self, items: list[Item]) -> None:
        """Handlers have ended; each item has its outcome."""
        self._inbox.put(partial(self._came_back, items))

    def decided(self, item: Item, may_run: bool) -> None:
        """The engine has answered whether the item may run."""
        self._inbox.put(partial(self._decided, item, may_run))

    def superseded(self, item: Item, attempt: int) -> None:
        """The engine has moved on from this attempt: messages up to it are of no more use."""
        self._inbox.put(partial(self._superseded, item, attempt))

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
                self.turned_at = time.monotonic()
        except RelevoError as error:
            _log.error("the worker for %s can't go on: %s", self._name, error)
            self.fault = error
        except Exception as error:
            _log.exception("the worker for %s ended", self._name)
            self.fault = error
        self._desk.close()
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
        self._tracker.set_aside(self._lanes.aside)
        return not (self._stopping and not self._busy())

    def _busy(self) -> bool:
        under_way = self.running or self._ended or self._outbox.waiting
        return bool(under_way or any(each.outcome for each in self._by_key.values()))

    def _pause(self) -> float:
        if self._outbox.waiting:
            return FULL_WAIT_S
        if self._ended:
            return 0.0
        now = time.monotonic()
        due = self._later.next_at(now + IDLE_S)
        if self._waiting and not self._desk.shut_out and self._free() > 0:
            due = min(due, max(now, self._claims.pause_until))
        return max(0.0, due - now)

    def _free(self) -> int:
        return self._concurrency - len(self.running) - len(self._doubts)

    def _stop(self) -> None:
        self._stopping = True
        self._desk.withdraw()

    # Arrivals

    def _arrived(self, arrivals: list[tuple[Entry, bytes]]) -> None:
        for entry, activation in activations(arrivals, self._tracker, self._stats):
            self._take(entry, activation)

    def _take(self, entry: Entry, activation: Activation) -> None:
        known = self._by_key.get(activation.job.key)
        if known is None:
            item = self._by_key[activation.job.key] = Item(entry, activation, next(self._tokens))
            if self._at_most_once and activation.attempt > 1:
                item.outcome = Errored(
                    "MAYBE_RUN", "handed over before, and this type runs a job at most once"
                )
                self._ended.append(item)
            elif self._lanes.enter(item):
                self._waiting.put(item)
            return
        if activation.attempt > known.attempt and isinstance(known.outcome, Failed | Errored):
            # The answer to our report: an attempt of its own, to be run when the report is through.
            known.behind = [*(known.behind or ()), (entry, activation)]
            return
        self._stats.add("duplicates_suppressed")
        known.entries.append(entry)
        known.meet_again(activation)
        if known.running:
            self._tracker.start([entry])

    # Starting

    def _bring_due(self, now: float) -> None:
        for item in self._later.due(now):
            if item in self._doubts:
                self._decided(item, True)
            elif item.outcome is None:
                self._waiting.put_first(item)
            else:
                self._ended.append(item)

    def _admit(self, now: float) -> None:
        free = self._free()
        if free <= 0 or not self._waiting:
            return
        limit = self._claims.limit(min(free, CLAIM_BATCH_MAX))
        batch = self._waiting.next(limit, self._claims, now)
        if not batch:
            return
        mine = self._claims.take(batch, now)
        self._desk.leave(set(batch).difference(mine))
        if self._inquiries is not None:
            mine = self._ask_about_doubtful(self._inquiries, mine, now)
        self._run_mine(mine, now)

    def _still_ours(self, item: Item) -> bool:
        """Drop an item whose messages have all gone to another worker."""
        if item.outcome is not None or not item.entries[0].ownership.closing:
            return True
        item.entries = [entry for entry in item.entries if not entry.ownership.closing]
        if item.entries:
            return True
        self._stats.add("stale_dropped")
        self._claims.unlock([item])
        self._forget(item)
        return False

    def _ask_about_doubtful(self, inquiries: Inquiries, mine: list[Item], now: float) -> list[Item]:
        """Ask the engine about what may have been started before, and about suspects; returns the rest."""
        doubtful = [item for item in mine if item.entries[0].doubtful or self._waiting.is_suspect(item)]
        if not doubtful:
            return mine
        self._doubts.ask(inquiries, doubtful, now)
        return [item for item in mine if item not in self._doubts]

    def _decided(self, item: Item, may_run: bool) -> None:
        if not self._doubts.settle(item):
            return
        if may_run:
            self._run_mine([item], time.monotonic())
            return
        self._desk.leave([item])
        if item.attempt != item.reported:
            # A later attempt came while we asked about this one.
            self._claims.unlock([item])
            self._waiting.put_first(item)
            return
        self._drop(item)

    def _drop(self, item: Item) -> None:
        """The engine has moved on from its attempt, and nothing of it runs here."""
        self._stats.add("stale_dropped")
        item.given_back = True
        self._claims.give_back([item])
        self._tracker.finish(item.entries)
        self._forget(item)

    def _run_mine(self, mine: list[Item], now: float) -> None:
        if not mine:
            return
        allowed = self._tracker.start([item.entries[0] for item in mine])
        if not all(allowed):
            mine = self._give_back(mine, allowed)
        for item in mine:
            item.start(now, self._claims.seconds(item))
            self.running[item.key] = item
            if self._waiting.is_suspect(item):
                note_suspect(item, self._stats)
            if len(item.entries) > 1:
                self._tracker.start(item.entries[1:])
        if mine and self._runner is not None:
            self._stats.add("started", len(mine))
            self._runner.submit(mine)

    def _give_back(self, mine: list[Item], allowed: list[bool]) -> list[Item]:
        """Revoked between claim and start: the next owner shall not wait for our claims."""
        dropped = [item for item, ours in zip(mine, allowed, strict=True) if not ours]
        self._claims.give_back(dropped)
        self._desk.leave(dropped)
        for item in dropped:
            if self._still_ours(item):
                self._waiting.put_first(item)
        return [item for item, ours in zip(mine, allowed, strict=True) if ours]

    # Ending

    def _came_back(self, items: list[Item]) -> None:
        for item in items:
            item.running = False
            item.task = None
            self.running.pop(item.key, None)
            item.unwatch()
        self._desk.leave(items)
        self._ended.extend(items)

    def _conclude(self, now: float) -> None:
        ended, self._ended = self._ended, []
        postponed = self._endings.conclude(ended, now)
        self._claims.unlock(item for item, _ in postponed if item.outcome is None)
        for item, due in postponed:
            if item.outcome is None and item.attempt <= item.over:
                self._drop(item)
            else:
                self._later.put(item, due)

    # Acknowledgement

    def _acknowledged(self, acked: Acknowledged) -> None:
        finished: list[Entry] = []
        counts: Counter[str] = Counter()
        self._claims.unlock(item for item, error in acked if error is None)
        for item, error in acked:
            if error is not None:
                self._later.put(item, time.monotonic() + not_acknowledged(item, error, self._stats))
                continue
            counts[counted_as(item.outcome)] += 1
            finished += item.entries
            self._forget(item)
        self._tracker.finish(finished)
        self._stats.concluded(counts)

    def _superseded(self, item: Item, attempt: int) -> None:
        item.over = max(item.over, attempt)
        if item.attempt <= attempt:
            self._tracker.finish(item.entries)
            # What it does from now on harms no attempt: nobody need wait for it.
            self._desk.leave([item])

    def _forget(self, item: Item) -> None:
        if self._by_key.get(item.key) is item:
            del self._by_key[item.key]
        following = self._lanes.leave(item, time.monotonic())
        if following is not None:
            # Behind those that wait by now, so that one correlation id can't keep a slot from the others.
            item_behind, due = following
            if due:
                self._later.put(item_behind, due)
            else:
                self._waiting.put(item_behind)
        for entry, activation in item.behind or ():
            self._take(entry, activation)
        item.behind = None
