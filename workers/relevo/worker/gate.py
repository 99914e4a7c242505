"""The thread between reading and running: decides what may start, and sees it through.

The steps of an activation, in this order: (1) still ours, not running here already and, where its type is
ordered, the first of its correlation id, see `lanes`; (2) claimed in the dedup store, its correlation id
before itself; (3) reported as started, see `leases`; (4) run; (5) marked as done in the store; (6) completed,
and the completion acknowledged by Kafka; (7) its offset finished. At most once, there is no store: its offset
is committed in place of (2).

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
from typing import Final, TypeAlias

from relevo.consumer.arrivals import activations
from relevo.consumer.commits import Granted
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
from relevo.worker.outcomes import Completed, Errored, Failed, counted_as
from relevo.worker.schedule import Schedule
from relevo.worker.solitude import Desk, Solitude
from relevo.worker.starting import Hands, Starting
from relevo.worker.waiting import SUSPECT_AFTER, Waiting
from relevo_schemas.delivery import Activation

_log: Final = logging.getLogger("relevo.worker")

IDLE_S: Final = 0.25
FULL_WAIT_S: Final = 0.05

CommitFirst: TypeAlias = Callable[[list[Entry], Granted], None]


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
        commit_first: Commits messages before they are run; None: those that are finished are committed.
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
        commit_first: CommitFirst | None = None,
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
        self._stats = stats
        self._name = name
        self._on_fault = on_fault
        self._endings = Endings(link, self._outbox, self._claims.of, ttl)
        self._inquiries: Inquiries | None = None
        self._runner: Runner | None = None
        self._commit_first = commit_first
        self._doubts = Doubts(self._later, self._claims.seconds)
        commit = self._commit if commit_first is not None else None
        self._starting = Starting(
            self._waiting, self._claims, self._doubts, self._desk, tracker, concurrency, stats,
            Hands(self._submit, commit, self._still_ours, self._drop),
        )  # fmt: skip
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tokens = tokens()
        self._by_key: dict[str, Item] = {}
        self._ended: list[Item] = []
        self._stopping = False
        #: Handlers at work, by key.
        self.running = self._starting.running
        #: Those, and whatever else must not lose its lease and claim, such as what has had its effect while
        #: the store hasn't noted it yet. Read by the threads that renew them.
        self.kept = self._starting.kept
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

    def give_up(self, error: RelevoError) -> None:
        """Nothing can be reported any more: start nothing, but mark as done what still ends."""
        self._inbox.put(partial(self._give_up, error))

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
        if self._stopping:
            self._waiting.keep_committed()
        self._starting.admit(now, self._inquiries)
        self._tracker.set_aside(self._lanes.aside)
        return not (self._stopping and not self._busy())

    def _busy(self) -> bool:
        if self.kept or self._ended or self._waiting:
            return True
        if self.fault is not None:
            return False
        return self._outbox.waiting or any(each.outcome for each in self._by_key.values())

    def _pause(self) -> float:
        if self._outbox.waiting:
            return FULL_WAIT_S
        if self._ended:
            return 0.0
        now = time.monotonic()
        due = self._later.next_at(now + IDLE_S)
        if self._waiting and not self._desk.shut_out and self._starting.room > 0:
            due = min(due, max(now, self._claims.pause_until))
        return max(0.0, due - now)

    def _free(self) -> int:
        return self._starting.free

    def _stop(self) -> None:
        self._stopping = True
        self._starting.stop()

    def _give_up(self, error: RelevoError) -> None:
        _log.error("the worker for %s can't go on: %s", self._name, error)
        self.fault = error
        self._stop()
        self._on_fault()

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
        other_job = known.is_other_than(activation)
        if other_job and activation.created_seq < known.created_seq:
            self._stats.add("stale_dropped")  # its job was over before ours was created
            self._tracker.finish([entry])
            return
        if other_job or (activation.attempt > known.attempt and isinstance(known.outcome, Failed | Errored)):
            # Another job, or the answer to our report: to be run when what is here of the key is through.
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
            match item.outcome:
                case None if item in self._doubts:
                    self._decided(item, True)
                case None:
                    self._waiting.put_first(item)
                case (Completed() | Failed() | Errored()) as outcome if item.told:
                    # What the store was to hear of it, it has heard.
                    self._outbox.add(item, outcome)
                case _:
                    self._ended.append(item)

    def _submit(self, items: list[Item]) -> None:
        if self._runner is not None:
            self._runner.submit(items)

    def _commit(self, entries: list[Entry]) -> None:
        if self._commit_first is not None:
            self._commit_first(entries, lambda granted: self._inbox.put(partial(self._granted, granted)))

    def _granted(self, entries: list[Entry]) -> None:
        self._starting.granted(entries, time.monotonic())

    def _still_ours(self, item: Item) -> bool:
        """Drop an item whose messages have all gone to another worker."""
        if item.outcome is not None or not item.entries[0].gone:
            return True
        item.entries = [entry for entry in item.entries if not entry.gone]
        if item.entries:
            return True
        self._stats.add("stale_dropped")
        self._claims.unlock([item])
        self._forget(item)
        return False

    def _decided(self, item: Item, may_run: bool) -> None:
        self._starting.decided(item, may_run, time.monotonic())

    def _drop(self, item: Item) -> None:
        """The engine has moved on from its attempt, and nothing of it runs here."""
        self._stats.add("stale_dropped")
        item.given_back = True
        self._claims.give_back([item])
        self._tracker.finish(item.entries)
        self._forget(item)

    # Ending

    def _came_back(self, items: list[Item]) -> None:
        for item in items:
            item.running = False
            item.task = None
            item.unwatch()
            if self._at_most_once or not isinstance(item.outcome, Completed):
                self.kept.pop(item.key, None)
        self._starting.ended(items)
        self._ended.extend(items)

    def _conclude(self, now: float) -> None:
        ended, self._ended = self._ended, []
        postponed = self._endings.conclude(ended, now)
        for item in ended:
            if item.told:
                self.kept.pop(item.key, None)
        again = [item for item, _ in postponed if item.outcome is None]
        self._claims.unlock(again)
        self._tracker.put_back(entry for item in again for entry in item.entries)
        for item, due in postponed:
            if item.outcome is None and item.attempt <= item.over:
                self._drop(item)
            else:
                self._later.put(item, due)

    # Acknowledgement

    def _acknowledged(self, acked: Acknowledged) -> None:
        finished: list[Entry] = []
        counts: Counter[str] = Counter()
        there = [item for item, error in acked if error is None]
        self._claims.unlock(there)
        self._endings.acknowledged(there)
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
