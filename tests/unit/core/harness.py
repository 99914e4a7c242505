"""Drives one partition as its owner does: bytes in, bytes out, a log kept, failovers by replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from relevo_engine.core.channels import Channel, ChannelState, FixedChannels
from relevo_engine.core.job import Job, JobState
from relevo_engine.core.machine import JobMachine
from relevo_engine.core.queues import rank_of
from relevo_engine.core.rules import Rules
from relevo_engine.core.state import State
from relevo_engine.machine import PartitionMachine
from relevo_partitions.statemachine import Heard, Incoming, Term, Write
from relevo_schemas import commands as cmd
from relevo_schemas.codec import decode, encode, job_spec
from relevo_schemas.delivery import Activation
from relevo_schemas.events import CommandRejected
from relevo_schemas.job import JobSpec
from relevo_schemas.partitioning import partition_of
from relevo_schemas.records import Command, Event

START = 1_700_000_000_000
EventT = TypeVar("EventT", bound=Event)


class Channels(FixedChannels):
    """Channels that a test opens and blocks as it goes on."""

    def __init__(self, slots: dict[str, int], makeable: Sequence[str] = ()) -> None:
        super().__init__(slots)
        self.makeable = set(makeable)

    def may_create(self, job_type: str) -> bool:
        return job_type in self.makeable

    def open(self, job_type: str, slots: int) -> None:
        self._channels[job_type] = Channel(ChannelState.OPEN, slots)

    def block(self, job_type: str) -> None:
        self._channels[job_type] = Channel(ChannelState.BLOCKED, 0, "not authorised")


def rules(**changes: Any) -> Rules:
    return Rules(**{"partition": 0, "partitions": 1, **changes})


def keys_of(partition: int, partitions: int, count: int) -> list[str]:
    """The first ``count`` keys k0, k1, … that belong to ``partition``."""
    found: list[str] = []
    n = 0
    while len(found) < count:
        if partition_of(f"k{n}", partitions) == partition:
            found.append(f"k{n}")
        n += 1
    return found


class Partition:
    """One partition under test.

    Attributes:
        now: The leader's clock.
        log: All records of the log, as written.
        activations: All activations, as written, with their topic and slot.
        events: All events.
        heard: What the leader has heard; None: everything.
    """

    def __init__(self, rules: Rules, channels: FixedChannels | None = None) -> None:
        self.rules = rules
        self.channels = channels or Channels({"email": rules.partitions})
        self.now = START
        self.offset = 0
        self.log: list[Write] = []
        self.events: list[Event] = []
        self.activations: list[tuple[str, int, Activation]] = []
        self.bugs: list[Exception] = []
        self.heard: Heard | None = None
        self.terms = 0
        self.owner = self.fresh()
        self.lead()

    def fresh(self) -> PartitionMachine:
        return PartitionMachine(
            self.rules, self.channels, report_bug=lambda _p, _o, error: self.bugs.append(error)
        )

    @property
    def machine(self) -> JobMachine:
        return self.owner._machine

    @property
    def state(self) -> State:
        return self.machine.state

    def job(self, key: str) -> Job:
        return self.state.jobs[key]

    def where(self, key: str) -> JobState | None:
        return self.state.state_of(key)

    def lead(self) -> None:
        self.terms += 1
        self.take(self.owner.lead(Term(f"n{self.terms}", f"i{self.terms}"), self.now))

    def replayed(self) -> PartitionMachine:
        """A fresh machine that has read the whole log."""
        machine = self.fresh()
        machine.replay(incoming(self.log))
        return machine

    def failover(self) -> None:
        """The leader dies; another one takes over from the log."""
        self.owner = self.replayed()
        self.lead()

    def send(self, *commands: Command | bytes | None) -> list[Event]:
        """One step with ``commands``; gives all its events."""
        batch = []
        for command in commands:
            value = encode(command) if isinstance(command, Command) else command
            batch.append(Incoming(self.offset, None, value))
            self.offset += 1
        return self.take(self.owner.step(batch, self.now, self.heard))

    def step(self, after_ms: int = 0) -> list[Event]:
        """One step without commands, ``after_ms`` later."""
        self.now += after_ms
        return self.send()

    def take(self, writes: Sequence[Write]) -> list[Event]:
        events: list[Event] = []
        for write in writes:
            record = decode(write.value)
            if isinstance(record, Activation):
                self.activations.append((write.topic, write.partition, record))
            else:
                assert isinstance(record, Event)
                self.log.append(write)
                events.append(record)
        self.events += events
        return events

    def create(self, key: str = "k", **fields: Any) -> list[Event]:
        return self.send(cmd.CreateJob(spec(key, **fields)))

    def created(self, key: str) -> int:
        """Number of the event that created the job that has ``key`` now; 0 where none is open."""
        job = self.state.jobs.get(key)
        return job.created_seq if job is not None else 0

    def start(self, key: str = "k", attempt: int = 1, worker: str = "w1") -> list[Event]:
        return self.send(cmd.StartJobs(worker, (cmd.LeaseRef(key, self.created(key), attempt, 0),)))

    def extend(self, key: str = "k", attempt: int = 1, lease_ms: int = 30_000) -> list[Event]:
        return self.send(cmd.ExtendJobs("w1", (cmd.LeaseRef(key, self.created(key), attempt, lease_ms),)))

    def complete(self, key: str = "k", attempt: int = 1, result: bytes = b"") -> list[Event]:
        return self.send(cmd.CompleteJob(key, self.created(key), attempt, result))

    def fail(
        self,
        key: str = "k",
        attempt: int = 1,
        *,
        retry_in_ms: int = -1,
        retriable: bool = True,
        error: str = "boom",
    ) -> list[Event]:
        return self.send(cmd.FailJob(key, self.created(key), attempt, error, retry_in_ms, retriable))


def spec(key: str = "k", **fields: Any) -> JobSpec:
    return job_spec(key=key, **{"type": "email", **fields})


def incoming(writes: Sequence[Write], first: int = 0) -> list[Incoming]:
    return [Incoming(offset, write.key, write.value) for offset, write in enumerate(writes, first)]


def refusals(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Reason and what was found, of each refusal."""
    return [(event.reason, event.found) for event in events if isinstance(event, CommandRejected)]


