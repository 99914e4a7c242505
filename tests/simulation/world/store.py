"""The dedup store: the real store in memory, on a server of its own behind the simulated network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.store import Answer, Claim, DedupStore, Finish, Mine, Unknown
from tests.simulation.world.network import Network, NoAnswer
from tests.simulation.world.oracle import Oracle
from tests.simulation.world.scheduler import Process

CALL_S: Final = 0.5


class StoreServer:
    """What the store's server does, watched by the oracle."""

    def __init__(self, clock: Callable[[], float], oracle: Oracle) -> None:
        self.store = MemoryDedupStore(clock=clock)
        self._oracle = oracle

    def claim(self, who: str, claims: Sequence[Claim]) -> list[Answer]:
        """Claims and renewals."""
        answers = self.store.claim(claims)
        for claim, answer in zip(claims, answers, strict=True):
            if isinstance(answer, Mine):
                self._oracle.claimed(who, claim.key, claim.seconds)
        return answers

    def done(self, who: str, finishes: Sequence[Finish]) -> list[Answer]:
        """Done marks."""
        answers = self.store.done(finishes)
        for finish, answer in zip(finishes, answers, strict=True):
            if isinstance(answer, Mine):
                self._oracle.done(who, finish.key)
        return answers

    def release(self, who: str, claims: Sequence[Claim]) -> list[Answer]:
        """Claims given back."""
        answers = self.store.release(claims)
        for claim, answer in zip(claims, answers, strict=True):
            if isinstance(answer, Mine):
                self._oracle.released(who, claim.key)
        return answers


class RemoteStore(DedupStore):
    """One worker's way to it."""

    def __init__(self, server: StoreServer, network: Network, process: Process, who: str) -> None:
        self._server = server
        self._network = network
        self._process = process
        self._who = who

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:
        return self._ask("claim", lambda: self._server.claim(self._who, claims), len(claims))

    def renew(self, claims: Sequence[Claim]) -> list[Answer]:
        return self._ask("renew", lambda: self._server.claim(self._who, claims), len(claims))

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:
        return self._ask("done", lambda: self._server.done(self._who, finishes), len(finishes))

    def release(self, claims: Sequence[Claim]) -> list[Answer]:
        return self._ask("unclaim", lambda: self._server.release(self._who, claims), len(claims))

    def _ask(self, what: str, handler: Callable[[], list[Answer]], count: int) -> list[Answer]:
        try:
            answers: list[Answer] = self._network.call(self._process, "store", what, handler, CALL_S)
        except NoAnswer:
            return [Unknown("no answer")] * count
        return answers
