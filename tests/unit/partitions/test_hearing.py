"""What a leader has heard: silence means something only from whoever it could have heard."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.statemachine import Heard
from relevo_partitions.term.hearing import ASK_MS, BREAK_MS, Hearing

T0 = 1_000_000


class Ear:
    """A leader's hearing whose questions are answered when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []
        self.end = 0
        self.away = False
        self.hearing = Hearing(T0, self._end, self._spawn)

    def _end(self) -> int:
        if self.away:
            raise KafkaUnavailable("no broker")
        return self.end

    def _spawn(self, ask: Callable[[], None]) -> None:
        self.asked.append(ask)

    def answer(self) -> None:
        self.asked.pop(0)()

    def turn(self, now: int, *, read: int, waiting: int | None = None, silent_at: int | None = T0) -> Heard:
        self.hearing.listen(T0 + now, None if silent_at is None else silent_at)
        since, until = self.hearing.heard(read, waiting)
        return Heard(since - T0, until - T0)


@pytest.fixture
def ear() -> Ear:
    return Ear()


def test_nobody_is_asked_while_nobodys_silence_would_mean_anything(ear: Ear) -> None:
    for now in range(0, 10 * ASK_MS, 100):
        ear.turn(now, read=0, silent_at=None)
    assert ear.asked == []


def test_what_was_sent_before_the_question_is_heard_once_it_is_read(ear: Ear) -> None:
    ear.end = 7
    assert ear.turn(500, read=5, silent_at=T0 + 400).until == 0
    ear.answer()
    assert ear.turn(510, read=5).until == 0, "two commands haven't been read yet"
    assert ear.turn(520, read=7, waiting=6).until == 0, "one of them waits for the next batch"
    assert ear.turn(530, read=7).until == 500
    assert ear.turn(540, read=9).until == 500, "what came later wasn't asked about"


def test_one_question_at_a_time_and_one_a_second_and_when_somebody_counts_as_silent(ear: Ear) -> None:
    later = T0 + 60_000
    ear.turn(ASK_MS - 1, read=0, silent_at=later)
    assert len(ear.asked) == 0
    ear.turn(ASK_MS, read=0, silent_at=later)
    ear.turn(ASK_MS + 500, read=0, silent_at=later)
    assert len(ear.asked) == 1
    ear.answer()
    ear.turn(ASK_MS + 600, read=0, silent_at=later)
    assert ear.asked == []
    ear.turn(ASK_MS + 650, read=0, silent_at=T0 + ASK_MS + 650)
    assert len(ear.asked) == 1, "due at this moment: whatever was sent before must have been heard"
    ear.answer()
    assert ear.turn(ASK_MS + 660, read=0, silent_at=T0 + ASK_MS + 650).until == ASK_MS + 650
    assert ear.asked == [], "that is known now"


def test_behind_a_backlog_time_goes_on_with_the_commands(ear: Ear) -> None:
    for second in range(1, 6):
        ear.end = 1_000 * second
        ear.turn(second * ASK_MS, read=100 * second)
        ear.answer()
    assert ear.turn(5 * ASK_MS + 10, read=999).until == 0
    assert ear.turn(5 * ASK_MS + 20, read=2_500).until == 2 * ASK_MS
    assert ear.turn(5 * ASK_MS + 30, read=9_000, waiting=4_000).until == 4 * ASK_MS
    assert ear.turn(5 * ASK_MS + 40, read=9_000).until == 5 * ASK_MS


def test_a_turn_that_takes_too_long_is_a_break(ear: Ear) -> None:
    """A transaction that Kafka doesn't take, or a process that stands still."""
    assert ear.turn(BREAK_MS, read=0).since == 0
    assert ear.turn(2 * BREAK_MS + 1, read=0).since == 2 * BREAK_MS + 1


def test_an_answer_that_comes_late_ends_a_break(ear: Ear) -> None:
    ear.turn(400, read=0, silent_at=T0 + 300)
    for now in range(500, 5_000, 100):
        assert ear.turn(now, read=0, silent_at=T0 + 300) == Heard(0, 0), "nobody counts as silent meanwhile"
    ear.answer()
    assert ear.turn(5_000, read=0) == Heard(5_000, 400)


def test_a_question_that_fails_is_asked_again_and_its_answer_ends_a_break(ear: Ear) -> None:
    ear.away = True
    ear.turn(400, read=0, silent_at=T0 + 300)
    ear.answer()
    ear.turn(500, read=0, silent_at=T0 + 300)
    assert ear.asked == [], "no more than once a second"
    ear.turn(400 + ASK_MS, read=0, silent_at=T0 + 300)
    ear.away = False
    ear.answer()
    assert ear.turn(1_410, read=0) == Heard(1_410, 400 + ASK_MS)
    assert ear.turn(1_500, read=0).since == 1_410, "a break ends once"


def test_without_a_thread_it_is_asked_later() -> None:
    def no_thread(_ask: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    spawned: list[Callable[[], None]] = []
    hearing = Hearing(T0, lambda: 0, lambda ask: (spawned.append if spawned_may else no_thread)(ask))
    spawned_may = False
    hearing.listen(T0 + ASK_MS, T0 + ASK_MS)
    assert hearing.heard(0, None).until == T0
    spawned_may = True
    hearing.listen(T0 + 2 * ASK_MS, T0 + ASK_MS)
    spawned[0]()
    hearing.listen(T0 + 2 * ASK_MS + 5, T0 + ASK_MS)
    assert hearing.heard(0, None).until == T0 + 2 * ASK_MS
