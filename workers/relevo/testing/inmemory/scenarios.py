"""The ways in which a job comes to a worker twice, each as a small play for an `Engine`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from relevo.client.requests import LEASE_S, NewJob, new_key
from relevo.client.results import FINISHED_STATES, JobHandle
from relevo.testing.engine import Engine
from relevo.testing.inmemory.faults import Step

Remedy = Literal["none", "store", "effect", "late", "business"]
Play = Callable[[Engine, NewJob], Awaitable[JobHandle]]

_ROUNDS: Final = 8
_REDISPATCH_S: Final = 3_700.0
"""By then an activation that nobody has taken up is handed out again."""
_SILENT_S: Final = 20.0
_NOT_AT_MOST_ONCE: Final[tuple[Step, ...]] = ("claim", "done", "commit")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to get a duplicate.

    Attributes:
        name: What happens.
        play: Makes it happen; returns the job.
        remedy: What is to be done where the effect happens twice.
        business: It creates two jobs, which are one for those who dedup by correlation id.
        at_most_once: It can happen to a type that runs its jobs at most once. That commits before it runs
            them, so that nothing is read again, and asks no dedup store.
    """

    name: str
    play: Play
    remedy: Remedy
    business: bool = False
    at_most_once: bool = True


async def finish(engine: Engine, job: JobHandle, lease_s: float) -> None:
    """Let time pass until the job has ended, or waits for a person."""
    for pause in (*[lease_s + 5] * _ROUNDS, _REDISPATCH_S, lease_s + 5):
        if engine.job(job).state in FINISHED_STATES | {"INCIDENT"}:
            break
        await engine.advance(pause)
    await engine.settle()


def _create(engine: Engine, job: NewJob) -> JobHandle:
    return engine._create(job, "accepted")


async def _undisturbed(engine: Engine, job: NewJob) -> JobHandle:
    made = _create(engine, job)
    await engine.settle()
    return made


async def _again_after_done(engine: Engine, job: NewJob) -> JobHandle:
    made = _create(engine, job)
    await finish(engine, made, job.lease or LEASE_S)
    await engine.deliver_twice(made)
    return made


async def _again_while_running(engine: Engine, job: NewJob) -> JobHandle:
    engine.freeze_worker(after="start")
    made = _create(engine, job)
    await engine.settle()
    engine.rebalance()
    await engine.settle()
    engine.thaw_worker()
    await engine.settle()
    return made


async def _crash(step: Step, engine: Engine, job: NewJob) -> JobHandle:
    engine.crash_worker(after=step)
    made = _create(engine, job)
    await engine.settle()
    return made


async def _late_first_attempt(engine: Engine, job: NewJob) -> JobHandle:
    engine.freeze_worker(after="start")
    made = _create(engine, job)
    await engine.settle()
    if not engine.pending_faults:
        await engine.expire_lease(made)
    return made


async def _failover(engine: Engine, job: NewJob) -> JobHandle:
    engine.freeze_worker(after="start")
    made = _create(engine, job)
    engine.failover()
    await engine.settle()
    engine.failover()
    engine.thaw_worker()
    await engine.settle()
    engine.failover()
    await engine.settle()
    return made


async def _lost_completion(engine: Engine, job: NewJob) -> JobHandle:
    engine.lose_completion()
    return await _undisturbed(engine, job)


async def _silent_store(engine: Engine, job: NewJob) -> JobHandle:
    engine.lose_store(_SILENT_S)
    return await _undisturbed(engine, job)


async def _silent_store_after_effect(engine: Engine, job: NewJob) -> JobHandle:
    engine.freeze_worker(after="effect")
    made = _create(engine, job)
    await engine.settle()
    engine.lose_store(_SILENT_S)
    engine.thaw_worker()
    await engine.settle()
    return made


async def _same_business(engine: Engine, job: NewJob) -> JobHandle:
    first = replace(job, correlation_id=job.correlation_id or f"business-{new_key()}")
    made = _create(engine, first)
    await finish(engine, made, job.lease or LEASE_S)
    second = _create(engine, replace(first, key=new_key()))
    await finish(engine, second, job.lease or LEASE_S)
    return made


def _crashes() -> list[Scenario]:
    told: list[tuple[Step, str, Remedy]] = [
        ("read", "the worker dies before its claim", "store"),
        ("claim", "the worker dies after its claim", "store"),
        ("start", "the worker dies before the effect", "store"),
        ("effect", "the worker dies after the effect, before its done mark", "effect"),
        ("done", "the worker dies after the done mark, before the completion", "store"),
        ("complete", "the worker dies after the completion, before its commit", "store"),
        ("commit", "the worker dies after its commit", "store"),
    ]
    return [
        Scenario(name, partial(_crash, step), remedy, at_most_once=step not in _NOT_AT_MOST_ONCE)
        for step, name, remedy in told
    ]


UNDISTURBED: Final = Scenario("nothing goes wrong", _undisturbed, "none")
SCENARIOS: Final = (
    UNDISTURBED,
    Scenario("handed over again after it was done", _again_after_done, "store", at_most_once=False),
    Scenario("handed over again while it runs (a rebalance)", _again_while_running, "store"),
    *_crashes(),
    Scenario("its lease runs out, and the first attempt ends late", _late_first_attempt, "late"),
    Scenario("the engine's leader fails over while it runs", _failover, "store"),
    Scenario("its completion gets lost", _lost_completion, "store"),
    Scenario("the dedup store falls silent before it runs", _silent_store, "store"),
    Scenario("the dedup store falls silent after the effect", _silent_store_after_effect, "effect"),
    Scenario("two jobs with one correlation id", _same_business, "business", business=True),
)

REMEDIES: Final[dict[Remedy, str]] = {
    "none": "Nothing is handed over twice here: the handler performs the effect more or less than once by "
    "itself, or `effects` counts something else.",
    "store": "The dedup store is there to suppress this one, and didn't: check that the worker has a store "
    "that all workers share.",
    "effect": "Between an effect and its done mark nothing can know that it has happened. Hand "
    "job.idempotency_key to whoever performs it (an Idempotency-Key header), put it into the store's "
    "database with job.transaction(), or make it one that may be repeated (INSERT ... ON CONFLICT DO "
    "NOTHING).",
    "late": "A worker that was paused goes on after another has done the job; no claim can stop it. The same "
    "remedies: job.idempotency_key, job.transaction(), an effect that may be repeated. Looking at job.lost "
    "makes it rarer.",
    "business": "Different job keys mean different jobs. Make the effect's key from job.correlation_id.",
}
MEMORY_FORGETS: Final = (
    "MemoryDedupStore knows of its own process only, and forgets when that dies. Give the worker a "
    "RedisDedupStore or a SqlDedupStore; to test without either, dedup=relevo.testing.KeptDedupStore()."
)
NEVER: Final = (
    "The effect didn't happen at all. Where it is kept from one scenario to the next, let the job be a "
    "function that makes a new one each time, or `effects` a context manager that clears it."
)
