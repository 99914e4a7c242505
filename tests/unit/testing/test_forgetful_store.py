"""A dedup store that fails over and has forgotten: the key at the effect's own target is the second layer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import relevo
from relevo.dedup.store import Answer, Claim, Finish
from relevo.testing import Engine

MOMENTS = ("the effect has happened", "it is marked, and not completed", "it is completed")


class FailingOver(relevo.DedupStore):
    """A store outside of the workers, as Redis is, whose replica has heard of nothing when it is promoted.

    Attributes:
        after_done: Whether it fails over when it has answered to the first done mark.
    """

    def __init__(self) -> None:
        self._primary = relevo.MemoryDedupStore()
        self.after_done = False

    def fail_over(self) -> None:
        self._primary = relevo.MemoryDedupStore()

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:
        return self._primary.claim(claims)

    def renew(self, claims: Sequence[Claim]) -> list[Answer]:
        return self._primary.renew(claims)

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:
        answers = self._primary.done(finishes)
        if self.after_done:
            self.after_done = False
            self.fail_over()
        return answers

    def release(self, claims: Sequence[Claim]) -> list[Answer]:
        return self._primary.release(claims)


class Provider:
    """Charges cards, and answers a key that it knows as it did the first time."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self._receipts: dict[str, str] = {}

    def charge(self, card: str, key: str | None) -> str:
        if key is not None and key in self._receipts:
            return self._receipts[key]
        self.charges.append(card)
        receipt = f"receipt-{len(self.charges)}"
        if key is not None:
            self._receipts[key] = receipt
        return receipt


class Shop:
    """An app on such a store, and its provider."""

    def __init__(self, *, hands_on_the_key: bool) -> None:
        self.store, self.provider, self.runs = FailingOver(), Provider(), 0
        self.fails_over_in_handler = False
        self.app = relevo.WorkerApp(dedup=self.store)

        @self.app.job("charge")
        async def charge(job: relevo.Job) -> str:
            self.runs += 1
            receipt = self.provider.charge(job.key, job.idempotency_key if hands_on_the_key else None)
            if self.fails_over_in_handler and self.runs == 1:
                self.store.fail_over()
            return receipt

    async def sell(self, moment: str) -> object:
        """One job, a failover at the moment, and a second delivery; the job's result."""
        async with Engine() as engine:
            engine.run(self.app)
            if moment == "the effect has happened":
                self.fails_over_in_handler = True
                engine.crash_worker(after="effect")
            elif moment == "it is marked, and not completed":
                self.store.after_done = True
                engine.crash_worker(after="done")
            job = await engine.create("charge", key="order-1")
            await engine.settle()
            if moment == "it is completed":
                self.store.fail_over()
                await engine.deliver_twice(job)
            await engine.advance(120)
            assert engine.job(job).state == "COMPLETED"
            return engine.job(job).result


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_key_at_the_effect_catches_what_the_store_has_forgotten(moment: str) -> None:
    """Redis answers before it has copied: a promoted replica lets a paid order be paid again."""
    shop = Shop(hands_on_the_key=True)
    assert await shop.sell(moment) == "receipt-1"
    assert shop.runs == 2, "the store alone didn't catch it"
    assert shop.provider.charges == ["order-1"]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_without_the_key_the_card_is_charged_again(moment: str) -> None:
    """What the documentation says of the store alone; else the test above would prove nothing."""
    shop = Shop(hands_on_the_key=False)
    await shop.sell(moment)
    assert shop.provider.charges == ["order-1", "order-1"]
