"""The state's hash, and the views of it."""

from __future__ import annotations

import pickle

import pytest

from relevo_engine.core.appliers import apply
from relevo_engine.core.errors import InvariantBroken, OutOfOrder
from relevo_engine.core.job import JobState
from relevo_engine.core.rules import Rules
from relevo_engine.core.snapshot import state_hash
from relevo_engine.core.state import State
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.records import Event
from tests.unit.core.harness import START, Partition, rules, spec


def busy() -> Partition:
    """A partition with something of everything."""
    p = Partition(rules(window=3, finished_count_max=2))
    for n in range(9):
        p.create(f"k{n}", priority=n % 3, expires_at=START + 10**6 + n, run_at=START + 100 if n == 8 else 0)
    p.start("k0")
    for key in ("k1", "k2"):
        p.send(cmd.CheckpointJob(key, 0, 1, b'{"page":7}'))
    p.fail("k1")
    p.fail("k2", retriable=False)
    for key in ("k0", "k5"):
        p.complete(key)
    p.send(cmd.CancelJob("k7", "no"))
    return p


def test_live_replayed_and_restored_states_have_one_hash() -> None:
    p = busy()
    restored: State = pickle.loads(pickle.dumps(p.state))
    assert state_hash(p.state) == p.replayed().state_hash() == state_hash(restored)


def test_every_event_changes_the_hash() -> None:
    p = busy()
    state = State(p.rules)
    seen = {state_hash(state)}
    for event in p.events:
        apply(state, event)
        seen.add(state_hash(state))
    assert len(seen) == len(p.events) + 1


@pytest.mark.parametrize(
    "field",
    [
        "priority",
        "retries",
        "failures",
        "attempt",
        "lease_expiries",
        "created_at",
        "since",
        "due_at",
        "slot",
        "worker",
        "cause",
        "error",
        "body",
        "state",
    ],
)
def test_the_hash_covers_every_field_of_a_job(field: str) -> None:
    p = busy()
    before = state_hash(p.state)
    job = p.job("k4")
    value = getattr(job, field)
    changed = {int: lambda: value + 1, str: lambda: value + "x", bytes: lambda: value + b"x"}
    setattr(job, field, JobState.INCIDENT if field == "state" else changed[type(value)]())
    assert state_hash(p.state) != before


def test_the_hash_covers_position_term_and_what_is_finished() -> None:
    p = busy()
    hashes = {state_hash(p.state)}
    for name in ("last_seq", "last_at", "last_source", "epoch", "position"):
        setattr(p.state, name, getattr(p.state, name) + 1)
        hashes.add(state_hash(p.state))
    p.state.finished_order.reverse()
    hashes.add(state_hash(p.state))
    p.state.lanes["email"].counts[JobState.COMPLETED] += 1
    hashes.add(state_hash(p.state))
    assert len(hashes) == 8


def head(seq: int = 2, epoch: int = 1, at: int = START, source: int = 0) -> tuple[int, int, int, int]:
    return seq, epoch, at, source


ELECTED = ev.LeaderElected(1, 1, START, -1, "n", "i")
CREATED = ev.JobCreated(*head(), spec("k"))


@pytest.mark.parametrize(
    ("before", "event", "expected"),
    [
        ([], CREATED, "seq 1"),
        ([], ev.JobDue(1, 1, START, -1, "k"), "LeaderElected as the first event"),
        ([], ev.JobDue(1, 0, START, -1, "k"), "LeaderElected as the first event"),
        ([], ev.LeaderElected(1, 0, START, -1, "n", "i"), "epoch above 0"),
        ([ELECTED], ev.JobCreated(*head(seq=3), spec()), "seq 2"),
        ([ELECTED], ev.JobCreated(*head(seq=1), spec()), "seq 2"),
        ([ELECTED], ev.JobCreated(*head(epoch=2), spec()), "epoch 1"),
        ([ELECTED], ev.JobCreated(*head(at=START - 1), spec()), "a time of at least"),
        ([ELECTED], ev.JobCreated(*head(source=-2), spec()), "a source of at least 0"),
        ([ELECTED], ev.LeaderElected(2, 1, START, -1, "n", "i"), "epoch above 1"),
        ([ELECTED, CREATED], ev.JobCreated(*head(seq=3), spec("k")), ""),
        (
            [ELECTED, ev.JobCreated(*head(source=5), spec())],
            ev.JobDue(*head(seq=3, source=4), "k"),
            "a source of at least 6",
        ),
        (
            [
                ELECTED,
                ev.JobCreated(*head(source=5), spec()),
                ev.JobActivated(*head(seq=3, source=-1), "k", 1, 0),
            ],
            ev.JobStarted(*head(seq=4, source=5), "k", 1, "w", 30_000),
            "a source of at least 6",
        ),
    ],
)
def test_what_does_not_follow_is_not_applied(before: list[Event], event: Event, expected: str) -> None:
    """A hole, a repeat or an event of a leader that was fenced must stop replay, not bend the state."""
    state = State(rules())
    for each in before:
        apply(state, each)
    kind = OutOfOrder if expected else InvariantBroken
    with pytest.raises(kind, match=expected or "there already"):
        apply(state, event)


