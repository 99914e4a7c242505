"""What Prometheus reads of a worker is what the worker has counted."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

import relevo
from relevo.consumer.offsets import OffsetTracker
from relevo.consumer.reading import Reading
from relevo.dedup.store import Claim
from relevo.errors import MissingExtra
from relevo.health.metrics import _COUNTERS, exposition
from relevo.stats import BOUNDS_S, Histogram, WorkerStats, total
from relevo.testing import Engine, KeptDedupStore
from relevo.worker.worker import TypeWorker
from tests.unit.workers.fakes import activation_bytes
from tests.unit.workers.gate_world import World


class Scrape:
    """What one scrape gives, by name and labels."""

    def __init__(self, text: bytes) -> None:
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text.decode()):
            for each in family.samples:
                self.samples[each.name, frozenset(each.labels.items())] = each.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[f"relevo_worker_{name}", frozenset(labels.items())]


def workers_of(engine: Engine) -> list[TypeWorker]:
    return [worker for process in engine._world.processes for worker in process.workers]


def scrape(engine: Engine) -> Scrape:
    return Scrape(exposition(lambda: workers_of(engine))())


@pytest.fixture
def app() -> relevo.WorkerApp:
    app = relevo.WorkerApp(dedup=KeptDedupStore())

    @app.job("work", concurrency=7)
    async def work(job: relevo.Job) -> Any:
        match job.variables.get("end"):
            case "raise":
                raise ValueError("boom")
            case "fail":
                raise relevo.Fail("no", retriable=False)
            case "result":
                return object()
            case "error":
                raise relevo.JobError("NO", "declined")
        return "done"

    @app.job("plain")
    def plain(job: relevo.Job) -> None:
        pass

    return app


async def test_every_end_is_counted_by_type_and_kind(app: relevo.WorkerApp) -> None:
    """An alarm on failures says nothing if all of them look alike, or are another type's."""
    async with Engine() as engine:
        engine.run(app)
        for end in ("", "", "raise", "fail", "result", "error"):
            await engine.create("work", {"end": end}, retries=0)
        await engine.create("plain")
        await engine.settle()
        found = scrape(engine)
        assert found("started_total", type="work") == 6
        assert found("done_total", type="work") == 2
        assert found("done_total", type="plain") == 1
        assert found("errored_total", type="work") == 1
        kinds = {
            kind: found("failed_total", type="work", kind=kind)
            for kind in ("exception", "fail", "result", "timeout")
        }
        assert kinds == {"exception": 1, "fail": 1, "result": 1, "timeout": 0}
        assert sum(engine.stats.failures.values()) == engine.stats.failed == 3
        assert found("concurrency", type="work") == 7
        assert found("partitions", type="work") == 2


async def test_times_are_histograms(app: relevo.WorkerApp) -> None:
    """Without the count below each bound there is no percentile to alarm on."""
    async with Engine() as engine:
        engine.run(app)
        for _ in range(5):
            await engine.create("work", {})
        await engine.settle()
        found = scrape(engine)
        for name in ("handler_seconds", "queue_seconds"):
            assert found(f"{name}_count", type="work") == 5
            assert found(f"{name}_count", type="plain") == 0
            assert found(f"{name}_bucket", type="work", le="+Inf") == 5
            below = [found(f"{name}_bucket", type="work", le=str(float(bound))) for bound in BOUNDS_S]
            assert below == sorted(below)
        assert found("handler_seconds_sum", type="work") > 0


async def test_duplicates_and_jobs_at_work(app: relevo.WorkerApp) -> None:
    async with Engine() as engine:
        engine.run(app)
        job = await engine.create("work", {})
        await engine.settle()
        await engine.deliver_twice(job)
        found = scrape(engine)
        assert found("duplicates_suppressed_total", type="work") == 1
        assert found("received_total", type="work") == 2
        assert found("running", type="work") == 0
        assert found("buffered", type="work") == 0


