"""The adapter: bytes in, bytes out; bad input, bugs and damaged logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from relevo_engine import machine as adapter
from relevo_engine.core import commands as core_commands
from relevo_engine.core import machine as core_machine
from relevo_engine.core.errors import InvariantBroken
from relevo_engine.core.snapshot import state_hash
from relevo_engine.core.state import State
from relevo_engine.core.turn import Turn
from relevo_engine.machine import PartitionMachine
from relevo_partitions.statemachine import Incoming, LogDamaged, StateMachine, Term, Write
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.codec import Codec, decode, encode
from relevo_schemas.delivery import Barrier
from relevo_schemas.errors import RecordError, RecordFault
from relevo_schemas.records import Command, Event, Record
from tests.unit.core.harness import START, Channels, Partition, incoming, only, refusals, rules, spec


@pytest.fixture
def p() -> Partition:
    return Partition(rules())


def test_it_is_what_the_owner_of_a_partition_drives(p: Partition) -> None:
    machine: StateMachine = p.owner
    assert (machine.position, machine.epoch, machine.last_at) == (0, 1, START)


def test_records_carry_the_right_topics_partitions_and_keys() -> None:
    machine = PartitionMachine(rules(partition=0, partitions=2), Channels({"email": 2}), cluster="prod")
    (announcement,) = machine.lead(Term("n1", "i1"), START)
    assert announcement[:3] == ("prod.log", 0, b"")
    command = cmd.CreateJob(spec("k4"))
    created, activated, activation = machine.step([Incoming(7, b"k4", encode(command))], START)
    assert [write[:3] for write in (created, activated, activation)] == [
        ("prod.log", 0, b"k4"),
        ("prod.log", 0, b"k4"),
        ("prod.activations.email", 0, b"k4"),
    ]
    assert isinstance(created, Write)
    assert machine.position == 8


def test_a_new_term_begins_one_epoch_higher(p: Partition) -> None:
    p.failover()
    p.failover()
    epochs = [(event.epoch, event.node, event.incarnation) for event in only(p.events, ev.LeaderElected)]
    assert epochs == [(1, "n1", "i1"), (2, "n2", "i2"), (3, "n3", "i3")]
    assert p.owner.epoch == 3


def test_state_and_position_move_together(p: Partition) -> None:
    """A position that runs ahead of the state loses commands; one that lags behind decides them twice."""
    p.create("a")
    p.send(cmd.CancelJob("nobody", ""))
    p.send(b"garbage")
    assert p.owner.position == p.replayed().position == 3
    p.start("a")
    p.extend("a")
    assert (p.offset, p.owner.position) == (5, 4), "an accepted extension leaves no event"


# --- Bad input ---


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "NOT_A_RECORD"),
        (b"", "NOT_A_RECORD"),
        (b"{}", "NOT_A_RECORD"),
        (b"\xc3\x01", "NOT_A_RECORD"),
        (b"\xc3\x01" + b"\x07" * 8, "UNKNOWN_SCHEMA"),
        (encode(cmd.CancelJob("k", "why"))[:-1], "DAMAGED"),
        (encode(cmd.CancelJob("k", "why")) + b"x", "DAMAGED"),
        (encode(cmd.CreateJob(spec("k")))[:-1], "DAMAGED"),
        (encode(cmd.CreateJob(spec("k"))) + b"x", "DAMAGED"),
        (encode(cmd.CancelJob("k", "why")) + b"x" * 1_000_000, "OVERSIZED"),
    ],
)
def test_what_cannot_be_read_is_refused_on_the_log(p: Partition, value: bytes | None, reason: str) -> None:
    (event,) = p.send(value)
    assert isinstance(event, ev.CommandRejected)
    assert (event.command, event.reason, event.key, event.source) == ("UNREADABLE", reason, "", 0)
    assert p.log[-1].key == b""
    assert isinstance(p.create("k")[0], ev.JobCreated)


@pytest.mark.parametrize(
    "record", [ev.JobDue(1, 1, START, -1, "k"), Barrier("n", "i", "x")], ids=lambda r: type(r).__name__
)
def test_what_is_no_command_is_refused(p: Partition, record: Record) -> None:
    """Somebody who produces events into the commands topic must not bend the state."""
    (event,) = p.send(encode(record))
    assert isinstance(event, ev.CommandRejected)
    assert (event.command, event.reason, event.found) == (
        type(record).__name__,
        "INVALID",
        type(record).__name__,
    )


def test_a_payload_that_is_no_json_is_carried_as_it_is(p: Partition) -> None:
    """The engine never looks inside; what a worker makes of it is the worker's to say."""
    p.create("k", variables=b"[" * 100_000)
    assert p.activations[0][2].job.variables == b"[" * 100_000


