"""`assert_idempotent` finds the handlers that repeat their effect, and says in which moment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import relevo
from relevo.testing import Engine, KeptDedupStore, assert_idempotent, assert_idempotent_async, idempotency
from relevo.testing.inmemory.scenarios import Scenario

AFTER_EFFECT = "the worker dies after the effect, before its done mark"
LATE = "its lease runs out, and the first attempt ends late"
BUSINESS = "two jobs with one correlation id"
START = datetime(2030, 1, 1, tzinfo=UTC)
JOB = {"type": "charge", "variables": {"amount": 5}}


class Provider:
    """A payment provider that knows idempotency keys."""

    def __init__(self) -> None:
        self.payments: list[str] = []
        self.known: set[str] = set()

    def charge(self, amount: int, idempotency_key: str | None = None) -> None:
        if idempotency_key is not None and idempotency_key in self.known:
            return
        self.known.add(idempotency_key or "")
        self.payments.append(f"{amount} for {idempotency_key}")


def failed(report: str) -> list[str]:
    """The scenarios that a report marks, with effects and what is allowed."""
    return re.findall(r"^ -> (.*?)  +", report, re.MULTILINE)


def report_of(*args: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_idempotent(*args, **options)
    return str(caught.value)


def test_a_handler_that_takes_no_care_is_found() -> None:
    """A double charge in production; the dedup store alone can't prevent these two."""
    provider = Provider()

    def charge_card(job: relevo.Job) -> None:
        provider.charge(job.variables["amount"])

    report = report_of(charge_card, JOB, provider.payments)
    assert failed(report) == [AFTER_EFFECT, LATE]
    assert report.startswith("charge_card is not idempotent: 2 of 15 scenarios go wrong")
    assert re.search(rf"^ -> {AFTER_EFFECT} +2 +1  completed$", report, re.MULTILINE)
    assert "job.idempotency_key" in report
    assert "job.transaction()" in report


@pytest.mark.parametrize("plain", [False, True])
def test_a_handler_that_hands_on_its_key_passes(plain: bool) -> None:
    provider = Provider()

    def charge(job: relevo.Job) -> dict[str, bool]:
        provider.charge(job.variables["amount"], job.idempotency_key)
        return {"paid": True}

    async def charge_async(job: relevo.Job) -> dict[str, bool]:
        await asyncio.sleep(0)
        return charge(job)

    assert_idempotent(charge if plain else charge_async, JOB, lambda: len(provider.payments))
    assert len(provider.payments) == 15


async def test_in_a_coroutine_handlers_share_its_loop() -> None:
    """A pool of connections that the test opened would belong to another loop."""
    provider = Provider()
    loops = set()

    async def charge(job: relevo.Job) -> None:
        loops.add(asyncio.get_running_loop())
        provider.charge(1, job.idempotency_key)

    async def count() -> int:
        return len(provider.payments)

    await assert_idempotent_async(charge, relevo.NewJob(type="charge"), count)
    assert loops == {asyncio.get_running_loop()}
    with pytest.raises(relevo.ConfigurationError, match="await assert_idempotent_async"):
        assert_idempotent(charge, JOB, count)


def test_a_store_that_dies_with_its_worker_is_found() -> None:
    """It passes every other test, and fails with the first deployment."""
    provider = Provider()
    app = relevo.WorkerApp(dedup=relevo.MemoryDedupStore())

    @app.job("charge")
    async def charge(job: relevo.Job) -> None:
        provider.charge(1)

    report = report_of(app, JOB, provider.payments)
    assert set(failed(report)) > {AFTER_EFFECT, LATE}
    assert "the worker dies after the done mark, before the completion" in failed(report)
    assert "MemoryDedupStore knows of its own process only" in report
    kept = report_of(app, JOB, provider.payments, dedup=KeptDedupStore())
    assert failed(kept) == [AFTER_EFFECT, LATE]


def test_one_piece_of_business_in_two_jobs() -> None:
    """A client that doesn't know whether its request got through makes another key."""
    provider = Provider()

    def by_job(job: relevo.Job) -> None:
        provider.charge(1, job.idempotency_key)

    def by_business(job: relevo.Job) -> None:
        provider.charge(1, job.correlation_id)

    report = report_of(by_job, JOB, provider.payments, by_correlation_id=True)
    assert failed(report) == [BUSINESS]
    assert "job.correlation_id" in report

    def fresh(number: int) -> dict[str, Any]:
        return {**JOB, "correlation_id": f"order-{number}"}

    assert_idempotent(by_business, fresh, provider.payments, by_correlation_id=True)