def test_the_wait_for_anothers_claim_is_measured() -> None:
    """A worker that starts nothing, as another one holds the claims, looks idle."""
    world = World()
    world.store.claim([Claim("c:dedup:k", "somebody", 60.0)])
    before = time.monotonic()
    world.arrive(activation_bytes("k"))
    assert world.stats.claim_waits == 1
    world.store.release([Claim("c:dedup:k", "somebody", 60.0)])
    item = world.gate._by_key["k"]
    item.held_since -= 5
    world.later()
    assert 5_000 <= world.stats.claim_wait_ms <= 5_000 + (time.monotonic() - before) * 1_000 + 1
    assert world.runner.started == ["k"]
    assert item.held_since == 0


def test_no_counter_is_forgotten() -> None:
    """A counter that is kept and never shown is found when it is missed."""
    counted = {each.name for each in fields(WorkerStats) if not each.name.startswith("_")}
    shown = {name for name, _, _ in _COUNTERS} | {"failed", "unknown_claims", "unknown_done", "claim_wait_ms"}
    assert counted == shown


def test_sums_of_workers_have_their_times_and_kinds_too() -> None:
    one, two = WorkerStats(), WorkerStats()
    one.concluded({"done": 2, "timeout": 1})
    two.concluded({"timeout": 2, "exception": 1, "errored": 4})
    one._handled.observe([0.02, math.inf])
    two._handled.observe([0.02])
    summed = total([one, two])
    assert (summed.done, summed.failed, summed.errored) == (2, 4, 4)
    assert {kind: count for kind, count in summed.failures.items() if count} == {"timeout": 3, "exception": 1}
    assert summed.handler_time.counts[2] == 2
    assert summed.handler_time.counts[-1] == 1


def test_a_bound_belongs_to_its_bucket() -> None:
    """Prometheus' buckets hold what is less or equal."""
    histogram = Histogram()
    histogram.observe([BOUNDS_S[0], BOUNDS_S[0] + 0.001])
    assert histogram.counts[:2] == [1, 1]
    assert histogram.seconds == pytest.approx(2 * BOUNDS_S[0] + 0.001)


def test_what_handlers_count_themselves_is_served_too() -> None:
    """Two ports for one process would be asked for otherwise."""
    mine = prometheus_client.Counter("mails_sent", "Mails.")
    try:
        mine.inc(3)
        text = exposition(list)().decode()
    finally:
        prometheus_client.REGISTRY.unregister(mine)
    assert "mails_sent_total 3.0" in text


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"pip install 'relevo\[metrics\]'"):
        exposition(list)


class Place:
    def __init__(self, partition: int, offset: int) -> None:
        self.topic, self.partition, self.offset, self.error = "t", partition, offset, None


class FakeConsumer:
    """Partition 0 is read up to 7 of 10, partition 1 was never fetched."""

    def __init__(self) -> None:
        self.ends = {0: (0, 10), 1: (-1001, -1001)}
        self.asked = 0

    def memberid(self) -> str:
        return "member"

    def position(self, places: list[Any]) -> Iterator[Place]:
        self.asked += 1
        return iter([Place(0, 7), Place(1, -1001)])

    def get_watermark_offsets(self, place: Any, cached: bool) -> tuple[int, int]:
        assert cached, "a question to the broker in the reading thread"
        return self.ends[place.partition]


def test_lag_is_what_lies_unread_and_unknown_is_not_none() -> None:
    """A lag of 0 for a partition that was never fetched would hide the worst lag of all."""
    tracker = OffsetTracker()
    tracker.assign("t", 0, 0)
    tracker.assign("t", 1, 0)
    reading, consumer = Reading(tracker), FakeConsumer()
    reading.came_round(consumer, False, 100.0)
    assert reading.lag == {0: 3}
    assert (reading.member, reading.turned_at, reading.paused) == (True, 100.0, False)
    consumer.ends[1] = (0, 4)
    reading.came_round(consumer, True, 100.5)
    assert (consumer.asked, reading.turned_at, reading.paused) == (1, 100.5, True)
    reading.came_round(consumer, True, 101.5)
    assert reading.lag == {0: 3, 1: 4}
    tracker.end([("t", 0), ("t", 1)])
    reading.came_round(consumer, False, 103.0)
    assert reading.lag == {}
