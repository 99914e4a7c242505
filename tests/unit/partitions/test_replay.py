"""Where the log ends is easy to misjudge; only a record of our own, read back, tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.statemachine import Incoming, Term
from relevo_partitions.term.barrier import make_barrier
from relevo_partitions.term.replay import replay_to_barrier
from relevo_partitions.term.stuck_reader import StuckReaderWatch
from tests.support.counter_machine import CounterMachine
from tests.unit.partitions.fakes import LOG, FakeKafka, FakeReader


def log_with_barriers(kafka: FakeKafka, *, foreign: bool = True) -> str:
    """Two events, a foreign barrier, the barrier that is looked for, and an event behind it."""
    writer = CounterMachine(0, "c")
    kafka.append(writer.lead(Term("n1", "i1"), 1))
    kafka.append(writer.step([Incoming(0, b"", b'{"id": "a", "add": 5}')], 1))
    if foreign:
        kafka.append([make_barrier("c.log", 0, "n9", "i9", "other")])
    nonce = "mine"
    barrier = make_barrier("c.log", 0, "n1", "i1", nonce)
    kafka.append([barrier])
    kafka.append(writer.step([Incoming(1, b"", b'{"id": "b", "add": 9}')], 1))
    return nonce


def watch(reader: FakeReader, stable: Callable[[], int] = lambda: 0) -> StuckReaderWatch:
    return StuckReaderWatch(reader, LOG, stable)


def replayed(kafka: FakeKafka, nonce: str, **more: object) -> CounterMachine:
    machine = CounterMachine(0, "c")
    reader = FakeReader(kafka, kafka.log)
    stuck = watch(reader, lambda: len(kafka.log))
    options = {"cancelled": lambda: False, "stall_s": 10.0, "stalled": lambda _: None, "stuck": stuck}
    assert replay_to_barrier(machine, reader, nonce, **(options | more))  # type: ignore[arg-type]
    return machine


def test_replay_ends_at_its_own_barrier_and_nowhere_else() -> None:
    kafka = FakeKafka()
    machine = replayed(kafka, log_with_barriers(kafka))
    assert (machine.total, machine.seq, machine.position) == (5, 2, 1)


def test_a_stalled_log_is_reported_while_kafka_answers() -> None:
    """Another producer's open transaction holds the log back: waiting is right, keeping silent isn't."""
    kafka = FakeKafka()
    stalls: list[str] = []
    nonce = log_with_barriers(kafka)
    held_back = kafka.log[2:]
    del kafka.log[2:]

    def stalled(detail: str) -> None:
        stalls.append(detail)
        if len(stalls) == 2:
            kafka.log += held_back

    assert replayed(kafka, nonce, stall_s=0.01, stalled=stalled).total == 5
    assert "open transaction" in stalls[0]


def test_a_stuck_reader_ends_it() -> None:
    """With another one the log can be replayed; this one is waited for in vain."""
    kafka = FakeKafka(stuck=True)
    nonce = log_with_barriers(kafka)
    with pytest.raises(KafkaUnavailable, match=r"c\.log: nothing comes from offset 0 on"):
        replayed(kafka, nonce, stall_s=0.01)
    kafka.stuck = False
    assert replayed(kafka, nonce).total == 5


def test_kafka_away_in_replay_ends_it() -> None:
    kafka = FakeKafka()
    reader = FakeReader(kafka, kafka.log)

    def away(offset: int) -> None:
        raise KafkaUnavailable("Kafka isn't reachable")

    reader.check = away  # type: ignore[method-assign]
    with pytest.raises(KafkaUnavailable):
        replay_to_barrier(
            CounterMachine(0, "c"),
            reader,
            "none",
            cancelled=lambda: False,
            stall_s=0.01,
            stalled=lambda _: None,
            stuck=watch(reader),
        )


def test_replay_can_be_cancelled() -> None:
    kafka = FakeKafka()
    asked = iter([False, False, True])
    reader = FakeReader(kafka, kafka.log)
    done = replay_to_barrier(
        CounterMachine(0, "c"),
        reader,
        "none",
        cancelled=lambda: next(asked),
        stall_s=10,
        stalled=lambda _: None,
        stuck=watch(reader),
    )
    assert not done


def test_what_lies_before_the_beginning_may_be_deleted() -> None:
    """A machine from a snapshot goes on in a trimmed log: waiting for its end must not look like damage."""
    kafka = FakeKafka()
    reader = FakeReader(kafka, kafka.log)
    asked: list[int] = []
    reader.check = asked.append  # type: ignore[method-assign,assignment]
    stalls: list[str] = []
    replay_to_barrier(
        CounterMachine(0, "c"),
        reader,
        "none",
        cancelled=lambda: bool(stalls),
        stall_s=0.01,
        stalled=stalls.append,
        stuck=watch(reader),
        begin=116,
    )
    assert asked == [116]
