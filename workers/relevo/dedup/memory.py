"""A dedup store in this process' memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from relevo.dedup.store import (
    DEFAULT_TTL_S,
    MINE,
    Answer,
    Claim,
    DedupStore,
    Done,
    Finish,
    Held,
    check_seconds,
)
from relevo.errors import ConfigurationError

_SWEEP_EVERY: Final = 1_000


class MemoryDedupStore(DedupStore):
    """Remembers within this process, and no longer than it lives.

    Suppresses duplicates that reach the same process: a repeated activation, a retry after a lost
    acknowledgement. It can't know what another worker process did, or this one before a restart: for that
    use a store outside of it.

    Args:
        ttl: How long a done job is remembered, in seconds.
        capacity: How many keys are remembered; beyond it the oldest done ones are forgotten. Claims never
            are.
        clock: Seconds, never going back.
    """

    def __init__(
        self,
        ttl: float = DEFAULT_TTL_S,
        *,
        capacity: int = 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_seconds("ttl", ttl)
        if capacity < 1:
            raise ConfigurationError(f"capacity must be at least 1, not {capacity}")
        self.ttl = ttl
        self._capacity = capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._claims: dict[str, tuple[str, float]] = {}
        # In the order they became done, so the oldest stands first.
        self._done: dict[str, tuple[bytes, float]] = {}
        self._until_sweep = _SWEEP_EVERY

    def __len__(self) -> int:
        return len(self._claims) + len(self._done)

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102 - as in the contract
        with self._lock:
            now = self._clock()
            return [self._take(claim.key, claim.token, claim.seconds, now) for claim in claims]

    # Taking a claim that is one's own already renews it, and one that has ended is free.
    renew = claim

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:  # noqa: D102
        with self._lock:
            now = self._clock()
            answers = []
            for finish in finishes:
                other = self._other(finish.key, finish.token, now)
                if other is None:
                    self._claims.pop(finish.key, None)
                    self._done.pop(finish.key, None)
                    self._done[finish.key] = (finish.result, now + (finish.ttl or self.ttl))
                answers.append(other or MINE)
            self._until_sweep -= len(finishes)
            if self._until_sweep <= 0:
                self._sweep(now)
            return answers

    def release(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        with self._lock:
            now = self._clock()
            answers = []
            for claim in claims:
                other = self._other(claim.key, claim.token, now)
                if other is None:
                    self._claims.pop(claim.key, None)
                answers.append(other or MINE)
            return answers

    def _take(self, key: str, token: str, seconds: float, now: float) -> Answer:
        other = self._other(key, token, now)
        if other is not None:
            return other
        self._claims[key] = (token, now + seconds)
        return MINE

    def _other(self, key: str, token: str, now: float) -> Answer | None:
        """What stands in the way of ``token``, if anything."""
        done = self._done.get(key)
        if done is not None:
            if done[1] > now:
                return Done(done[0])
            del self._done[key]
        held = self._claims.get(key)
        if held is not None and held[0] != token and held[1] > now:
            return Held(time.time() + held[1] - now)
        return None

    def _sweep(self, now: float) -> None:
        """Forget what is out of date, a bounded part at a time."""
        self._until_sweep = _SWEEP_EVERY
        over = len(self._done) - self._capacity
        # Twice what came since the last sweep: the store can't grow faster than it is swept.
        oldest = [key for key, _ in zip(self._done, range(max(over, 2 * _SWEEP_EVERY)), strict=False)]
        for index, key in enumerate(oldest):
            if index < over or self._done[key][1] <= now:
                del self._done[key]
        if len(self._claims) > 4 * _SWEEP_EVERY:
            self._claims = {key: held for key, held in self._claims.items() if held[1] > now}
