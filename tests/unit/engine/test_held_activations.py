"""Whose activations are watched, and what is told where they can't be read."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from relevo_engine import held_activations
from relevo_engine.errors import UnreachableError
from relevo_engine.held_activations import TOLD_MAX, HeldActivations, Place
from relevo_partitions.observer import Observer
from relevo_partitions.ports import Stability
from tests.support.waiting import wait_until

LIMIT_S = 15.0
TOPIC = "c.activations.mail"


class Told(Observer):
    def __init__(self) -> None:
        self.records: list[tuple[str, int, int]] = []
        self.faults: list[tuple[int | None, str, str]] = []
        self.notes: list[str] = []

    def held_back(self, topic: str, partition: int, records: int) -> None:
        self.records.append((topic, partition, records))

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        self.faults.append((partition, kind, detail))

    def note(self, event: str, **fields: object) -> None:
        self.notes.append(f"{event}: {fields.get('reason')}")


class Scene:
    """A cluster of two partitions, a type with four slots, and Kafka as the test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told = Told()
        self.led = [1]
        self.slots = {"mail": 4}
        self.stuck: dict[Place, Stability] = {}
        self.asked: list[set[Place]] = []
        self.problem: Exception | None = None
        self.watch = HeldActivations(
            self,
            "c",
            2,
            slots=lambda: self.slots,
            led=lambda: self.led,
            limit_s=LIMIT_S,
            observer=self.told,
            clock=lambda: self.now,
        )

    def stability(self, places: Collection[Place]) -> dict[Place, Stability]:
        if self.problem is not None:
            raise self.problem
        self.asked.append(set(places))
        return {place: self.stuck.get(place, Stability(7, 7)) for place in places}

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.watch.look()


def test_the_leader_alone_looks_after_the_slots_of_its_partitions() -> None:
    scene = Scene()
    scene.after(0)
    assert scene.asked == [{(TOPIC, 1), (TOPIC, 3)}]
    scene.led = []
    scene.after(5)
    assert len(scene.asked) == 1, "who leads nothing asks nothing"


def test_it_is_told_of_the_partition_of_the_cluster_and_names_the_kafka_partition() -> None:
    scene = Scene()
    scene.stuck[TOPIC, 3] = Stability(40, 42)
    scene.after(0)
    scene.after(LIMIT_S - 1)
    assert scene.told.faults == []
    scene.after(1)
    ((partition, kind, text),) = scene.told.faults
    assert (partition, kind) == (1, "held_back")
    assert text == scene.watch.text(1)
    assert text.startswith(f"{TOPIC} [3]: 2 records have waited for 15 s behind offset 40")
    assert f"abort --topic {TOPIC} --partition 3 --start-offset 40" in text
    assert scene.watch.text(0) is None
    assert scene.told.records == [(TOPIC, 3, 2)]
    scene.stuck.clear()
    scene.after(5)
    assert scene.watch.text(1) is None
    assert scene.told.records[-1] == (TOPIC, 3, 0)


def test_who_leads_no_more_tells_no_more() -> None:
    scene = Scene()
    scene.stuck[TOPIC, 1] = Stability(40, 42)
    scene.after(0)
    scene.after(LIMIT_S)
    scene.led = [0]
    scene.after(5)
    assert scene.told.records[-1] == (TOPIC, 1, 0)
    assert scene.watch.text(1) is None


def test_what_kafka_does_not_answer_changes_nothing_that_was_told() -> None:
    scene = Scene()
    scene.stuck[TOPIC, 1] = Stability(40, 42)
    scene.after(0)
    scene.after(LIMIT_S)
    scene.problem = UnreachableError("away")
    with pytest.raises(UnreachableError):
        scene.after(5)
    assert scene.watch.text(1) is not None


def test_many_places_are_told_of_in_few_words() -> None:
    scene = Scene()
    scene.slots = {f"t{n}": 2 for n in range(TOLD_MAX + 2)}
    scene.stuck = {(f"c.activations.t{n}", 1): Stability(4, 5) for n in range(TOLD_MAX + 2)}
    scene.after(0)
    scene.after(LIMIT_S)
    text = scene.watch.text(1) or ""
    assert text.count("records have waited") == TOLD_MAX
    assert text.endswith("; and 2 more")


def test_the_thread_outlives_what_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody would hear of an open transaction for as long as the process lives."""
    monkeypatch.setattr(held_activations, "LOOK_S", 0.01)
    scene = Scene()
    scene.problem = ValueError("of whatever kind")
    scene.watch.start()
    wait_until(lambda: scene.told.notes, "it is told")
    assert scene.told.notes[0] == "activations not looked at: ValueError"
    scene.problem = None
    wait_until(lambda: scene.asked, "it looks again")
    assert scene.watch.stop()
