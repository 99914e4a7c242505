"""Whatever goes wrong, in whatever order: every job ends, and its provider has seen it once."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

import relevo
from relevo.testing import BlockingEngine, Engine, KeptDedupStore
from relevo.testing.inmemory.faults import FREEZABLE, STEPS

Deed = Callable[[BlockingEngine, list[relevo.JobHandle]], object]


def deliver_the_last_again(engine: BlockingEngine, jobs: list[relevo.JobHandle]) -> None:
    if jobs and engine.job(jobs[-1]).attempt:
        engine.deliver_twice(jobs[-1])


DEEDS: dict[str, Deed] = {
    "create": lambda engine, jobs: jobs.append(engine.create("pay", retries=100)),
    "create later": lambda engine, jobs: jobs.append(engine.create("pay", retries=100, delay=20)),
    "settle": lambda engine, jobs: engine.settle(),
    "seconds": lambda engine, jobs: engine.advance(7),
    "a minute": lambda engine, jobs: engine.advance(61),
    "again": deliver_the_last_again,
    "failover": lambda engine, jobs: engine.failover(),
    "rebalance": lambda engine, jobs: engine.rebalance(),
    "thaw": lambda engine, jobs: engine.thaw_worker(),
    "lose completion": lambda engine, jobs: engine.lose_completion(),
    "lose store": lambda engine, jobs: engine.lose_store(10),
}
for _step in STEPS:
    DEEDS[f"die after {_step}"] = lambda engine, jobs, step=_step: engine.crash_worker(after=step)  # type: ignore[misc]
for _step in FREEZABLE:
    DEEDS[f"freeze after {_step}"] = lambda engine, jobs, step=_step: engine.freeze_worker(after=step)  # type: ignore[misc]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(sorted(DEEDS)), max_size=25), st.booleans())
def test_every_job_ends_and_is_paid_once(deeds: list[str], plain: bool) -> None:
    """A fault after a fault is what nights are made of."""
    paid: dict[str, int] = {}
    app = relevo.WorkerApp(dedup=KeptDedupStore())

    def pay(job: relevo.Job) -> str:
        paid.setdefault(job.idempotency_key, len(paid))
        return job.key

    async def pay_async(job: relevo.Job) -> str:
        return pay(job)

    app.job("pay")(pay if plain else pay_async)
    with Engine() as engine:
        engine.run(app)
        jobs: list[relevo.JobHandle] = []
        for deed in deeds:
            DEEDS[deed](engine, jobs)
        for _ in range(40):
            engine.thaw_worker()
            engine.advance(3_700)
            for job in jobs:
                if (
                    engine.job(job).state == "INCIDENT"
                ):  # it has cost five workers: a person looks, and says go
                    assert engine.job(job).cause == "LEASES_EXHAUSTED"
                    engine.retry(job)
            if all(engine.job(job).state == "COMPLETED" for job in jobs):
                break
        assert {engine.job(job).state for job in jobs} <= {"COMPLETED"}
        assert [engine.job(job).result for job in jobs] == [job.key for job in jobs]
        assert len(paid) == len(jobs)
        engine.failover()
        assert {engine.job(job).state for job in jobs} <= {"COMPLETED"}
