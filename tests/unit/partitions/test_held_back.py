"""When somebody else's open transaction is told, and when it isn't."""

from __future__ import annotations

from relevo_partitions.observer import Observer
from relevo_partitions.ports import Reader, Stability
from relevo_partitions.term.held_back import AGAIN_S, HeldBackWatch
from tests.unit.partitions.fakes import FakeKafka, FakeReader

LIMIT_S = 15.0


class Told(Observer):
    def __init__(self) -> None:
        self.records: list[tuple[str, int, int]] = []
        self.texts: list[str] = []

    def held_back(self, topic: str, partition: int, records: int) -> None:
        self.records.append((topic, partition, records))

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        assert (partition, kind) == (3, "held_back")
        self.texts.append(detail)


class StandsAt(FakeReader):
    """A reader that has heard what the test says."""

    def __init__(self) -> None:
        super().__init__(FakeKafka(), [])
        self.heard = Stability()

    def stability(self) -> Stability:
        return self.heard


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.told = Told()
        self.reader = StandsAt()
        self.watch = HeldBackWatch("c.log", 3, LIMIT_S, self.told, lambda: self.now)

    def after(self, seconds: float, stable: int, end: int) -> None:
        self.now += seconds
        self.reader.heard = Stability(stable, end)
        reader: Reader = self.reader
        self.watch.look(reader)


def test_nothing_behind_the_stable_offset_is_no_matter_however_long_it_stands() -> None:
    scene = Scene()
    for _ in range(10):
        scene.after(LIMIT_S, 7, 7)
        scene.after(LIMIT_S, -1, -1)
    assert not scene.told.texts
    assert not scene.told.records


def test_a_stable_offset_that_moves_on_is_no_matter_however_far_behind() -> None:
    """A leader under load always has a transaction open."""
    scene = Scene()
    for n in range(100):
        scene.after(LIMIT_S - 1, n, n + 1_000)
    assert scene.told.texts == []


def test_it_is_told_where_and_how_to_end_it_once_the_limit_has_passed() -> None:
    scene = Scene()
    scene.after(0, 40, 41)
    scene.after(LIMIT_S - 0.1, 40, 50)
    assert not scene.told.texts
    scene.after(0.1, 40, 52)
    assert scene.told.records == [("c.log", 3, 12)]
    (text,) = scene.told.texts
    assert text == scene.watch.text
    assert text.startswith("c.log [3]: 12 records have waited for 15 s behind offset 40")
    assert "abort --topic c.log --partition 3 --start-offset 40" in text


def test_it_is_told_again_now_and_then_and_its_end_once() -> None:
    scene = Scene()
    scene.after(0, 40, 41)
    scene.after(LIMIT_S, 40, 42)
    for _ in range(10):
        scene.after(AGAIN_S / 10, 40, 43)
    assert [records for _, _, records in scene.told.records] == [2, 3]
    assert len(scene.told.texts) == 2
    scene.after(1, 43, 43)
    scene.after(1, 43, 43)
    assert scene.watch.text is None
    assert [records for _, _, records in scene.told.records] == [2, 3, 0]
    scene.watch.close()
    assert len(scene.told.records) == 3


def test_a_reader_that_is_closed_is_held_back_no_more() -> None:
    scene = Scene()
    scene.after(0, 40, 41)
    scene.after(LIMIT_S, 40, 42)
    scene.watch.close()
    assert scene.told.records[-1] == ("c.log", 3, 0)
    scene.after(LIMIT_S, 40, 42)
    assert len(scene.told.texts) == 1, "whoever reads next counts anew"
