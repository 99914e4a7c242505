"""What happens to jobs, as the verifier tells it and as the engine's own appliers do: two witnesses."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from relevo_engine.core.appliers import apply
from relevo_engine.core.errors import InvariantBroken
from relevo_engine.core.job import OPEN_STATES
from relevo_engine.core.rules import SharedRules
from relevo_engine.core.state import State
from relevo_engine.verify import Invariant, LogRecord
from relevo_schemas import events as ev
from relevo_schemas.codec import decode, encode
from relevo_schemas.records import Event
from tests.unit.engine.verify_logs import (
    PARTITIONS,
    REMEMBERED,
    WINDOW_MS,
    Written,
    events_of,
    made,
    renumbered,
    verify,
)

seeds = st.integers(0, 2**32 - 1)
RULES = SharedRules(
    partitions=PARTITIONS, finished_window_ms=WINDOW_MS, finished_count_max=REMEMBERED.finished_count_max
)


def folded(records: Sequence[LogRecord]) -> tuple[State, int | None]:
    """The state after the log by the engine's appliers, and the offset of the first event they refuse."""
    state = State(RULES)
    for each in records:
        event = decode(each.value)
        if isinstance(event, Event):
            try:
                apply(state, event)
            except InvariantBroken:
                return state, each.offset
    return state, None


def told_anew(records: Sequence[LogRecord]) -> list[LogRecord]:
    """The records with heads that follow each other, so that only the jobs' stories can be wrong."""
    told, at, epoch, seq = [], 0, 0, 0
    for each in renumbered(records):
        event = decode(each.value)
        if isinstance(event, Event):
            seq += 1
            epoch += isinstance(event, ev.LeaderElected) or not epoch
            at = max(at, event.at)
            event.seq, event.epoch, event.at, event.source = seq, epoch, at, -1  # type: ignore[misc]
            each = each._replace(value=encode(event))
        told.append(each)
    return told


@given(seeds, st.integers(1, 150))
def test_both_tell_how_many_jobs_are_where(seed: int, steps: int) -> None:
    """An operator compares these numbers with what the cluster shows."""
    log = made(Random(seed), steps)
    report = verify(log, partitions=PARTITIONS, remembered=REMEMBERED)
    state, refused = folded(log)
    assert refused is None
    lanes = state.lanes.values()
    counted = {each.value: sum(lane.counts[each] for lane in lanes) for each in OPEN_STATES}
    assert report.counts.open == counted
    ended = report.counts.completed, report.counts.errored, report.counts.cancelled, report.counts.expired
    assert sum(ended) + report.counts.open_total == report.counts.created
    where = report.partitions[0]
    assert (where.last_seq, where.epoch, where.last_at) == (state.last_seq, state.epoch, state.last_at)


@given(seeds, st.data())
def test_what_the_appliers_refuse_is_found(seed: int, data: st.DataObject) -> None:
    """Numbers and times fit, as if somebody had repaired them: only the jobs' stories tell."""
    log = made(Random(seed), 80)
    events = [i for i in events_of(log) if not isinstance(decode(log[i].value), ev.LeaderElected)]
    kind = data.draw(st.sampled_from(["delete", "double", "swap"]))
    a, b = (
        data.draw(st.lists(st.sampled_from(events), min_size=2, max_size=2, unique=True))
        if events[1:]
        else (0, 0)
    )
    damaged = list(log)
    if kind == "delete":
        del damaged[a]
    elif kind == "double":
        damaged.insert(max(a, b), log[a])
    else:
        damaged[a], damaged[b] = log[b], log[a]
    damaged = told_anew(damaged)
    _, refused = folded(damaged)
    first = verify(damaged, partitions=PARTITIONS, remembered=REMEMBERED).partitions[0].first_violation
    if refused is not None:
        assert first is not None
        assert first.offset <= refused  # it knows a little more than the appliers: see the next test
    elif first is not None:
        assert first.invariant is Invariant.ATTEMPT


def test_a_result_of_an_attempt_that_was_never_handed_out_is_found() -> None:
    """The appliers take a completion of any attempt; only the decision looks, and it may have a bug."""
    log = Written()
    log.add(ev.LeaderElected)
    log.add(ev.JobCreated, "a")
    where = log.add(ev.JobCompleted, "a", attempt=1)
    assert folded(log.records)[1] is None
    first = verify(log.records).partitions[0].first_violation
    assert first is not None
    assert (first.invariant, first.offset, first.key) == (Invariant.ATTEMPT, where, "a")