# --- Bugs ---


def broken(bad: str) -> Callable[..., Any]:
    """Fails on commands of the key ``bad`` and goes on with every other."""
    real = core_commands.decide

    def decide(turn: Any, command: Command) -> list[Event]:
        events = real(turn, command)
        if getattr(command, "key", "") == bad:
            raise ZeroDivisionError("planted")
        return events

    return decide


def test_a_command_that_cannot_be_decided_does_not_block_the_partition(p: Partition) -> None:
    """One poisoned record, and the loop would fail on it, restart, and fail on it again, for ever."""
    p.create("k")
    before = state_hash(p.state)
    with patch.object(core_commands, "decide", broken("k")):
        (event,) = p.complete("k")
        assert isinstance(event, ev.CommandRejected)
        assert (event.command, event.reason, event.source) == ("CompleteJob", "INTERNAL", 1)
        assert isinstance(p.complete("other")[0], ev.CommandRejected)
    assert [type(error) for error in p.bugs] == [ZeroDivisionError]
    assert state_hash(p.state) != before, "the position has moved past it"
    assert p.replayed().state_hash() == p.owner.state_hash()
    assert isinstance(p.complete("k")[0], ev.JobCompleted), "and the job is as it was"


class FailingCodec:
    """Can't write one kind of record."""

    def __init__(self, real: Codec, kind: type[Record], error: Exception) -> None:
        self.decode = real.decode
        self.encode_carrying = real.encode_carrying
        self._real, self._kind, self._error = real, kind, error

    def encode(self, record: Record) -> bytes:
        if isinstance(record, self._kind):
            raise self._error
        return self._real.encode(record)


@pytest.mark.parametrize("error", [RecordError(RecordFault.OVERSIZED, "planted"), KeyError("planted")])
def test_an_event_that_cannot_be_written_is_not_applied(p: Partition, error: Exception) -> None:
    p.create("k")
    p.owner._codec = FailingCodec(p.owner._codec, ev.JobCompleted, error)  # type: ignore[assignment]
    assert refusals(p.complete("k")) == [("INTERNAL", "a bug of the engine")]
    assert p.bugs == [error]
    assert "k" in p.state.jobs
    assert p.replayed().state_hash() == p.owner.state_hash()


def test_a_refusal_that_cannot_be_written_is_replaced_by_a_plain_one(p: Partition) -> None:
    with patch.object(Turn, "refuse", side_effect=ZeroDivisionError("planted")):
        (event,) = p.complete("nobody")
    assert isinstance(event, ev.CommandRejected)
    assert event.reason == "INTERNAL"


def test_a_decoder_that_fails_in_an_unforeseen_way_is_a_bug_not_an_end(p: Partition) -> None:
    class Surprising(FailingCodec):
        def __init__(self, real: Codec) -> None:
            super().__init__(real, Barrier, KeyError())
            self.decode = self.fail

        def fail(self, value: bytes | None) -> Record:
            raise RuntimeError("planted")

    p.owner._codec = Surprising(p.owner._codec)  # type: ignore[assignment]
    assert refusals(p.send(b"x")) == [("INTERNAL", "a bug of the engine")]


def test_a_bug_while_applying_ends_the_term(p: Partition) -> None:
    """The state may be half changed: committing anything more would make it everybody's."""

    def apply(_state: State, _event: Event) -> None:
        raise InvariantBroken("planted")

    with patch.object(core_machine, "apply", apply), pytest.raises(InvariantBroken, match="planted"):
        p.create("k")


def test_a_bug_is_written_to_the_log_by_default(caplog: pytest.LogCaptureFixture) -> None:
    adapter.log_bug(3, 42, ZeroDivisionError("planted"))
    (entry,) = caplog.records
    assert "42" in entry.getMessage()
    assert entry.exc_info is not None