def only(events: Sequence[Event], kind: type[EventT]) -> list[EventT]:
    return [event for event in events if isinstance(event, kind)]


def snapshot(state: State) -> dict[str, dict[str, Any]]:
    """Every field of every open job."""
    return {key: {name: getattr(job, name) for name in Job.__slots__} for key, job in state.jobs.items()}


def check_consistent(machine: JobMachine, *, leading: bool = True) -> None:
    """What must hold of any state: no open job is forgotten, and what is derived agrees with the jobs."""
    state, rules = machine.state, machine.rules
    counts = {name: dict.fromkeys(JobState, 0) for name in state.lanes}
    for key, job in state.jobs.items():
        assert job.key == key
        counts[job.type][job.state] += 1
        assert (job.entry is not None) == (job.state is JobState.READY)
        assert (job.due_at > 0) == (job.state is JobState.SCHEDULED)
        assert bool(job.cause) == (job.state is JobState.INCIDENT)
        assert (key in state.unclaimed) + (key in state.started) == (job.state is JobState.ACTIVE)
        if job.entry is not None:
            assert job.entry[0] == rank_of(job.since, job.priority, rules.aging_ms)
    armed = set(state.timers._heap)
    assert {(job.due_at, 1, job.key) for job in state.jobs.values() if job.due_at} <= armed
    assert {(job.expires_at, 0, job.key) for job in state.jobs.values() if job.expires_at} <= armed
    for name, lane in state.lanes.items():
        assert {state: lane.counts[state] for state in OPEN} == {state: counts[name][state] for state in OPEN}
        ready = {job.key for job in state.jobs.values() if job.type == name and job.entry is not None}
        in_order = list(lane.queue.oldest_first())
        assert len(in_order) == len(lane.queue) == len(ready)
        assert set(in_order) == ready
        assert lane.queue.head() == (in_order[0] if in_order else None)
        assert (name in state.waiting) == bool(ready)
        assert lane.counts[JobState.ACTIVE] <= rules.window
        assert lane.queue.footprint <= 2 * len(lane.queue) + 33
    assert state.timers.footprint <= 2 * len(state.timers) + 33
    assert list(state.unclaimed.values()) == sorted(state.unclaimed.values())
    assert state.finished.keys() == set(state.finished_order)
    assert len(state.finished_order) == len(state.finished) <= rules.finished_count_max
    assert not state.finished.keys() & state.jobs.keys()
    if leading:
        assert machine._leases._until.keys() == state.started.keys()


OPEN = (JobState.SCHEDULED, JobState.READY, JobState.ACTIVE, JobState.INCIDENT)
