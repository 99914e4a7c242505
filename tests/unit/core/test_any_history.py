"""Any sequence of commands, times and failovers: what must hold whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relevo_engine.core import machine as core_machine
from relevo_engine.core.appliers import apply
from relevo_engine.core.rules import Rules
from relevo_engine.core.snapshot import state_hash
from relevo_engine.core.state import State
from relevo_partitions.statemachine import Incoming
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.records import Command, Event
from tests.unit.core.harness import (
    Channels,
    Partition,
    check_consistent,
    keys_of,
    only,
    rules,
    snapshot,
    spec,
)
from tests.unit.core.stories import check_stories, created_before, silent_before, stored_before

PARTITIONS = 2
KEYS = keys_of(0, PARTITIONS, 9)
FOREIGN = keys_of(1, PARTITIONS, 1)
TYPES = ("plain", "plain", "plain", "plain", "wide", "wide", "wide", "later", "blocked", "unknown")

picks = st.integers(0, 19)
"""Mostly one of the open jobs, see `AnyHistory.key`: a history of jobs that aren't there teaches little."""
attempts = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1, -100])  # relative to the current one
whose = st.sampled_from(["own", "own", "own", "own", "unknown", "earlier"])
"""Which of the jobs that had the key a worker speaks of."""
pauses = st.sampled_from([0, 1, 90, 700, 4_000, 12_000])


