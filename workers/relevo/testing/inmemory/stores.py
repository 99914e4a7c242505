"""The dedup store as a worker process sees it: the user's own, with claims that end in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.store import Answer, Claim, DedupStore, Finish, Mine, StoreTransaction, Unknown
from relevo.errors import StoreUnavailable
from relevo.testing.inmemory.clock import VirtualClock
from relevo.testing.inmemory.faults import Faults
from relevo.worker.locks import is_lock


class KeptDedupStore(MemoryDedupStore):
    """A store in memory that outlives worker processes: stands in tests for Redis or a database.

    A plain `relevo.MemoryDedupStore` forgets everything when its worker dies, in production and in
    `relevo.testing.Engine` alike.
    """


class Memory:
    """What the workers of one app remember together.

    Args:
        given: The app's store.
        clock: The time.
    """

    def __init__(self, given: DedupStore | None, clock: VirtualClock) -> None:
        self._given = given
        self._clock = clock
        self._claims: dict[str, tuple[Claim, float]] = {}

    @property
    def dies_with_its_worker(self) -> bool:
        """Whether each worker process has a store of its own."""
        return self._given is None or type(self._given) is MemoryDedupStore

    def for_process(self) -> DedupStore:
        """The store that a new worker process opens."""
        if self._given is None:
            return MemoryDedupStore(clock=self._clock.monotonic)
        if type(self._given) is MemoryDedupStore:
            return MemoryDedupStore(self._given.ttl, clock=self._clock.monotonic)
        return self._given

    def claimed(self, claims: Sequence[Claim], answers: Sequence[Answer]) -> None:
        """Note what the store has granted: it ends in virtual time."""
        now = self._clock.monotonic()
        for claim, answer in zip(claims, answers, strict=True):
            if isinstance(answer, Mine):
                self._claims[claim.key] = (claim, now + claim.seconds)

    def given_back(self, keys: Sequence[str]) -> None:
        """These claims are no more."""
        for key in keys:
            self._claims.pop(key, None)

    def ended(self, wanted: Sequence[Claim]) -> list[Claim]:
        """Others' claims of these keys that have ended by now; the store, on real time, may not know yet."""
        now = self._clock.monotonic()
        found = []
        for wish in wanted:
            held = self._claims.get(wish.key)
            if held is not None and held[1] <= now and held[0].token != wish.token:
                found.append(held[0])
                del self._claims[wish.key]
        return found


class _Transaction:
    """A store's transaction, which can neither be opened nor committed while the store is silent."""

    def __init__(self, inner: StoreTransaction, silent: Callable[[], bool]) -> None:
        self._inner = inner
        self._silent = silent

    def _check(self, what: str) -> None:
        if self._silent():
            raise StoreUnavailable(f"the transaction could not be {what}: the store was lost by the test")

    def begin(self) -> Any:
        self._check("opened")
        return self._inner.begin()

    def finish(self, result: bytes | None) -> None:
        try:
            self._check("finished")
        except StoreUnavailable:
            self._inner.undo()
            raise
        self._inner.finish(result)

    def undo(self) -> None:
        self._inner.undo()

    def abandon(self) -> None:
        self._inner.abandon()

    async def abegin(self) -> Any:
        self._check("opened")
        return await self._inner.abegin()

    async def afinish(self, result: bytes | None) -> None:
        try:
            self._check("finished")
        except StoreUnavailable:
            await self._inner.aundo()
            raise
        await self._inner.afinish(result)

    async def aundo(self) -> None:
        await self._inner.aundo()


class ProcessStore(DedupStore):
    """One worker process' store: asks the real one, and is where a process dies or the store falls silent."""

    def __init__(self, memory: Memory, clock: VirtualClock, faults: Faults) -> None:
        self._inner = memory.for_process()
        self._memory = memory
        self._clock = clock
        self._faults = faults
        self.ttl = self._inner.ttl

    @property
    def _silent(self) -> bool:
        return self._clock.monotonic() < self._faults.store_silent_until

    def _ask(self, call: Callable[[], list[Answer]], count: int) -> list[Answer]:
        return [Unknown("lost by the test")] * count if self._silent else call()

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102 - as in the contract
        answers = self._ask(lambda: self._take(self._inner.claim, claims), len(claims))
        if not self._silent and not all(map(is_lock, claims)):
            self._faults.pass_by("claim")
        return answers

    def renew(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        return self._ask(lambda: self._take(self._inner.renew, claims), len(claims))

    def _take(self, call: Callable[[Sequence[Claim]], list[Answer]], claims: Sequence[Claim]) -> list[Answer]:
        ended = self._memory.ended(claims)
        if ended:
            self._inner.release(ended)
        answers = call(claims)
        self._memory.claimed(claims, answers)
        return answers

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:  # noqa: D102
        answers = self._ask(lambda: self._finish(finishes), len(finishes))
        if not self._silent:
            self._faults.pass_by("done")
        return answers

    def _finish(self, finishes: Sequence[Finish]) -> list[Answer]:
        answers = self._inner.done(finishes)
        self._memory.given_back(
            [each.key for each, answer in zip(finishes, answers, strict=True) if isinstance(answer, Mine)]
        )
        return answers

    def release(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        return self._ask(lambda: self._release(claims), len(claims))

    def _release(self, claims: Sequence[Claim]) -> list[Answer]:
        answers = self._inner.release(claims)
        self._memory.given_back(
            [each.key for each, answer in zip(claims, answers, strict=True) if isinstance(answer, Mine)]
        )
        return answers

    def check(self) -> None:  # noqa: D102
        self._inner.check()

    def transaction(self, claim: Claim, ttl: float | None) -> StoreTransaction:  # noqa: D102
        return _Transaction(self._inner.transaction(claim, ttl), lambda: self._silent)


__all__ = ["KeptDedupStore", "Memory", "ProcessStore"]