def test_commands_that_were_decided_before_are_never_decided_again(p: Partition) -> None:
    """An owner that goes back in the commands topic has lost its place: all would be done twice."""
    p.create("a")
    p.create("b")
    with pytest.raises(InvariantBroken, match="source"):
        p.owner.step([Incoming(0, None, encode(cmd.CancelJob("a", "")))], p.now)


def test_a_machine_leads_once_and_then_replays_no_more(p: Partition) -> None:
    with pytest.raises(InvariantBroken):
        p.owner.lead(Term("n", "i"), START)
    with pytest.raises(LogDamaged):
        p.owner.replay(incoming(p.log))


# --- Damaged logs ---


def history() -> Partition:
    p = Partition(rules())
    p.create("a")
    p.fail("a", retriable=False)
    p.failover()
    p.create("b")
    p.complete("b")
    return p


def test_barriers_are_skipped() -> None:
    p = history()
    log: list[Write] = []
    for write in p.log:
        log += [write, Write("relevo.log", 0, b"", encode(Barrier("n", "i", "x")))]
    machine = p.fresh()
    machine.replay(incoming(log))
    assert machine.state_hash() == p.owner.state_hash()


def test_replay_in_pieces_is_replay() -> None:
    p = history()
    machine = p.fresh()
    for offset, write in enumerate(p.log):
        machine.replay(incoming([write], offset))
    machine.replay([])
    assert machine.state_hash() == p.owner.state_hash()


def swap(log: list[Write], at: int) -> list[Write]:
    return [*log[:at], log[at + 1], log[at], *log[at + 2 :]]


@pytest.mark.parametrize(
    ("damage", "offset", "message"),
    [
        (lambda log: log[1:], 0, "expected seq 1, found seq 2"),
        (lambda log: log[:2] + log[3:], 2, "expected seq 3, found seq 4"),
        (lambda log: log[:3] + log[2:], 3, "expected seq 4, found seq 3"),
        (lambda log: swap(log, 2), 2, "expected seq 3, found seq 4"),
        (lambda log: [*log[:4], log[4]._replace(value=b"junk"), *log[5:]], 4, "found NOT_A_RECORD"),
        (lambda log: [*log[:4], log[4]._replace(value=log[4].value[:-1]), *log[5:]], 4, "found DAMAGED"),
        (
            lambda log: [log[0], log[1]._replace(value=encode(cmd.CancelJob("a", "")))],
            1,
            "an event or a barrier, found CancelJob",
        ),
    ],
)
def test_a_log_that_does_not_follow_is_refused_with_place_and_reason(
    damage: Callable[[list[Write]], list[Write]], offset: int, message: str
) -> None:
    """Nobody may lead on a log with a hole: what is missing may be a job."""
    p = history()
    with pytest.raises(LogDamaged) as caught:
        p.fresh().replay(incoming(damage(p.log)))
    assert str(caught.value).startswith(f"relevo.log partition 0 offset {offset}: expected ")
    assert message in str(caught.value)


def test_an_event_of_a_leader_that_was_fenced_is_damage() -> None:
    p = history()
    last = p.events[-1]
    late = ev.JobCreated(last.seq + 1, 1, last.at, 9, spec("late"))
    with pytest.raises(LogDamaged, match="expected epoch 2, found epoch 1"):
        p.fresh().replay(incoming([*p.log, Write("relevo.log", 0, b"late", encode(late))]))


def test_an_event_that_contradicts_the_state_is_damage() -> None:
    p = history()
    last = p.events[-1]
    wrong = ev.JobCompleted(last.seq + 1, 2, last.at, 9, "b", 1, b"")
    with pytest.raises(LogDamaged, match="JobCompleted for 'b', which is not an open job"):
        p.fresh().replay(incoming([*p.log, Write("relevo.log", 0, b"b", encode(wrong))]))


def test_time_that_goes_back_on_the_log_is_damage() -> None:
    p = history()
    last = p.events[-1]
    early = ev.JobCreated(last.seq + 1, 2, last.at - 1, 9, spec("early"))
    with pytest.raises(LogDamaged, match="a time of at least"):
        p.fresh().replay(incoming([*p.log, Write("relevo.log", 0, b"", encode(early))]))


def test_a_leaders_clock_that_jumps_back_does_not_show_on_the_log(p: Partition) -> None:
    p.create("a")
    p.now -= 5_000
    p.create("b")
    assert [event.at for event in p.events] == [START] * len(p.events)
    assert decode(p.log[-1].value) == p.events[-1]
