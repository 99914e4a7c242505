"""Damage to a log that the real core wrote: each kind is found, at the record where it begins."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo_engine.verify import Invariant, LogRecord, VerifyReport
from relevo_schemas import events as ev
from relevo_schemas.codec import HEADER_LENGTH, decode, encode
from relevo_schemas.commands import CancelJob
from relevo_schemas.records import Event
from tests.unit.engine.verify_logs import PARTITIONS, REMEMBERED, events_of, made, renumbered, verify

seeds = st.integers(0, 2**32 - 1)


def check(*logs: list[LogRecord]) -> VerifyReport:
    return verify(*logs, partitions=PARTITIONS, remembered=REMEMBERED)


def first(report: VerifyReport) -> tuple[Invariant, int]:
    """The first violation of partition 0: which, and where."""
    violation = report.partitions[0].first_violation
    assert violation is not None, "the damage was not found"
    assert not report.ok
    assert violation in report.violations
    return violation.invariant, violation.offset


def event_in(record: LogRecord) -> Event:
    found = decode(record.value)
    assert isinstance(found, Event)
    return found


def log_of(seed: int, steps: int = 60) -> list[LogRecord]:
    return made(Random(seed), steps)


def with_terms(terms: int) -> list[LogRecord]:
    """A log with so many elections or more."""
    for seed in range(100):
        log = log_of(seed)
        if sum(isinstance(decode(each.value), ev.LeaderElected) for each in log) >= terms:
            return log
    raise AssertionError("no history with enough failovers")


def elections(log: list[LogRecord]) -> list[int]:
    return [i for i in events_of(log) if isinstance(event_in(log[i]), ev.LeaderElected)]


@given(seeds, st.integers(1, 120))
def test_whatever_the_engine_writes_is_sound(seed: int, steps: int) -> None:
    """A false alarm would be believed as much as a true one."""
    report = check(made(Random(seed), steps), made(Random(seed + 1), steps, 1))
    assert report.ok, report.violations


@given(seeds, st.data())
def test_any_missing_event_is_found(seed: int, data: st.DataObject) -> None:
    """A job whose creation is gone is a job lost; the last event alone leaves no hole behind."""
    log = log_of(seed)
    gone = data.draw(st.sampled_from(events_of(log)[:-1]))
    damaged = renumbered(log[:gone] + log[gone + 1 :])
    after = next(i for i in events_of(damaged) if i >= gone)
    assert first(check(damaged)) == (Invariant.SEQ, damaged[after].offset)


@given(seeds, st.data())
def test_any_two_swapped_events_are_found(seed: int, data: st.DataObject) -> None:
    log = log_of(seed)
    a, b = sorted(data.draw(st.lists(st.sampled_from(events_of(log)), min_size=2, max_size=2, unique=True)))
    damaged = list(log)
    damaged[a], damaged[b] = log[b], log[a]
    damaged = renumbered(damaged)
    assert first(check(damaged)) == (Invariant.SEQ, damaged[a].offset)


@given(seeds, st.data())
def test_any_doubled_event_is_found(seed: int, data: st.DataObject) -> None:
    log = log_of(seed)
    which = data.draw(st.sampled_from(events_of(log)))
    where = data.draw(st.integers(which + 1, len(log)))
    damaged = renumbered([*log[:where], log[which], *log[where:]])
    assert first(check(damaged)) == (Invariant.SEQ, damaged[where].offset)


@given(seeds, st.data())
def test_any_flipped_bit_in_the_head_of_an_event_is_found(seed: int, data: st.DataObject) -> None:
    """Marker, fingerprint, number: what is wrong there makes another record of it, or none."""
    log = log_of(seed)
    which = data.draw(st.sampled_from(events_of(log)))
    value = bytearray(log[which].value or b"")
    value[data.draw(st.integers(0, HEADER_LENGTH))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = [*log[:which], log[which]._replace(value=bytes(value)), *log[which + 1 :]]
    assert first(check(damaged))[1] == log[which].offset


def test_one_flipped_bit_in_a_key_is_found() -> None:
    log = log_of(1)
    which = next(i for i in events_of(log) if isinstance(event_in(log[i]), ev.JobActivated))
    key = log[which].key
    assert key
    value = bytearray(log[which].value or b"")
    value[value.index(key) + len(key) - 1] ^= 1
    damaged = [*log[:which], log[which]._replace(value=bytes(value)), *log[which + 1 :]]
    assert first(check(damaged)) == (Invariant.KEY, log[which].offset)


@pytest.mark.parametrize("length", [0, 1, HEADER_LENGTH, HEADER_LENGTH + 3])
def test_a_truncated_record_is_found(length: int) -> None:
    log = log_of(2)
    middle = events_of(log)[len(log) // 2]
    value = (log[middle].value or b"")[:length]
    damaged = [*log[:middle], log[middle]._replace(value=value), *log[middle + 1 :]]
    assert first(check(damaged)) == (Invariant.RECORD, log[middle].offset)


def test_a_log_truncated_in_the_middle_is_found() -> None:
    """A broker lost its last records and another leader wrote on behind the gap."""
    log = log_of(3)
    where = events_of(log)
    damaged = renumbered(log[: where[20]] + log[where[30] :])
    assert first(check(damaged)) == (Invariant.SEQ, damaged[where[20]].offset)


@pytest.mark.parametrize(
    "value", [None, b"", b"garbage", b"\xc3\x01" + b"12345678", encode(CancelJob("k0", "")), b'{"json": 1}']
)
def test_a_foreign_record_is_found(value: bytes | None) -> None:
    """No record, an unknown schema, a command that strayed onto the log."""
    log = log_of(4)
    damaged = renumbered([*log[:7], LogRecord(0, 0, b"", value), *log[7:]])
    report = check(damaged)
    assert first(report) == (Invariant.RECORD, damaged[7].offset)
    assert report.violation_count == 1, "the records after it are sound"


def test_a_record_of_another_partition_is_found() -> None:
    """A tool that copied records without regard to where they belong."""
    log, other = log_of(5), made(Random(6), 60, 1)
    stray = next(each for each in other if isinstance(decode(each.value), ev.JobCreated))
    damaged = renumbered([*log[:9], stray._replace(partition=0), *log[9:]])
    assert first(check(damaged, other)) == (Invariant.PLACE, damaged[9].offset)
    assert first(check(other, damaged)) == (Invariant.PLACE, damaged[9].offset)


def test_an_event_dropped_at_an_epoch_change_is_found() -> None:
    """The last event of the old term, and the announcement of the new one."""
    log = with_terms(2)
    announced = elections(log)[1]
    for gone in (max(i for i in events_of(log) if i < announced), announced):
        damaged = renumbered(log[:gone] + log[gone + 1 :])
        after = next(i for i in events_of(damaged) if i >= gone)
        assert first(check(damaged)) == (Invariant.SEQ, damaged[after].offset)


def test_two_writers_in_one_epoch_are_found() -> None:
    """Both believe to lead, both count on from the same event."""
    log = log_of(7, steps=30)
    fork = events_of(log)[10]
    mine, others = log[fork : fork + 8], made(Random(8), 60)
    theirs = [each for each in others if is_later(each, event_in(log[fork]))][:8]
    mixed = [each for pair in zip(mine, theirs, strict=True) for each in pair]
    damaged = renumbered(log[:fork] + mixed)
    assert first(check(damaged)) == (Invariant.SEQ, damaged[fork + 1].offset)


def is_later(record: LogRecord, than: Event) -> bool:
    """Whether it is an event of a first term with at least this number."""
    found = decode(record.value)
    return isinstance(found, Event) and found.seq >= than.seq


def rewritten(record: LogRecord, **changes: object) -> LogRecord:
    """The record with other values in its event."""
    event = event_in(record)
    for name, value in changes.items():
        setattr(event, name, value)
    return record._replace(value=encode(event))


def test_a_reused_epoch_is_found() -> None:
    """Two terms with one number: nobody can tell whose events are whose."""
    log = with_terms(3)
    again = elections(log)[2]
    used = event_in(log[elections(log)[1]]).epoch
    damaged = [*log[:again], rewritten(log[again], epoch=used), *log[again + 1 :]]
    assert first(check(damaged)) == (Invariant.EPOCH, log[again].offset)


def test_a_deposed_leaders_event_is_found() -> None:
    """Numbers fit, the epoch is the old one: the fence has failed."""
    log = with_terms(2)
    after = next(i for i in events_of(log) if i > elections(log)[1])
    damaged = [*log[:after], rewritten(log[after], epoch=1), *log[after + 1 :]]
    assert first(check(damaged)) == (Invariant.EPOCH, log[after].offset)