@pytest.mark.parametrize(
    "event",
    [
        ev.JobDue(*head(seq=3, source=1), "k"),
        ev.JobActivated(*head(seq=3, source=1), "k", 2, 0),
        ev.JobStarted(*head(seq=3, source=1), "k", 1, "w", 30_000),
        ev.JobFailed(*head(seq=3, source=1), "k", 1, "", 0, -1),
        ev.JobTimedOut(*head(seq=3, source=1), "k", 1, "LEASE", 1),
        ev.JobRetried(*head(seq=3, source=1), "k", 1),
        ev.JobErrored(*head(seq=3, source=1), "k", 1, "", ""),
        ev.JobCompleted(*head(seq=3, source=1), "nobody", 1, b""),
        ev.JobUpdated(*head(seq=3, source=1), "nobody", 1, 1),
        ev.JobCancelled(*head(seq=3, source=1), "nobody", ""),
        ev.JobExpired(*head(seq=3, source=1), "nobody"),
        ev.JobIncident(*head(seq=3, source=1), "nobody", 1, "", ""),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_cannot_happen_to_a_ready_job_is_damage(event: Event) -> None:
    state = State(rules())
    apply(state, ELECTED)
    apply(state, CREATED)
    with pytest.raises(InvariantBroken):
        apply(state, event)


def test_an_attempt_other_than_the_one_under_way_is_damage() -> None:
    state = State(rules())
    for event in (ELECTED, CREATED, ev.JobActivated(*head(seq=3, source=-1), "k", 1, 0)):
        apply(state, event)
    with pytest.raises(InvariantBroken, match="attempt 2 during 1"):
        apply(state, ev.JobStarted(*head(seq=4, source=1), "k", 2, "w", 30_000))


def test_views_tell_what_is_known() -> None:
    p = busy()
    view = p.owner.view("k2")
    assert view is not None
    assert (view["state"], view["cause"], view["error"], view["variables"]) == (
        "INCIDENT",
        "NOT_RETRIABLE",
        "boom",
        b"{}",
    )
    assert p.owner.view("nobody") is None
    assert [job["key"] for job in p.owner.list_jobs(JobState.INCIDENT, "email", 5)] == ["k2"]
    assert len(p.owner.list_jobs(limit=3)) == 3
    assert p.owner.list_jobs(job_type="other") == []
    summary = p.owner.summary()
    assert summary["counts"] == p.machine.counts()
    assert summary["open"] == len(p.state.jobs)
    assert summary["position"] == p.offset
    assert summary["next_lease_until"] is None
    started = Partition(rules())
    started.create("k", lease_ms=5_000)
    started.start("k")
    view = started.owner.view("k")
    assert view is not None
    assert (view["lease_until"], view["worker"]) == (START + 5_000, "w1")
    assert started.owner.summary()["next_lease_until"] == START + 5_000


def test_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="partition must be from 0 to 3"):
        Rules(partition=4, partitions=4)
    with pytest.raises(ValueError, match="window must be at least 1"):
        rules(window=0)
    with pytest.raises(ValueError, match="aging_ms"):
        rules(aging_ms=0)
    assert set(rules().shared()) == {"partitions", "finished_window_ms", "finished_count_max", "aging_ms"}
