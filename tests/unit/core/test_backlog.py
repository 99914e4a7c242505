"""Much falls due at once: the partition works it off in batches and goes on meanwhile."""

from __future__ import annotations

from relevo_engine.core.channels import FixedChannels
from relevo_engine.core.machine import JobMachine
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.job import JobSpec
from tests.unit.core.harness import START, Partition, only, rules, spec

MANY = 100_000


def test_a_hundred_thousand_due_timers_do_not_hold_up_commands() -> None:
    """After an outage everything scheduled is due in the same moment."""
    machine = JobMachine(rules(window=10), FixedChannels({"email": 1}))
    machine.elected("n", "i", START)
    for n in range(MANY):
        machine.decide(cmd.CreateJob(spec(f"k{n}", run_at=START + 1 + n % 7)), n, START)
    now = START + 10_000
    assert machine.wait_ms(now) == 0
    events = machine.tick(now, 500)
    assert len(events) == 500
    assert all(isinstance(event, ev.JobDue) for event in events)
    (created,) = machine.decide(cmd.CreateJob(spec("urgent", priority=100)), MANY, now)
    assert isinstance(created, ev.JobCreated)
    assert machine.dispatch(now, 500)[0].event.key == "urgent"
    rounds = 1
    while machine.tick(now, 500):
        rounds += 1
    assert rounds == MANY // 500
    assert machine.state.timers.footprint == 0


def test_a_hundred_thousand_leases_due_at_a_takeover_do_not_hold_up_commands() -> None:
    """Workers and leader died together: the new leader has every lease to expire, and jobs to take."""
    machine = JobMachine(rules(window=MANY), FixedChannels({"email": 1, "sms": 1}))
    body, seq = spec("any", lease_ms=1_000), 1
    machine.replay(ev.LeaderElected(1, 1, START, -1, "n1", "i1"))
    for n in range(MANY):
        key = f"k{n}"
        machine.replay(ev.JobCreated(seq + 1, 1, START, n, renamed(body, key)))
        machine.replay(ev.JobActivated(seq + 2, 1, START, -1, key, 1, 0))
        machine.replay(ev.JobStarted(seq + 3, 1, START, -1, key, 1, "w1", 1_000))
        seq += 3
    machine.elected("n2", "i2", START + 500)
    assert machine.tick(START + 1_499, 500) == [], "each has its full lease once more"
    now, steps = START + 1_500, 0
    while machine.state.started:
        (created,) = machine.decide(cmd.CreateJob(spec(f"new{steps}", type="sms")), MANY + steps, now)
        assert isinstance(created, ev.JobCreated)
        expired = machine.tick(now, machine.rules.step_timers)
        assert 0 < len(expired) <= machine.rules.step_timers
        assert all(isinstance(event, ev.JobTimedOut) for event in expired)
        handed = [handover.event.key for handover in machine.dispatch(now, machine.rules.step_activations)]
        assert f"new{steps}" in handed, "new work isn't queued behind what expires"
        assert machine.wait_ms(now) == 0 or not machine.state.started
        steps += 1
    assert steps == MANY // machine.rules.step_timers
    assert len(machine.state.unclaimed) == MANY + steps


def renamed(job: JobSpec, key: str) -> JobSpec:
    """``job`` under another key, without the cost of encoding it."""
    return JobSpec(
        key, job.type, job.priority, job.retries, job.backoff_ms, job.backoff_max_ms, job.lease_ms,
        job.run_at, job.expires_at, job.correlation_id, job.headers, job.body, 0,
    )  # fmt: skip


def test_a_backlog_of_one_kind_of_timer_does_not_hold_up_another() -> None:
    p = Partition(rules(step_timers=5, window=1))
    p.create("leased", lease_ms=1_000)
    p.start("leased")
    for n in range(50):
        p.create(f"k{n}", run_at=START + 1_001 + n)
    events = p.step(20_000)
    assert only(events, ev.JobTimedOut), "the oldest comes first"
    assert len(only(events, ev.JobDue)) == 4


def test_the_owner_is_told_to_come_back_at_once() -> None:
    p = Partition(rules(step_timers=5))
    for n in range(12):
        p.create(f"k{n}", run_at=START + 1)
    p.now += 1
    for left in (True, True, False):
        p.step()
        assert (p.owner.wait_ms(p.now) == 0) is left


def test_a_partition_with_nothing_to_do_asks_for_nothing() -> None:
    p = Partition(rules())
    assert p.owner.wait_ms(p.now) is None
    p.create("k")
    p.complete("k")
    assert p.owner.wait_ms(p.now) is None


def test_what_comes_and_goes_leaves_nothing_behind() -> None:
    """Entries of jobs long gone would fill the memory of a leader that runs for months."""
    p = Partition(rules(finished_count_max=10))
    p.create("stays", run_at=START + 10**9, expires_at=START + 10**10)
    for n in range(2_000):
        p.create(f"k{n}", expires_at=START + 10**9 + n, lease_ms=86_400_000, priority=n % 5)
        p.start(f"k{n}")
        p.complete(f"k{n}")
    state = p.state
    assert state.timers.footprint <= 2 * 2 + 33
    assert p.machine._leases.footprint <= 33
    assert state.lanes["email"].queue.footprint <= 33
    assert not state.unclaimed
    assert len(state.finished) == 10
