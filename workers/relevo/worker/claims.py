"""Asks the dedup store who may run, and deals with each answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from relevo.dedup.link import StoreLink, backoff_s
from relevo.dedup.store import Claim, Done, Held, Mine, Unknown
from relevo.errors import InvalidRequest
from relevo.stats import WorkerStats
from relevo.worker.dedup_key import KeyOf
from relevo.worker.item import Item
from relevo.worker.locks import OrderLocks
from relevo.worker.outbox import Outbox
from relevo.worker.outcomes import Completed, Failed
from relevo.worker.transactions import Grant

HELD_WAIT_MAX_S: Final = 1.0
HELD_WAIT_MIN_S: Final = 0.02


class Claims:
    """The claims of one job type. Used by the gate's thread.

    Args:
        store: The dedup store; None: at most once, where nothing is claimed.
        namespace: Put before a job's key to make its dedup key; or a function of the job that makes it.
        claim_s: How long a claim holds, from the job's lease in milliseconds, in seconds.
        outbox: Takes the completions of what was done before.
        postpone: Brings an item again at a time, in monotonic seconds.
        next_up: Brings an item again as the next one.
        stats: Counters.
        ttl: Window for done marks in seconds; None: the store's own.
    """

    def __init__(
        self,
        store: StoreLink | None,
        namespace: str | KeyOf,
        claim_s: Callable[[int], float],
        outbox: Outbox,
        postpone: Callable[[Item, float], None],
        next_up: Callable[[Item], None],
        stats: WorkerStats,
        ttl: float | None = None,
    ) -> None:
        self._store = store
        self._key_of = namespace if callable(namespace) else lambda job: namespace + job.key
        self._ttl = ttl
        self._locks = OrderLocks(store, claim_s, postpone, next_up, stats) if store is not None else None
        self._claim_s = claim_s
        self._outbox = outbox
        self._postpone = postpone
        self._next_up = next_up
        self._stats = stats

    def limit(self, free: int) -> int:
        """How many may be claimed now, where so many could run.

        While the store is silent one job at a time asks it, not the whole buffer.

        Raises:
            StoreUnsafe: The store would forget claims.
        """
        if self._store is None:
            return free
        if not self._store.ready():
            return 0
        return 1 if self._store.silent else free

    @property
    def pause_until(self) -> float:
        """Nothing can be claimed before, in monotonic seconds."""
        return self._store.pause_until if self._store is not None else 0.0

    def seconds(self, item: Item) -> float:
        """How long its claim holds."""
        return self._claim_s(item.lease_ms)

    def of(self, item: Item) -> Claim:
        """The claim of an item.

        Raises:
            InvalidRequest: The job has no dedup key; never for one that was claimed before.
        """
        claim = item.claim
        if claim is None:
            claim = item.claim = Claim(self._key_of(item.job), item.token, self._claim_s(item.lease_ms))
        return claim

    def take(self, batch: list[Item], now: float) -> list[Item]:
        """Ask for each; returns those that may run, the others are seen to.

        One whose correlation id another job has is not asked for; one that another worker has gives its
        correlation id back, and so nobody waits for one of the two while it has the other.
        """
        if self._store is None or self._locks is None:
            return batch
        batch = [item for item in self._locks.take(batch, now) if self._has_key(item)]
        if not batch:
            self._outbox.send()
            return []
        claims = [self.of(item) for item in batch]
        answers = self._store.claim(claims)
        mine = []
        held = []
        for item, claim, answer in zip(batch, claims, answers, strict=True):
            match answer:
                case Mine():
                    if item.held_since:
                        self._note_waited(item, now)
                    item.tries = 0
                    item.claim_until = now + claim.seconds
                    item.job._grant = Grant(self._store.store, claim, self._ttl)
                    mine.append(item)
                case Done(result):
                    if item.held_since:
                        self._note_waited(item, now)
                    self._stats.add("duplicates_suppressed")
                    item.tries = 0
                    item.outcome = Completed(result)
                    self._outbox.add(item, item.outcome)
                case Held(until):
                    self._stats.add("claim_waits")
                    item.held_since = item.held_since or now
                    item.tries += 1
                    held.append(item)
                    wait = min(until - time.time(), HELD_WAIT_MAX_S, backoff_s(item.tries))
                    self._postpone(item, now + max(wait, HELD_WAIT_MIN_S))
                case Unknown() if self._store.silent:
                    # The link decides when the store is asked again; this one then comes first.
                    self._next_up(item)
                case Unknown():
                    item.tries += 1
                    self._postpone(item, now + backoff_s(item.tries))
        self._locks.release(held)
        self._outbox.send()
        return mine

    def _note_waited(self, item: Item, now: float) -> None:
        self._stats.add("claim_wait_ms", round((now - item.held_since) * 1_000))
        item.held_since = 0.0

    @property
    def silent(self) -> bool:
        """Whether the store gave no answer when it was asked last."""
        return self._store is not None and self._store.silent > 0

    def _has_key(self, item: Item) -> bool:
        """Whether it can be claimed; one that never can is reported as failed for good."""
        try:
            self.of(item)
        except InvalidRequest as error:
            item.outcome = Failed(str(error), retriable=False, kind="dedup_key")
            self._outbox.add(item, item.outcome)
            return False
        return True

    def give_back(self, items: list[Item]) -> None:
        """Nobody shall wait for claims of jobs that aren't run here after all."""
        claims = [item.claim for item in items if item.claim is not None]
        if self._store is not None and claims:
            self._store.release(claims)
            self.unlock(items)

    def unlock(self, items: Iterable[Item]) -> None:
        """The next job of each one's correlation id may begin, here or elsewhere."""
        if self._locks is not None:
            self._locks.release(items)
