"""A user's module that uses every public name; never run, only checked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, assert_type

import relevo
from relevo import testing
from relevo.dedup.store import Answer, Claim, Finish, Unknown


def create(client: relevo.Client) -> relevo.JobResult:
    handle = client.create("mail", {"to": "ana"}, key="k", delay=60, priority=5, headers={"a": "b"})
    assert_type(handle, relevo.JobHandle)
    client.create("mail", run_at=datetime.now(UTC), expires_at=1_900_000_000_000, wait="decided", timeout=3)
    client.create("mail", retries=10, backoff=0.5, backoff_max=60, lease=5, correlation_id="c")
    client.cancel(handle, "why")
    client.retry("k", 5, wait="decided")
    client.update(handle, priority=1, retries=None)
    for made in client.create_many([relevo.NewJob(type="mail"), {"type": "mail"}], in_flight=10):
        assert_type(made, relevo.BulkResult)
        assert_type(made.error, relevo.RelevoError | None)
    assert_type([each.ok for each in client.retry_many([handle, "k"])], list[bool])
    return client.await_result(handle)


async def create_async() -> Any:
    async with relevo.AsyncClient("b:9092", "relevo", sasl_username="u") as client:
        handle = await client.create("mail")
        assert_type(handle, relevo.JobHandle)
        async for made in client.create_many(relevo.NewJob(type="mail", variables=n) for n in range(3)):
            assert_type(made, relevo.BulkResult)
        async for made in client.retry_many([handle]):
            assert_type(made.key, str | None)
        return (await client.await_result(handle)).value


def what_to_do(error: relevo.RelevoError) -> str:
    match error:
        case relevo.Rejected() | relevo.Refused() | relevo.InvalidRequest() | relevo.ConfigurationError():
            return "mend"
        case relevo.QueueFull() | relevo.NotSent() | relevo.OutcomeUnknown() | relevo.DecisionTimeout():
            return "again"
        case relevo.ResultTimeout() | relevo.JobNotCompleted() | relevo.LogGap() | relevo.VariablesError():
            return "look"
        case relevo.StoreUnavailable() | relevo.StoreUnsafe() | relevo.ClaimLost() | relevo.MissingExtra():
            return "store"
        case relevo.Closed() | relevo.UsedAfterFork() | relevo.Unreachable() | relevo.ClusterNotFound():
            return "elsewhere"
    if error.outcome is relevo.Outcome.UNKNOWN and error.retry is relevo.Retry.SAME:
        return "again"
    return error.text


defaults = {"mail": relevo.JobDefaults(retries=10, backoff=5)}
client = relevo.Client(defaults=defaults)
app = relevo.WorkerApp(dedup=relevo.RedisDedupStore("redis://localhost", ttl=3_600), suspect_after=None)


@app.job("mail", lease=30, concurrency=50, dedup_by="correlation_id")
async def mail(job: relevo.Job) -> dict[str, bool]:
    if job.lost:
        raise relevo.Fail(job.lost_reason or "lost", retry_in=5)
    async with job.transaction() as conn:
        await conn.execute("INSERT INTO mails VALUES (?)", (job.key,))
        job.done({"sent": True})
    return {"sent": True}


@app.job("card", delivery="at-most-once", dedup_by=lambda job: job.correlation_id)
def card(job: relevo.Job) -> None:
    if job.variables["amount"] <= 0:
        raise relevo.JobError("INVALID_AMOUNT", "nothing to charge")
    with job.transaction(sqlite3.Connection) as conn:
        assert_type(conn, sqlite3.Connection)
        conn.execute("UPDATE cards SET charged = 1")


class Handler:
    """An object whose call is the handler."""

    async def __call__(self, job: relevo.Job) -> str:
        return job.idempotency_key


worker = relevo.JobWorker(
    client=client, job_type="other", handler=Handler(), dedup_store=relevo.SqlDedupStore("sqlite:///jobs.db")
)
app.job("third")(Handler())
assert_type(mail.__name__, str)
stats: relevo.WorkerStats = worker.stats


class OwnStore(relevo.DedupStore):
    """A store of the user's own."""

    def __init__(self) -> None:
        self._inner: relevo.DedupStore = relevo.MemoryDedupStore(ttl=60)

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:
        """Take."""
        return self._inner.claim(claims)

    def renew(self, claims: Sequence[Claim]) -> list[Answer]:
        """Hold."""
        return self._inner.renew(claims)

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:
        """Remember."""
        return [Unknown("never") for _ in finishes]

    def release(self, claims: Sequence[Claim]) -> list[Answer]:
        """Give back."""
        return self._inner.release(claims)


def follow() -> Iterator[relevo.LogPosition]:
    def lost(what: relevo.Skipped) -> None:
        print(what)

    with relevo.JobEvents(from_="now", kinds=["JobCompleted"], on_gap=lost) as events:
        for event in events:
            assert_type(event, relevo.JobEvent)
            yield event.position


async def follow_async() -> None:
    async with relevo.AsyncJobEvents(from_=datetime.now(UTC), types=["mail"]) as events:
        async for event in events:
            assert_type(event.key, str)


# Tests of one's own


async def test_engine() -> None:
    async with testing.Engine(types=["elsewhere"]) as engine:
        engine.run(app, dedup=testing.KeptDedupStore())
        handle = await engine.create("mail", key="k")
        engine.crash_worker(after="effect")
        await engine.advance(60)
        await engine.deliver_twice(handle)
        view: testing.JobView = engine.job(handle)
        assert_type(view.state, str)
    await testing.assert_idempotent_async(mail, {"type": "mail"}, [])


def test_blocking() -> None:
    with testing.Engine() as engine:
        assert_type(engine, testing.BlockingEngine)
        assert_type(engine.create("mail"), relevo.JobHandle)
        try:
            engine.settle()
        except (testing.StillRunning, testing.NotInTime, testing.WorkerDied):
            raise
    effects: list[str] = []
    testing.assert_idempotent(card, relevo.NewJob(type="card"), lambda: len(effects))


class Leaders(Protocol):
    """What this module needs of a cluster."""

    @property
    def kafka(self) -> str:
        """Where Kafka is."""


def drill(servers: testing.DrillServers) -> testing.FaultMark | None:
    try:
        with testing.DrillCluster(nodes=3, servers=servers) as cluster:
            leaders: Leaders = cluster
            testing.wait_for(lambda: bool(leaders.kafka), "there is a leader")
            return testing.FaultMark(0.0, 0, testing.Kind.KILL, "n1")
    except testing.FaultRefused:
        return None
    except testing.DrillError as error:
        raise AssertionError(error.text) from error
