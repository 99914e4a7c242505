"""Commands that are fetched before it is known where the new leader has to begin."""

from __future__ import annotations

import threading

import pytest

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.ports import Stability
from relevo_partitions.runtime import THREADS
from relevo_partitions.statemachine import Incoming, LogDamaged
from relevo_partitions.term.ahead import CommandsAhead
from tests.support.waiting import wait_until


class Commands:
    """A reader of a hundred commands, of which the first may be deleted."""

    def __init__(self, begin: int = 0, away: bool = False) -> None:
        self.begin, self.away, self.next = begin, away, -1
        self.may_answer, self.closed = threading.Event(), threading.Event()
        self.may_answer.set()
        self.asked = False

    def check(self, offset: int) -> None:
        self.asked = True
        assert self.may_answer.wait(10)
        self.asked = False
        if self.away:
            raise KafkaUnavailable("no broker")
        if not self.begin <= offset <= 100:
            raise LogDamaged(f"offset {offset} was due, but Kafka holds records from {self.begin} on")

    def start(self, offset: int) -> None:
        self.next = offset

    def read(self, wait_s: float, records_max: int) -> list[Incoming]:
        if self.next < self.begin:
            raise LogDamaged(f"offset {self.next} was due")
        found = [Incoming(offset, b"", b"") for offset in range(self.next, min(100, self.next + records_max))]
        self.next += len(found)
        return found

    @property
    def reached(self) -> int:
        return self.next

    @property
    def at_end(self) -> bool:
        return self.next == 100

    def end_offset(self) -> int:
        return 100

    def stability(self) -> Stability:
        return Stability(100, 100)

    def note_position(self, position: int) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """It must not be in the middle of anything."""
        assert not self.asked
        self.closed.set()


def ahead(commands: Commands, position: int) -> CommandsAhead:
    return CommandsAhead(commands, position, 0, THREADS)


def test_what_was_decided_meanwhile_is_left_out() -> None:
    reader = ahead(Commands(), 10).from_position(17)
    offsets = [record.offset for _ in range(4) for record in reader.read(0.0, 5)]
    assert offsets == list(range(17, 30))


def test_nothing_decided_meanwhile_is_the_reader_itself() -> None:
    commands = Commands()
    assert ahead(commands, 10).from_position(10) is commands


def test_a_hole_before_the_position_is_no_damage() -> None:
    """Another leader has trimmed what it had decided, while this node's standby was behind."""
    reader = ahead(Commands(begin=20), 10).from_position(40)
    assert [record.offset for record in reader.read(0.0, 3)] == [40, 41, 42]


def test_a_hole_that_appears_before_the_position_is_no_damage() -> None:
    commands = Commands()
    reader = ahead(commands, 10).from_position(40)
    commands.begin = 30
    assert reader.read(0.0, 3) == []
    assert [record.offset for record in reader.read(0.0, 3)] == [40, 41, 42]
    commands.begin = 60
    with pytest.raises(LogDamaged, match="offset 43 was due"):
        reader.read(0.0, 3)


def test_a_hole_at_the_position_is_damage() -> None:
    with pytest.raises(LogDamaged, match="holds records from 50 on"):
        ahead(Commands(begin=50), 10).from_position(40)
    with pytest.raises(LogDamaged, match="holds records from 50 on"):
        ahead(Commands(begin=50), 40).from_position(40)


def test_kafka_away_is_told() -> None:
    with pytest.raises(KafkaUnavailable):
        ahead(Commands(away=True), 10).from_position(40)


@pytest.mark.parametrize("when", ["while it asks", "afterwards"])
def test_nobody_closes_a_reader_that_is_asking(when: str) -> None:
    """A client that is closed while another thread is in a call of it ends the whole process."""
    commands = Commands()
    commands.may_answer.clear()
    fetching = ahead(commands, 10)
    wait_until(lambda: commands.asked, "it asks")
    if when == "afterwards":
        commands.may_answer.set()
        wait_until(lambda: commands.next == 10, "it has begun")
    fetching.give_up()
    commands.may_answer.set()
    assert commands.closed.wait(10)


def test_whatever_keeps_it_from_fetching_is_told() -> None:
    class Odd(Commands):
        def start(self, offset: int) -> None:
            raise RuntimeError("the client is closed")

    with pytest.raises(KafkaUnavailable, match="RuntimeError: the client is closed"):
        ahead(Odd(), 10).from_position(10)
