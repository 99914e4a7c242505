"""From a handler's end to the command about it, by way of the dedup store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from confluent_kafka import KafkaError

from relevo.dedup.link import StoreLink, backoff_s
from relevo.dedup.store import Claim, Done, Finish, Held, Mine, Unknown
from relevo.stats import WorkerStats
from relevo.worker.item import Item
from relevo.worker.outbox import Outbox
from relevo.worker.outcomes import Completed, Errored, Failed, NotOurs

_log: Final = logging.getLogger("relevo.worker")

HELD_WAIT_MAX_S: Final = 1.0
HELD_WAIT_MIN_S: Final = 0.02

_TOO_LARGE: Final = (
    "the handler's result of {} bytes is more than this cluster's commands topic takes (max.message.bytes): "
    "store it elsewhere and return where"
)

Postponed = list[tuple[Item, float]]


class Endings:
    """Marks what is done, gives back the claims of what isn't, and hands on the commands.

    Args:
        store: The dedup store; None: at most once, where a job that failed is not tried again.
        outbox: Takes the commands.
        claim_of: The claim of an item.
        ttl: Window for done marks in seconds; None: the store's own.
    """

    def __init__(
        self, store: StoreLink | None, outbox: Outbox, claim_of: Callable[[Item], Claim], ttl: float | None
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._claim_of = claim_of
        self._ttl = ttl

    def conclude(self, ended: list[Item], now: float) -> Postponed:
        """See to items that have an outcome; returns those to be brought again, and when."""
        postponed: Postponed = []
        failed = []
        completed: list[tuple[Item, Completed]] = []
        for item in ended:
            match item.outcome:
                case Completed() if self._store is not None:
                    completed.append((item, item.outcome))
                case Failed() if self._store is not None:
                    failed.append(item)
                case Failed():
                    item.outcome = replace(item.outcome, retry_in_ms=-1, retriable=False)
                case NotOurs():
                    item.again()
                    postponed.append((item, now + backoff_s(item.tries)))
        if self._store is not None and completed:
            postponed += self._mark_done(self._store, completed, now)
        # Before the report: the next attempt may be here sooner than the acknowledgement.
        self._release(failed)
        late = {item for item, _ in postponed}
        for item in ended:
            if item.outcome is not None and not isinstance(item.outcome, NotOurs) and item not in late:
                self._outbox.add(item, item.outcome)
        return postponed

    def acknowledged(self, items: Iterable[Item]) -> None:
        """Kafka has these items' outcomes. What ended with a business error has no done mark.

        Its claim would keep the next job of the same dedup key waiting for one that is over. Until here it
        kept others from running this one.
        """
        self._release([item for item in items if isinstance(item.outcome, Errored)])

    def _release(self, items: list[Item]) -> None:
        """Give back the claims of those that have one."""
        claimed = [(item, item.claim) for item in items if item.claim is not None]
        if self._store is None or not claimed:
            return
        for item, _ in claimed:
            item.given_back = True  # in this order: a renewal under way may take it again, and looks then
        self._store.release([claim for _, claim in claimed])

    def _mark_done(self, store: StoreLink, completed: list[tuple[Item, Completed]], now: float) -> Postponed:
        postponed: Postponed = []
        claims = [self._claim_of(item) for item, _ in completed]
        answers = store.done(
            [
                Finish(claim.key, claim.token, outcome.result, self._ttl)
                for claim, (_, outcome) in zip(claims, completed, strict=True)
            ]
        )
        for (item, _), answer in zip(completed, answers, strict=True):
            match answer:
                case Mine():
                    item.tries = 0
                case Done(result):
                    # Ours, if the answer to an earlier call got lost, or from the job's own transaction; else
                    # somebody was quicker.
                    _warn_of_other_result(item, result)
                    item.outcome = Completed(result)
                case Held(until):
                    # Somebody took the job over while we ran it: whoever ends first decides.
                    item.job._mark_lost("another worker has claimed the job")
                    item.tries += 1
                    wait = max(HELD_WAIT_MIN_S, min(until - time.time(), HELD_WAIT_MAX_S))
                    postponed.append((item, now + wait))
                case Unknown():
                    item.tries += 1
                    postponed.append((item, now + backoff_s(item.tries)))
        return postponed


def not_acknowledged(item: Item, error: KafkaError, stats: WorkerStats) -> float:
    """Note that Kafka didn't take an item's outcome; returns when to send it again, in seconds from now."""
    item.tries += 1
    stats.add("resent")
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and isinstance(item.outcome, Completed):
        # It never will: what is behind it in its partition must not wait for ever.
        item.outcome = Failed(_TOO_LARGE.format(len(item.outcome.result)), retriable=False, kind="result")
    if item.tries in (1, 10, 100):
        _log.warning("the outcome of job %r is not acknowledged (%s): sent again", item.key, error.str())
    return backoff_s(item.tries)


def _warn_of_other_result(item: Item, stored: bytes) -> None:
    grant, returned = item.job._grant, item.outcome
    if grant is not None and grant.committed and returned not in (Completed(b""), Completed(stored)):
        _log.warning(
            "%s job %r: its handler returned another result than it gave to job.done(); the one given to "
            "job.done() stands, as it was committed", item.job.type, item.key,
        )  # fmt: skip