def test_effects_that_are_cleared_for_each_scenario() -> None:
    """A table with a unique key of the business would hold the row of the scenario before."""
    rows: set[str] = set()

    @contextmanager
    def empty_table() -> Iterator[set[str]]:
        rows.clear()
        yield rows

    def insert(job: relevo.Job) -> None:
        rows.add(f"amount {job.variables['amount']}")

    assert_idempotent(insert, JOB, empty_table)
    report = report_of(insert, JOB, rows)
    assert "a function that makes a new one each time" in report.replace("\n    ", " ")


def test_a_handler_that_stumbles_over_its_own_effect_is_found() -> None:
    """The effect is there once, and the job waits for a person for ever."""
    done: set[str] = set()

    def create_account(job: relevo.Job) -> None:
        if job.key in done:
            raise ValueError("the account is there already")
        done.add(job.key)

    report = report_of(create_account, {**JOB, "retries": 0}, done)
    assert AFTER_EFFECT in failed(report)
    assert "The job ended as INCIDENT: ValueError: the account is there already" in report


def test_a_handler_that_never_works_is_found() -> None:
    def broken(job: relevo.Job) -> None:
        raise ValueError("no")

    report = report_of(broken, {**JOB, "retries": 0}, [])
    assert "15 of 15 scenarios go wrong" in report


def test_at_most_once_is_judged_by_its_own_promise() -> None:
    """Its author has chosen that it may be lost; a repeat is still wrong."""
    sampled: list[str] = []
    app = relevo.WorkerApp()

    @app.job("sample", delivery="at-most-once")
    def sample(job: relevo.Job) -> None:
        sampled.append(job.key)

    assert_idempotent(app, {"type": "sample"}, sampled)
    assert 8 <= len(sampled) < 14  # some of the fourteen were lost

    twice = relevo.WorkerApp()
    twice.job("sample", delivery="at-most-once")(lambda job: sampled.extend([job.key] * 2))
    assert "0 to 1" in report_of(twice, {"type": "sample"}, sampled)


def test_a_transaction_passes(tmp_path: Path) -> None:
    """The strongest form, with the database that the worker has."""
    store = relevo.SqlDedupStore(f"sqlite:///{tmp_path}/bank.db")
    app = relevo.WorkerApp(dedup=store)
    paid: list[int] = []

    @app.job("charge")
    def charge(job: relevo.Job) -> None:
        with job.transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS payments (job TEXT)")
            connection.execute("INSERT INTO payments VALUES (?)", (job.key,))
            paid[:] = [1] * connection.execute("SELECT count(*) FROM payments").fetchone()[0]
            job.done({"paid": True})

    assert_idempotent(app, JOB, paid)
    store.close()


WRONG: list[tuple[Any, Any, str]] = [
    ({"type": "charge", "retires": 3}, [], "unexpected keyword argument 'retires'"),
    ("charge", [], "job must be a relevo.NewJob"),
    ({"type": "charge", "retries": -1}, [], "between 0 and 1000"),
    ({"type": "charge"}, lambda: None, "effects must be a collection, a count"),
]


@pytest.mark.parametrize(("job", "effects", "message"), WRONG)
def test_wrong_use(job: Any, effects: Any, message: str) -> None:
    with pytest.raises(relevo.InvalidRequest, match=re.escape(message)):
        assert_idempotent(lambda job: None, job, effects)


def test_a_job_that_is_to_wait_is_run_at_once() -> None:
    """Its faults would strike after their scenario was over, with nobody to thaw a frozen worker."""
    provider = Provider()

    def charge(job: relevo.Job) -> None:
        provider.charge(1, job.idempotency_key)

    for waits in ({"delay": 3_600}, {"run_at": START + timedelta(days=2), "expires_at": START}):
        provider.payments.clear()
        assert_idempotent(charge, {**JOB, **waits}, provider.payments)
        assert len(provider.payments) == 15
    assert_idempotent(charge, lambda _: {**JOB, "delay": 3_600}, provider.payments)


def test_a_scenario_that_was_not_played_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table full of ones would be about faults that never happened."""

    async def never(engine: Engine, job: relevo.NewJob) -> relevo.JobHandle:
        made = await engine.create(job.type, key=job.key)
        await engine.settle()
        engine.crash_worker(after="start")
        return made

    monkeypatch.setattr(idempotency, "SCENARIOS", (Scenario("too late", never, "store"),))
    provider = Provider()
    with pytest.raises(relevo.ConfigurationError, match=r"'too late' was not played.*the step 'start'"):
        assert_idempotent(lambda job: provider.charge(1), JOB, provider.payments)


def test_an_app_without_a_handler_for_the_job() -> None:
    app = relevo.WorkerApp()
    app.job("refund")(lambda job: None)
    with pytest.raises(relevo.InvalidRequest, match=r"'charge' \(it has: 'refund'\)"):
        assert_idempotent(app, JOB, [])
