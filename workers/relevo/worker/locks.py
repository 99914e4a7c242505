"""One job of a correlation id at a time among all workers: a claim on the id, taken before the job's own."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Final

from relevo.dedup.link import StoreLink, backoff_s
from relevo.dedup.store import Claim, Done, Held, Mine, Unknown
from relevo.stats import WorkerStats
from relevo.worker.item import Item
from relevo.worker.lanes import Lane

LOCK_WAIT_MAX_S: Final = 0.5
LOCK_WAIT_MIN_S: Final = 0.02
OWED_MAX: Final = 10_000


def lock_prefix(cluster: str, job_type: str) -> str:
    """Put before a correlation id to make the key of its lock in the dedup store."""
    return f"{cluster}:order:{job_type}:"


def is_lock(claim: Claim) -> bool:
    """Whether a claim is one of these, and not of a job: no cluster's name has a colon."""
    return claim.key.partition(":")[2].startswith("order:")


class OrderLocks:
    """The locks of one job type. Used by the gate's thread; a `ClaimKeeper` renews those of running jobs.

    A lock has a token of its own each time it is taken: a renewal that was under way when it was given back
    can't be mistaken for the next one.

    Args:
        store: The dedup store.
        claim_s: How long a lock holds, from the job's lease in milliseconds, in seconds.
        postpone: Brings an item again at a time, in monotonic seconds.
        next_up: Brings an item again as the next one.
        stats: Counters.
    """

    def __init__(
        self,
        store: StoreLink,
        claim_s: Callable[[int], float],
        postpone: Callable[[Item, float], None],
        next_up: Callable[[Item], None],
        stats: WorkerStats,
    ) -> None:
        self._store = store
        self._claim_s = claim_s
        self._postpone = postpone
        self._next_up = next_up
        self._stats = stats
        self._token_prefix = secrets.token_hex(8)
        self._token_numbers = itertools.count(1)
        self._owed: list[Claim] = []

    def take(self, batch: list[Item], now: float) -> list[Item]:
        """Ask for the lock of each; returns those that may go on, the others are brought again."""
        wishes = [(item, lane, self._wish(item, lane)) for item in batch if (lane := item.lane) is not None]
        if not wishes:
            return batch
        if self._owed:
            self.release([])
        waiting = set()
        answers = self._store.claim([wish for _, _, wish in wishes])
        for (item, lane, _), answer in zip(wishes, answers, strict=True):
            if isinstance(answer, Mine):
                lane.since = lane.since or now
                continue
            waiting.add(item)
            lane.since = 0.0
            match answer:
                case Held(until):
                    self._wait(item, now, until - time.time())
                case Done():
                    self._wait(item, now, LOCK_WAIT_MAX_S)  # no worker marks it so: it ends by its TTL
                case Unknown() if self._store.silent:
                    # The same lock is asked for again: this one may have been given.
                    self._next_up(item)
                case Unknown():
                    item.tries += 1
                    self._postpone(item, now + backoff_s(item.tries))
        return [item for item in batch if item not in waiting]

    def _wish(self, item: Item, lane: Lane) -> Claim:
        if item.lock is None:
            token = f"{self._token_prefix}-{next(self._token_numbers)}"
            item.lock = Claim(lane.key, token, self._claim_s(item.lease_ms))
        return item.lock

    def _wait(self, item: Item, now: float, left: float) -> None:
        self._stats.add("claim_waits")
        item.lock = None
        item.tries += 1
        self._postpone(item, now + max(LOCK_WAIT_MIN_S, min(left, LOCK_WAIT_MAX_S, backoff_s(item.tries))))

    def release(self, items: Iterable[Item]) -> None:
        """Give back what these have, and what the store didn't take back before."""
        locks, self._owed = self._owed, []
        for item in items:
            if item.lock is not None:
                locks.append(item.lock)
                item.lock = None
        if not locks:
            return
        answers = self._store.release(locks)
        self._owed = [
            lock for lock, answer in zip(locks, answers, strict=True) if isinstance(answer, Unknown)
        ][-OWED_MAX:]
