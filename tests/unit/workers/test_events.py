"""What a reader of job events asks for, and how it knows that the next event is the one that follows."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.errors import InvalidRequest, LogGap
from relevo.events.event_choice import Choice, check_gap, check_start
from relevo.events.job_event import JobEvent, LogPosition, Skipped, key_of
from relevo.events.log_progress import Progress
from relevo_schemas.codec import job_spec
from relevo_schemas.events import CommandRejected, JobCompleted, JobCreated, JobDue, LeaderElected


def due(seq: int, epoch: int = 1, key: str = "k") -> JobDue:
    return JobDue(seq, epoch, 0, -1, key)


def created(key: str, job_type: str) -> JobCreated:
    return JobCreated(1, 1, 0, -1, job_spec(key=key, type=job_type))


def test_a_position_is_text_and_back() -> None:
    position = JobEvent(3, 17, "JobDue", "k", due(12, 4)).position
    assert position == LogPosition(3, 17, 12, 4)
    assert LogPosition.parse(str(position)) == position


@pytest.mark.parametrize(
    "text", ["", "1:2:3", "1:2:3:4:5", "1:2:3:x", "-1:2:3:4", "1:2:3: 4", "\u0661:2:3:4"]
)
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no position"):
        LogPosition.parse(text)


def test_starts_behind_events() -> None:
    one, two = LogPosition(0, 5, 4, 1), LogPosition(1, 9, 8, 2)
    expected = {0: one, 1: two}
    for given in ([one, two], [str(one), str(two)], {0: one, 1: two}, iter([one, two])):
        assert check_start(given) == expected
    assert check_start([]) == {}


@pytest.mark.parametrize(
    "given",
    [
        [LogPosition(0, 1, 1, 1), LogPosition(0, 2, 2, 1)],
        {1: LogPosition(0, 1, 1, 1)},
        {0: -1},
        {"0": 1},
        [5],
        "0:1:1:1",
        b"now",
        None,
        -1,
        True,
    ],
)
def test_starts_that_can_not_be(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="from_"):
        check_start(given)


def test_what_to_do_at_a_gap() -> None:
    assert check_gap("skip") == "skip"
    assert check_gap(print) is print
    for wrong in ("ignore", None, 1):
        with pytest.raises(InvalidRequest, match="on_gap"):
            check_gap(wrong)


@pytest.mark.parametrize("name", ["types", "keys", "kinds"])
def test_one_text_is_no_list(name: str) -> None:
    """Its letters would be taken for keys, and nothing would ever be found."""
    given: dict[str, Any] = {"types": None, "keys": None, "kinds": None, name: "JobDue"}
    with pytest.raises(InvalidRequest, match=f"{name} must be a list"):
        Choice(**given)


def follow(progress: Progress, event: JobDue, offset: int) -> Skipped | None:
    skipped = progress.missing_before(event, offset, "here")
    progress.take(event, offset)
    return skipped


def test_events_that_follow() -> None:
    progress = Progress(0, 10, 0, seq=4, epoch=2)
    assert follow(progress, due(5, 2), 10) is None
    assert follow(progress, due(6, 3), 13) is None
    assert (progress.offset, progress.seq, progress.epoch) == (14, 6, 3)


@pytest.mark.parametrize(
    ("event", "told"),
    [(due(6, 2), "expected 5"), (due(4, 2), "a hole or a repeat"), (due(5, 1), "deposed leader")],
    ids=["hole", "repeat", "old term"],
)
def test_events_that_do_not_follow(event: JobDue, told: str) -> None:
    with pytest.raises(LogGap, match=told):
        Progress(0, 10, 0, seq=4, epoch=2).missing_before(event, 10, "here")


def test_where_the_log_was_trimmed() -> None:
    def trimmed(seq: int | None) -> Progress:
        return Progress(0, 20, 0, seq=seq, epoch=2, trimmed_from=10)

    assert follow(trimmed(4), due(9, 2), 21) == Skipped(0, 10, 21, 4)
    assert follow(trimmed(8), due(9, 2), 21) is None
    assert follow(trimmed(None), due(9, 2), 21) == Skipped(0, 10, 21, None)
    with pytest.raises(LogGap, match="made anew"):
        follow(trimmed(9), due(9, 2), 21)


def test_types_are_learnt_and_forgotten_with_the_job() -> None:
    choice = Choice(["a"], None, None)
    done = JobCompleted(2, 1, 0, -1, "mine", 1, b"")
    assert choice.wants(0, created("mine", "a"))
    assert not choice.wants(0, created("other", "b"))
    assert choice.wants(0, due(2, key="mine"))
    assert not choice.wants(0, due(2, key="other"))
    assert not choice.wants(0, LeaderElected(3, 1, 0, -1, "n", "i"))
    assert choice.untyped == 0
    assert choice.wants(0, done)
    assert not choice.wants(0, CommandRejected(3, 1, 0, -1, "mine", "CancelJob", "ended", "", ""))
    assert choice.untyped == 0
    assert not choice.wants(0, due(4, key="unknown"))
    assert choice.untyped == 1


def test_types_of_a_partition_that_went_away() -> None:
    choice = Choice(["a"], None, None)
    choice.learn(0, "x", "a")
    choice.learn(1, "y", "a")
    choice.forget(0)
    assert not choice.wants(0, due(1, key="x"))
    assert choice.wants(1, due(1, key="y"))


def test_the_key_of_an_event() -> None:
    assert key_of(created("c", "t")) == "c"
    assert key_of(due(1, key="d")) == "d"
    assert key_of(LeaderElected(1, 1, 0, -1, "n", "i")) == ""


def test_how_a_gap_reads() -> None:
    assert str(Skipped(1, 5, 9, 3)) == "partition 1: 3 events, offsets 5 to 8"
    assert str(Skipped(1, 5, 9, None)).startswith("partition 1: an unknown number of events")
