"""Workers that die: at each step, by their own handler, by a signal. Effects are counted outside of them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import redis

import relevo
from tests.support.brokers import Brokers
from tests.support.crash_matrix import (
    FORMS,
    STEPS,
    STORES,
    Fate,
    Places,
    count_effects,
    document,
    documented,
    handler_for,
    make_store,
    meetings,
    table_of,
)
from tests.support.engine_thread import EngineThread
from tests.support.waiting import wait_until
from tests.support.worker_process import Orders, effects, spawn, type_of

LEASE_S = 3.0
Case = tuple[str, str]
"""A store's kind and a step."""


@pytest.fixture
def client(brokers: Brokers, cluster_name: str) -> Iterator[relevo.Client]:
    with relevo.Client(brokers.kafka, cluster_name) as client:
        yield client


@pytest.fixture
def counters(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as counters:
        yield counters


def completed(brokers: Brokers, cluster: str) -> set[str]:
    with relevo.JobEvents(brokers.kafka, cluster, kinds=["JobCompleted"], follow=False) as events:
        return {event.key for event in events}


@pytest.fixture
def places(redis_url: str, postgres_url: str, tmp_path: Path) -> Places:
    places = Places(redis_url, postgres_url, str(tmp_path / "dedup.db"))
    places.prepare()
    return places


@dataclass
class Matrix:
    """Jobs that meet a worker that dies at a step, and after it one that lives.

    Attributes:
        gently: Whether the worker is told to stop, in place of being killed.
    """

    brokers: Brokers
    cluster: str
    client: relevo.Client
    places: Places
    stores: Sequence[str]
    gently: bool = False

    def run(self) -> dict[str, dict[Case, Fate]]:
        """What became of each job, by its handler's form."""
        cases = list(itertools.product(self.stores, STEPS))
        names = {(*case, form): type_of(name_of(case), form) for case in cases for form in FORMS}
        fates: dict[str, dict[Case, Fate]] = {form: {} for form in FORMS}
        with (
            EngineThread(self.brokers.kafka, self.cluster, 1, list(names.values())),
            ExitStack() as running,
        ):
            jobs = {case: self.client.create(name, lease=LEASE_S) for case, name in names.items()}
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(self._end_one, cases))
            apps = {kind: running.enter_context(self._living(kind)) for kind in self.stores}
            for (kind, step, form), job in jobs.items():
                stats = apps[kind].stats_by_type[names[kind, step, form]]
                fates[form][kind, step] = self._fate(kind, step, job, stats)
        return fates

    def _end_one(self, case: Case) -> None:
        """Workers that meet their jobs and end at the step."""
        kind, step = case
        for forms in meetings(*case):
            orders = Orders(self.brokers.kafka, self.cluster, name_of(case), self.places.redis, step, kind)
            orders.database, orders.file = self.places.database, self.places.file
            orders.forms, orders.gently = forms, self.gently
            ending = spawn(orders)
            try:
                assert ending.wait(120) == (0 if self.gently else -signal.SIGKILL), case
            finally:
                ending.kill()
                ending.wait(30)

    def _living(self, kind: str) -> relevo.WorkerApp:
        app = relevo.WorkerApp(self.brokers.kafka, self.cluster, dedup=make_store(kind, self.places))
        for step, form in itertools.product(STEPS, FORMS):
            app.job(type_of(name_of((kind, step)), form))(handler_for(kind, form, self.places, self.cluster))
        return app

    def _fate(self, kind: str, step: str, job: relevo.JobHandle, stats: relevo.WorkerStats) -> Fate:
        value = self.client.await_result(job, timeout=120).value
        if step == "after commit" or self.gently:
            wait_until(partial(getattr, stats, "rebalances"), "its partition is read on", timeout_s=90)
        else:
            # What it was handed is settled when its offset is committed.
            wait_until(partial(getattr, stats, "commits"), f"{kind}, {step} is settled", timeout_s=90)
        return Fate(count_effects(kind, self.places, self.cluster, job.key), stats.received > 0, value["run"])


def name_of(case: Case) -> str:
    """Beginning of the names of its job types."""
    kind, step = case
    return f"t{STORES.index(kind)}{STEPS.index(step)}"


