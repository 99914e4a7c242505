"""A worker's view of its dedup store: notices when it falls silent, and spares it while it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from relevo.dedup.store import Answer, Claim, DedupStore, Finish, Unknown
from relevo.errors import StoreUnavailable
from relevo.stats import WorkerStats

_log: Final = logging.getLogger("relevo.worker")

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0


def backoff_s(tries: int) -> float:
    """Pause after so many answers in a row that were no help, in seconds."""
    return float(min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(tries, 10)))


class StoreLink:
    """Asks a store; whatever goes wrong is `Unknown`, and is counted and told. Used by one thread.

    Attributes:
        store: The store itself.
        silent: Calls in a row that got no answer at all.
        pause_until: Not to be asked for claims before, in monotonic seconds.
    """

    def __init__(self, store: DedupStore, name: str, stats: WorkerStats) -> None:
        self.store = store
        self._name = name
        self._stats = stats
        self._checked = False
        self.silent = 0
        self.pause_until = 0.0

    def ready(self) -> bool:
        """Whether claims may be asked for now; the store is checked before the first one.

        Raises:
            StoreUnsafe: It would forget claims.
        """
        if time.monotonic() < self.pause_until:
            return False
        if self._checked:
            return True
        try:
            self.store.check()
        except StoreUnavailable as error:
            self._stats.add("unknown_claims")
            self._no_answer(str(error))
            return False
        self._checked = True
        self._answered()
        return True

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:
        """`DedupStore.claim`."""
        return self._ask(partial(self.store.claim, claims), len(claims), "unknown_claims")

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:
        """`DedupStore.done`."""
        return self._ask(partial(self.store.done, finishes), len(finishes), "unknown_done")

    def release(self, claims: Sequence[Claim]) -> list[Answer]:
        """`DedupStore.release`; a claim that can't be released ends by itself."""
        return self._ask(partial(self.store.release, claims), len(claims), "unknown_done")

    def _ask(self, call: Callable[[], list[Answer]], count: int, counter: str) -> list[Answer]:
        try:
            answers = call()
        except Exception as error:
            answers = [Unknown(type(error).__name__)] * count
        if len(answers) != count:
            answers = [Unknown(f"{len(answers)} answers to {count} questions")] * count
        unknown = [answer for answer in answers if isinstance(answer, Unknown)]
        if unknown:
            self._stats.add(counter, len(unknown))
        if unknown and len(unknown) == count:
            self._no_answer(unknown[0].reason)
        elif self.silent:
            self._answered()
        return answers

    def _no_answer(self, reason: str) -> None:
        if self.silent in (0, 10, 100, 1_000):
            _log.error(
                "%s: the dedup store gives no answer (%s): no job is started until it does",
                self._name,
                reason,
            )
        self.silent += 1
        self.pause_until = time.monotonic() + backoff_s(self.silent)

    def _answered(self) -> None:
        if self.silent:
            _log.warning("%s: the dedup store answers again", self._name)
        self.silent = 0
        self.pause_until = 0.0
