"""How much of a backlog one transaction takes."""

from __future__ import annotations

from collections.abc import Sequence

from relevo_partitions.outcomes import Aborted, Committed, Outcome
from relevo_partitions.settings import TermSettings
from relevo_partitions.statemachine import Incoming, Write
from relevo_partitions.term.batches import CALM, Batches
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import FakeKafka, FakeReader, Running


def backlog(count: int, size: int = 1) -> FakeReader:
    return FakeReader(FakeKafka(), [Incoming(number, b"", b"x" * size) for number in range(count)])


def sizes(batches: Batches, reader: FakeReader, count: int) -> list[int]:
    """Of ``count`` batches, each of which commits but the last one."""
    found = []
    for number in range(count):
        found.append(len(batches.next(reader, 0.0)))
        if number < count - 1:
            batches.done()
    return found


def test_a_backlog_comes_in_batches_of_bounded_number_in_order() -> None:
    batches, reader = Batches(4, 1_000), backlog(10)
    seen = [record.offset for _ in range(4) for record in batches.next(reader, 0.0)]
    assert seen == list(range(10))


def test_large_commands_make_small_batches() -> None:
    """One transaction of a thousand commands of 900 kB is more than a broker takes in time."""
    assert sizes(Batches(1_000, 250), backlog(7, 100), 4) == [3, 3, 1, 0]
    assert sizes(Batches(1_000, 250), backlog(2, 5_000), 3) == [1, 1, 0]


def test_what_did_not_commit_is_tried_again_in_smaller_pieces_until_one_does() -> None:
    batches = Batches(64, 10_000)
    for expected in (64, 8, 1, 1):
        assert sizes(batches, backlog(100), 1) == [expected]
        batches.start_over()
    assert sizes(batches, backlog(100), 2 * CALM + 1) == [1] * CALM + [2] * CALM + [4]


def test_of_two_batches_under_way_the_first_is_the_one_that_failed() -> None:
    """The second was decided while the first committed, and is thrown away with it."""
    batches, reader = Batches(64, 10_000), backlog(70)
    assert (len(batches.next(reader, 0.0)), batches.full) == (64, True)
    assert (len(batches.next(reader, 0.0)), batches.full) == (6, False)
    batches.start_over()
    assert sizes(batches, backlog(100), 1) == [8]


def test_a_batch_is_full_by_number_or_by_size() -> None:
    for batches, reader, expected in (
        (Batches(4, 1_000), backlog(9), [True, True, False, False]),
        (Batches(1_000, 250), backlog(4, 100), [True, False, False]),
    ):
        found = []
        for _ in expected:
            batches.next(reader, 0.0)
            found.append(batches.full)
        assert found == expected


def test_a_failure_without_commands_changes_nothing() -> None:
    """The barrier of a rebuilt term can fail too, and says nothing about the size of batches."""
    batches = Batches(64, 10_000)
    batches.next(backlog(100), 0.0)
    for _ in range(3):
        batches.start_over()
    assert sizes(batches, backlog(100), 1) == [8]


def test_a_backlog_that_no_broker_takes_at_once_is_worked_off_all_the_same() -> None:
    """A slow broker aborts what it can't take in time; the same again would be aborted for ever."""
    kafka = FakeKafka()

    def too_much(at: FakeKafka, writes: Sequence[Write]) -> Outcome:
        if len(writes) > 3:
            return Aborted("records were not acknowledged within 8 s")
        at.append(writes)
        return Committed(len(writes), 0.0)

    kafka.faults.extend([too_much] * 200)
    for number in range(40):
        kafka.send(id=str(number), add=1)
    running = Running(kafka, settings=TermSettings(idle_wait_s=0.005))
    wait_until(
        lambda: [e["id"] for e in kafka.events() if e["kind"] == "added"] == [str(n) for n in range(40)],
        "every command was decided once, in order",
        timeout_s=20,
    )
    assert "aborted" in running.heard.faults
