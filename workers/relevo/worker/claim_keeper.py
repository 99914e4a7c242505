"""Renews claims at the dedup store, which may be slow, or silent for minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from relevo.dedup.store import Answer, Claim, DedupStore, Done, Held, Mine, Unknown
from relevo.stats import WorkerStats
from relevo.worker.item import Item

BATCH_MAX: Final = 500
RENEW_AGAIN_S: Final = 1.0


class ClaimKeeper:
    """Renews the claims of one type's jobs, and their locks.

    `tick` is called by a thread of its own: a store without an answer takes seconds for each call, and leases
    that were renewed behind it would run out, with the handlers at work.

    Args:
        namespace: Put before the key of a job that has no claim yet, to make its dedup key.
        kept: Handlers at work, and whatever else must not lose its claim, by key; owned by the gate.
        store: The dedup store.
        claim_s: How long a claim holds, from the job's lease in milliseconds, in seconds.
        lose: Called for an item whose claim is lost, with the reason; more than once for the same.
        stats: Counters.
    """

    def __init__(
        self,
        *,
        namespace: str,
        kept: dict[str, Item],
        store: DedupStore,
        claim_s: Callable[[int], float],
        lose: Callable[[Item, str], None],
        stats: WorkerStats,
    ) -> None:
        self._namespace = namespace
        self._kept = kept
        self._store = store
        self._claim_s = claim_s
        self._lose = lose
        self._stats = stats

    def tick(self) -> None:
        """Renew what is due."""
        if not self._kept:
            return
        now = time.monotonic()
        # A copy in one step: the gate changes the dict at any time.
        due = [item for item in list(self._kept.values()) if now >= item.claim_due and not item.timed_out]
        for at in range(0, len(due), BATCH_MAX):
            self._renew(due[at : at + BATCH_MAX])

    def _renew(self, items: list[Item]) -> None:
        now = time.monotonic()
        claims = [
            item.claim or Claim(self._namespace + item.key, item.token, self._claim_s(item.lease_ms))
            for item in items
        ]
        locks = [(item, lock) for item in items if (lock := item.lock) is not None]
        wanted = claims + [lock for _, lock in locks]
        try:
            answers: list[Answer] = self._store.renew(wanted)
            if len(answers) != len(wanted):
                raise ValueError(f"{len(answers)} answers to {len(wanted)} questions")
        except Exception as error:
            # Its text may quote an address with a password, and the reason reaches logs.
            answers = [Unknown(type(error).__name__)] * len(wanted)
        of_locks = {item: answer for (item, _), answer in zip(locks, answers[len(items) :], strict=False)}
        for item, claim, answer in zip(items, claims, answers, strict=False):
            self._heard(item, claim, answer, of_locks.get(item, answer), now)
        # Given back while we asked: they have been taken again, for nobody.
        late = [lock for item, lock in locks if item.lock is not lock]
        late += [claim for item, claim in zip(items, claims, strict=True) if item.given_back]
        if late:
            self._store.release(late)

    def _heard(self, item: Item, claim: Claim, answer: Answer, of_lock: Answer, now: float) -> None:
        """What the store says of an item's claim, and of its lock, which is the same where it has none."""
        taken_by = "another worker has claimed the job"
        if isinstance(answer, Mine) and of_lock is not answer:
            answer, taken_by = of_lock, "another job of its correlation id has begun"
        item.claim_due = now + claim.seconds / 3
        match answer:
            case Mine():
                item.claim_until = now + claim.seconds
            case Done() | Held():
                # It may just have ended: then the done mark is its own.
                if item.running:
                    self._lose(item, taken_by)
            case Unknown(reason):
                item.claim_due = min(item.claim_due, now + RENEW_AGAIN_S)
                self._stats.add("unknown_claims")
                if now > item.claim_until and item.running:
                    self._lose(item, f"the claim could not be renewed in time: {reason}")
