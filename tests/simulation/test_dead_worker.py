"""A worker is killed: what it had started is redone after its lease, not when its group session has ended."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from relevo.worker.item import Item
from relevo.worker.slot_reports import SlotReports
from relevo_schemas.partitioning import partition_of
from tests.simulation.world import group, plans, world
from tests.simulation.world.worker import SimWorker
from tests.simulation.world.world import World

LEASE_S, SESSION_S, KILLED_AT = 3.0, 6.0, 12.5
FIRST_SLOTS = [key for key in (f"j{n}" for n in range(200)) if partition_of(key, 4) == 0][:14]
"""Jobs whose slot, and the next one, belong to the worker that is killed."""


def shape_of(rng: Random) -> plans.Shape:
    """Two workers with two neighbouring slots each, as Kafka's usual assignors share them out."""
    shape = plans.shape_of(rng)
    knobs = replace(
        shape.knobs, partitions=4, slots=4, window=50, redispatch_after_ms=60_000, fetch_lag_s=0.0
    )
    plan = replace(
        shape.jobs[0], type="work", run_in_s=0.0, lease_ms=round(LEASE_S * 1000), before_s=3.0, after_s=0.0,
        failures=0, error=False, cancel_after_s=-1.0, twice=False,
    )  # fmt: skip
    jobs = tuple(replace(plan, key=key, at_s=4.0 + n) for n, key in enumerate(FIRST_SLOTS))
    return replace(shape, nodes=("n1", "n2"), workers=("w1", "w2"), types=("work",), knobs=knobs, jobs=jobs)


def neighbours(self: group.Coordinator, topic: str) -> dict[int, str]:
    members, places = sorted(self._members[topic].heard), self._kafka.topics[topic]
    return {each.number: members[each.number * len(members) // len(places)] for each in places if members}


def redone_after(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long after the kill each started job of the dead worker was begun by the other one, in seconds."""
    monkeypatch.setattr(group, "MEMBER_S", SESSION_S)
    monkeypatch.setattr(group.Coordinator, "_wanted", neighbours)
    monkeypatch.setattr(world, "shape_of", shape_of)
    monkeypatch.setattr(world, "faults_of", lambda rng: [])
    begun: dict[str, list[float]] = {}
    started: list[str] = []
    run = SimWorker.handle

    def handle(self: SimWorker, item: Item) -> None:
        begun.setdefault(item.key, []).append(self.world.scheduler.now)
        run(self, item)

    def kill(made: World) -> None:
        started.extend(key for key, item in made.workers["w1"].gate.running.items() if item.reported)
        made.crash("w1", 40.0)

    monkeypatch.setattr(SimWorker, "handle", handle)
    made = World(1)
    made.scheduler.at(KILLED_AT, partial(kill, made))
    assert made.run().violation is None
    assert len(started) == 3
    return [next(at for at in begun[key] if at > KILLED_AT) - KILLED_AT for key in started]


def test_what_a_dead_worker_had_started_waits_for_its_lease_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(redone_after(monkeypatch)) < LEASE_S + 1


def test_where_nobody_tells_his_slots_it_waits_for_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-proof: else the world, not the reports, would make the other test succeed."""
    monkeypatch.setattr(SlotReports, "tell", lambda *args: None)
    assert min(redone_after(monkeypatch)) > LEASE_S + 1