class AnyHistory(RuleBasedStateMachine):
    """A partition with tight limits, so that a short history meets them all."""

    def __init__(self) -> None:
        super().__init__()
        self.boundaries: list[tuple[str, int]] = []
        self.patch = patch.object(core_machine, "apply", self.apply_and_note)
        self.patch.start()
        self.p = self.make(
            rules(
                partitions=PARTITIONS,
                window=3,
                lease_expiries_max=2,
                redispatch_after_ms=9_000,
                aging_ms=500,
                finished_window_ms=15_000,
                finished_count_max=4,
                lease_ms_min=100,
                step_timers=3,
                step_activations=4,
                batch_jobs_max=3,
                checkpoint_bytes_max=64,
                priority_max=5,
                priority_min=-5,
            ),
            Channels({"plain": PARTITIONS, "wide": 2 * PARTITIONS}, makeable=["later"]),
        )
        self.channels().block("blocked")

    def make(self, rules: Rules, channels: Channels) -> Partition:
        return Partition(rules, channels)

    def teardown(self) -> None:
        try:
            self.replay_at_every_boundary()
        finally:
            self.patch.stop()

    def channels(self) -> Channels:
        assert isinstance(self.p.channels, Channels)
        return self.p.channels

    def apply_and_note(self, state: State, event: Event) -> None:
        apply(state, event)
        if state is self.p_state():
            del self.boundaries[event.seq - 1 :]
            self.boundaries.append((state_hash(state), state.position))

    def p_state(self) -> State | None:
        """The state of the leader; none while the partition is being set up or replayed."""
        partition = getattr(self, "p", None)
        return partition.state if partition is not None else None

    @initialize(retries=st.integers(0, 1))
    def begin(self, retries: int) -> None:
        # The announcement was applied before there was anything to note it with.
        self.boundaries = [(self.p.machine.state_hash(), self.p.state.position)]
        for key in KEYS[:5]:
            self.send(cmd.CreateJob(spec(key, type="plain", retries=retries, lease_ms=3_000, backoff_ms=200)))

    def key(self, pick: int) -> str:
        jobs = list(self.p.state.jobs)
        if pick > 4 and jobs:
            return jobs[pick % len(jobs)]
        return (KEYS + FOREIGN)[pick % 10]

    def attempt(self, key: str, relative: int) -> int:
        job = self.p.state.jobs.get(key)
        return max((job.attempt if job is not None else 1) + relative, -1)

    def seq(self, key: str, whose: str) -> int:
        """Number of the event that created the key's job, or the one before that where there was one."""
        created = self.p.created(key)
        if whose == "unknown":
            return 0
        earlier = [each.seq for each in only(self.p.events, ev.JobCreated) if each.job.key == key]
        return earlier[-2] if whose == "earlier" and created and len(earlier) > 1 else created

    def ref(self, pick: int, relative: int, whose: str, lease_ms: int = 0) -> cmd.LeaseRef:
        key = self.key(pick)
        return cmd.LeaseRef(key, self.seq(key, whose), self.attempt(key, relative), lease_ms)

    def spoken_of_in_vain(self, command: Command | bytes | None) -> set[str]:
        """Keys whose present job isn't the one that the command is about."""
        about: dict[str, bool] = {}
        for each in getattr(command, "jobs", [command]):
            told = getattr(each, "created_seq", 0)
            if told:
                other = self.p.created(each.key) not in (0, told)
                about[each.key] = other and about.get(each.key, True)
            elif hasattr(each, "key"):
                about[each.key] = False
        return {key for key, other in about.items() if other}

    def send(self, *commands: Command | bytes | None) -> None:
        """Each command in a step of its own: what it changes by being refused is nothing."""
        for command in commands:
            before = snapshot(self.p.state)
            offset = self.p.offset
            in_vain = self.spoken_of_in_vain(command)
            leases = {key: self.p.machine._leases.until(key) for key in in_vain}
            events = self.p.send(command)
            mine = [event for event in events if event.source == offset]
            for event in mine:
                if getattr(event, "key", "") in in_vain:
                    assert isinstance(event, ev.CommandRejected), (
                        "an earlier job's attempt counts for this one"
                    )
            if len(events) == len(mine):
                assert leases == {key: self.p.machine._leases.until(key) for key in in_vain}
            others = {event.key for event in events if event.source != offset}  # type: ignore[attr-defined]
            if mine and all(isinstance(event, ev.CommandRejected) for event in mine):
                after = snapshot(self.p.state)
                for key in (before.keys() | after.keys()) - others:
                    assert before.get(key) == after.get(key)
            if not isinstance(command, cmd.ExtendJobs | cmd.ReportSlots):
                assert mine, "a command left no trace"

    @rule(
        pick=st.integers(0, 9),
        job_type=st.sampled_from(TYPES),
        priority=st.integers(-5, 5),
        retries=st.integers(0, 2),
        run_in=st.sampled_from([0, 0, 0, 0, -5_000, 300, 5_000]),
        expires_in=st.sampled_from([0] * 8 + [-5, 800, 9_000]),
        lease_ms=st.sampled_from([100, 3_000]),
    )
    def create(
        self,
        pick: int,
        job_type: str,
        priority: int,
        retries: int,
        run_in: int,
        expires_in: int,
        lease_ms: int,
    ) -> None:
        self.send(
            cmd.CreateJob(
                spec(
                    (KEYS + FOREIGN)[pick],
                    type=job_type,
                    priority=priority,
                    retries=retries,
                    lease_ms=lease_ms,
                    backoff_ms=200,
                    run_at=self.p.now + run_in if run_in else 0,
                    expires_at=self.p.now + expires_in if expires_in else 0,
                )
            )
        )

    @rule(
        which=st.lists(st.tuples(picks, attempts, whose), min_size=1, max_size=3),
        worker=st.sampled_from(["w1", "w2"]),
    )
    def start(self, which: Sequence[tuple[int, int, str]], worker: str) -> None:
        self.send(cmd.StartJobs(worker, tuple(self.ref(*each) for each in which)))

    @rule(
        which=st.lists(st.tuples(picks, attempts, whose), min_size=1, max_size=3),
        lease_ms=st.sampled_from([1, 150, 6_000]),
    )
    def extend(self, which: Sequence[tuple[int, int, str]], lease_ms: int) -> None:
        self.send(cmd.ExtendJobs("w1", tuple(self.ref(*each, lease_ms) for each in which)))

    @rule(pick=picks, relative=attempts, whose=whose)
    def complete(self, pick: int, relative: int, whose: str) -> None:
        key = self.key(pick)
        self.send(cmd.CompleteJob(key, self.seq(key, whose), self.attempt(key, relative), b"{}"))

    @rule(
        pick=picks,
        relative=attempts,
        whose=whose,
        pause=st.sampled_from([-1, -1, 0, 500, -7]),
        retriable=st.booleans(),
    )
    def fail(self, pick: int, relative: int, whose: str, pause: int, retriable: bool) -> None:
        key = self.key(pick)
        told = (key, self.seq(key, whose), self.attempt(key, relative))
        self.send(cmd.FailJob(*told, "boom", pause, retriable))

    @rule(pick=picks, relative=attempts, whose=whose, detail=st.sampled_from([b"1", b"2", b"", b"x" * 70]))
    def checkpoint(self, pick: int, relative: int, whose: str, detail: bytes) -> None:
        key = self.key(pick)
        self.send(cmd.CheckpointJob(key, self.seq(key, whose), self.attempt(key, relative), detail))

    @rule(
        worker=st.sampled_from(["w1", "w2", "w3"]),
        job_type=st.sampled_from([*TYPES, "plain"]),
        slots=st.lists(st.integers(-1, 2 * PARTITIONS), max_size=3),
    )
    def report_slots(self, worker: str, job_type: str, slots: Sequence[int]) -> None:
        self.send(cmd.ReportSlots(worker, job_type, tuple(slots)))

    @rule(pick=picks, relative=attempts, whose=whose)
    def throw(self, pick: int, relative: int, whose: str) -> None:
        key = self.key(pick)
        told = (key, self.seq(key, whose), self.attempt(key, relative))
        self.send(cmd.ThrowError(*told, "NO_SUCH_USER", "there is none"))

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        key = self.key(pick)
        self.send(cmd.CancelJob(key, "enough"))

    @rule(pick=picks, retries=st.sampled_from([0, 1, -1]))
    def retry(self, pick: int, retries: int) -> None:
        key = self.key(pick)
        self.send(cmd.RetryJob(key, retries))

    @rule(pick=picks, priority=st.none() | st.integers(-6, 6), retries=st.none() | st.integers(-1, 2))
    def update(self, pick: int, priority: int | None, retries: int | None) -> None:
        key = self.key(pick)
        self.send(cmd.UpdateJob(key, priority, retries))

    @rule(value=st.none() | st.binary(max_size=40))
    def garbage(self, value: bytes | None) -> None:
        self.send(value)

    @rule(ms=pauses)
    def wait(self, ms: int) -> None:
        self.p.step(ms)

    @rule(pick=picks, fails=st.booleans(), lease_ms=st.sampled_from([0, 150]))
    def work(self, pick: int, fails: bool, lease_ms: int) -> None:
        """A worker that does as it should, so that histories get on."""
        key = self.key(pick)
        told = (key, self.seq(key, "own"), self.attempt(key, 0))
        self.send(cmd.StartJobs("w3", (cmd.LeaseRef(*told, 0),)))
        if lease_ms:
            self.send(cmd.ExtendJobs("w3", (cmd.LeaseRef(*told, lease_ms),)))
        elif fails:
            self.send(cmd.FailJob(*told, "boom", -1, True))
        else:
            self.send(cmd.CompleteJob(*told, b"{}"))

    @rule(pick=picks)
    def use_anew(self, pick: int) -> None:
        """A job that ended is forgotten, and its key makes another."""
        key = self.key(pick)
        self.send(cmd.CancelJob(key, "enough"))
        self.p.step(self.p.rules.finished_window_ms + 1)
        anew = cmd.CreateJob(spec(key, type="plain", lease_ms=3_000, backoff_ms=200))
        self.send(anew, anew)  # the first one may be what makes it forget

    @rule()
    def open_later(self) -> None:
        self.channels().open("later", PARTITIONS)

    @rule(skew=st.sampled_from([0, 0, -60_000, 700]))
    def failover(self, skew: int) -> None:
        """Another leader, whose clock may be off."""
        self.new_leader(skew)

    def new_leader(self, skew: int) -> None:
        self.replay_at_every_boundary()
        self.p.now += skew
        self.p.failover()

    def replay_at_every_boundary(self) -> None:
        machine = self.p.fresh()
        assert len(self.boundaries) == len(self.p.log)
        for offset, (write, expected) in enumerate(zip(self.p.log, self.boundaries, strict=True)):
            machine.replay([Incoming(offset, write.key, write.value)])
            assert (machine.state_hash(), machine.position) == expected
        check_consistent(machine._machine, leading=False)

    @invariant()
    def holds(self) -> None:
        if not self.p.log:
            return
        check_consistent(self.p.machine)
        assert not self.p.bugs
        self.nothing_waits_needlessly()

    def nothing_waits_needlessly(self) -> None:
        """The owner is told to come back while there is something to do."""
        now = max(self.p.now, self.p.state.last_at)
        wait = self.p.owner.wait_ms(now)
        for _ in range(200):
            if wait != 0:
                break
            assert self.p.step(), "asked to come at once, for nothing"
            wait = self.p.owner.wait_ms(now)
        assert wait != 0
        if self.p.state.timers.head() is not None or self.p.state.started or self.p.state.unclaimed:
            assert wait is not None

    @invariant()
    def the_log_tells_one_story_per_job(self) -> None:
        check_stories(self.p.events)
        activated = [(event.key, event.attempt, event.at) for event in only(self.p.events, ev.JobActivated)]
        written = [(each.job.key, each.attempt, each.at) for _, _, each in self.p.activations]
        assert activated == written
        assert [each.created_seq for _, _, each in self.p.activations] == created_before(self.p.events)
        assert [each.expiries for _, _, each in self.p.activations] == silent_before(self.p.events)
        assert [each.checkpoint for _, _, each in self.p.activations] == stored_before(self.p.events)


AnyHistory.TestCase.settings = settings(stateful_step_count=40)
TestAnyHistory = AnyHistory.TestCase