@pytest.mark.timeout(900)
def test_a_worker_killed_at_any_step_leaves_what_the_documentation_says(
    brokers: Brokers, cluster_name: str, client: relevo.Client, places: Places
) -> None:
    """A claim freed too early repeats the effect; one never freed stops the job for ever."""
    fates = Matrix(brokers, cluster_name, client, places, STORES).run()
    table = table_of(fates["plain"])
    assert table_of(fates["coroutine"]) == table, "a coroutine's job has another fate"
    if os.environ.get("RELEVO_WRITE_DOCS"):
        document(table)
    assert table == documented(), f"docs/crash-table.md differs; it is now:\n{table}"


@pytest.mark.timeout(300)
def test_a_worker_told_to_stop_at_any_step_leaves_each_effect_once(
    brokers: Brokers, cluster_name: str, client: relevo.Client, places: Places
) -> None:
    """Each deployment stops workers inside of open transactions: none may be committed twice, or get lost."""
    fates = Matrix(brokers, cluster_name, client, places, ["sql, transaction"], gently=True).run()
    for form in FORMS:
        assert {case: (fate.effects, fate.run) for case, fate in fates[form].items()} == {
            ("sql, transaction", step): (1, 1) for step in STEPS
        }
        assert not fates[form]["sql, transaction", "after effect"].redelivered, "it was let finish"


@pytest.mark.timeout(240)
def test_a_job_that_kills_its_worker_ends_before_a_person_and_its_neighbours_end_well(
    brokers: Brokers, cluster_name: str, client: relevo.Client, counters: redis.Redis, redis_url: str
) -> None:
    """Else it circulates, and takes all that run beside it down each time."""
    with EngineThread(brokers.kafka, cluster_name, 1, ["deadly"], lease_expiries_max=2):
        jobs = [
            client.create("deadly", key="poison" if number == 5 else f"good-{number}", lease=LEASE_S)
            for number in range(12)
        ]
        # A member with a name of its own gets its partitions back at once, not when its session has ended.
        orders = Orders(
            brokers.kafka,
            cluster_name,
            "deadly",
            redis_url,
            die_for=["poison"],
            options={"group_instance_id": "one"},
        )
        deaths = 0
        worker = spawn(orders)
        try:
            with relevo.JobEvents(brokers.kafka, cluster_name, kinds=["JobIncident"]) as incidents:
                found: list[relevo.JobEvent] = []
                while not found:
                    found = incidents.read(0.2)
                    if worker.poll() is not None:
                        deaths += 1
                        worker = spawn(orders)
            good = {job.key for job in jobs} - {"poison"}
            wait_until(
                lambda: completed(brokers, cluster_name) == good, "the neighbours are completed", timeout_s=90
            )
        finally:
            worker.kill()
            worker.wait(30)
    assert (found[0].key, found[0].event.cause) == ("poison", "LEASES_EXHAUSTED")  # type: ignore[attr-defined]
    assert 2 <= deaths <= 8
    # One that ran beside it when the process died may have had its effect and no mark.
    assert all(1 <= effects(counters, cluster_name, key) <= deaths + 1 for key in good)


def test_sigterm_lets_running_jobs_finish(
    brokers: Brokers, cluster_name: str, client: relevo.Client, counters: redis.Redis, redis_url: str
) -> None:
    with EngineThread(brokers.kafka, cluster_name, 1, ["slow"]):
        job = client.create("slow")
        worker = spawn(Orders(brokers.kafka, cluster_name, "slow", redis_url, seconds=1.0))
        wait_until(lambda: counters.get(f"running:{cluster_name}:{job.key}"), "the job runs")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        assert client.await_result(job).value == job.key
    assert effects(counters, cluster_name, job.key) == 1


def test_a_second_signal_ends_the_worker_at_once(
    brokers: Brokers, cluster_name: str, client: relevo.Client, counters: redis.Redis, redis_url: str
) -> None:
    """A handler that hangs must not keep a deployment waiting."""
    with EngineThread(brokers.kafka, cluster_name, 1, ["hangs"]):
        job = client.create("hangs")
        worker = spawn(Orders(brokers.kafka, cluster_name, "hangs", redis_url, seconds=3_600))
        wait_until(lambda: counters.get(f"running:{cluster_name}:{job.key}"), "the job runs")
        try:
            worker.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(1.5)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(15) == 0
        finally:
            worker.kill()
            worker.wait(30)
