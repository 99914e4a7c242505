"""By which key a job is known to the store."""

from __future__ import annotations

from typing import Any

import pytest

import relevo
from relevo.testing import Engine, KeptDedupStore, assert_idempotent
from relevo.worker.dedup_key import DedupKey
from tests.unit.workers.fakes import activation


def job(**fields: Any) -> relevo.Job:
    return relevo.Job(activation("j-1", **fields))


def test_the_keys_of_jobs_and_of_business_cannot_meet() -> None:
    by = DedupKey("c", "charge", "correlation_id")
    assert by(job(correlation_id="o-1")) == "c:dedup-by:charge:o-1"
    assert by(job()) == "c:dedup:j-1"
    assert DedupKey("c", "charge", None)(job(correlation_id="o-1")) == "c:dedup:j-1"
    assert DedupKey("c", "charge", lambda job: f"{job.key}!")(job()) == "c:dedup-by:charge:j-1!"
    assert DedupKey("c", "charge", lambda job: None)(job()) == "c:dedup:j-1"


@pytest.mark.parametrize("found", ["", 5, b"o-1", "x" * 513, "a\0b", "\ud800"])
def test_what_cannot_be_a_key_is_refused(found: Any) -> None:
    with pytest.raises(relevo.InvalidRequest, match="dedup_by"):
        DedupKey("c", "charge", lambda job: found)(job())


@pytest.mark.parametrize(
    "options",
    [{"dedup_by": "key"}, {"dedup_by": 5}, {"dedup_by": "correlation_id", "delivery": "at-most-once"}],
)
def test_a_wrong_choice_is_told_at_once(options: Any) -> None:
    with pytest.raises(relevo.ConfigurationError, match="dedup_by of 'charge'"):
        relevo.WorkerApp().job("charge", **options)(lambda job: None)


async def test_two_jobs_of_one_business_are_run_once_and_both_get_the_result() -> None:
    """The customer clicked twice, and pays once."""
    app, charged = relevo.WorkerApp(), []

    @app.job("charge", dedup_by="correlation_id")
    async def charge(job: relevo.Job) -> dict[str, str]:
        charged.append(job.key)
        return {"charged for": job.key}

    async with Engine() as engine:
        engine.run(app)
        for key, order in (("a", "o-1"), ("b", "o-1"), ("c", "o-2"), ("d", None), ("e", None)):
            await engine.create("charge", key=key, correlation_id=order)
        await engine.advance(5)
        results = {key: engine.job(key).result["charged for"] for key in "abcde"}
    assert sorted(charged) in (["a", "c", "d", "e"], ["b", "c", "d", "e"])
    assert results == {"a": min(charged), "b": min(charged), "c": "c", "d": "d", "e": "e"}


async def test_the_second_job_is_run_where_the_first_has_failed() -> None:
    app, tried = relevo.WorkerApp(), []

    @app.job("charge", dedup_by=lambda job: job.variables["order"])
    async def charge(job: relevo.Job) -> None:
        tried.append(job.key)
        if job.key == "a":
            raise relevo.Fail("no", retriable=False)

    async with Engine() as engine:
        engine.run(app)
        for key in "ab":
            await engine.create("charge", {"order": "o-1"}, key=key)
        await engine.advance(60)
        assert [engine.job(key).state for key in "ab"] == ["INCIDENT", "COMPLETED"]
    assert tried == ["a", "b"]


async def test_a_job_without_a_key_becomes_an_incident_and_the_others_go_on() -> None:
    """One bad job must not end the worker."""
    app = relevo.WorkerApp()

    @app.job("charge", dedup_by=lambda job: job.variables["order"])
    def charge(job: relevo.Job) -> None:
        """Nothing."""

    async with Engine() as engine:
        engine.run(app)
        await engine.create("charge", {}, key="bad")
        await engine.create("charge", {"order": "o-1"}, key="good")
        await engine.settle()
        assert engine.job("good").state == "COMPLETED"
        assert engine.job("bad").state == "INCIDENT"
        assert "dedup_by failed: KeyError: 'order'" in str(engine.job("bad").error)


class Mute(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("how", ["raises", "gives"])
def test_what_has_no_text_is_refused_all_the_same(how: str) -> None:
    """Out of the worker's own thread it would end the worker, with every job of the type."""

    def by(job: relevo.Job) -> Any:
        if how == "raises":
            raise Mute
        return Mute()

    with pytest.raises(relevo.InvalidRequest, match=r"dedup_by .*Mute"):
        DedupKey("c", "t", by)(job())


def test_every_duplicate_of_one_business_is_suppressed() -> None:
    app, mails = relevo.WorkerApp(dedup=KeptDedupStore()), dict[str, int]()

    @app.job("mail", dedup_by="correlation_id")
    def mail(job: relevo.Job) -> None:
        mails.setdefault(str(job.correlation_id or job.key), 1)

    assert_idempotent(app, {"type": "mail"}, mails, by_correlation_id=True)
