"""Who sees everything and believes nobody: checks the named invariants after every commit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from relevo_engine.core.job import JobState
from relevo_engine.core.timeouts import LEASE
from relevo_engine.machine import PartitionMachine
from relevo_partitions.snapshots.ports import Manifest
from relevo_partitions.statemachine import Incoming, LogDamaged, SnapshotUnfit, Write
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.codec import decode
from relevo_schemas.delivery import Activation, Barrier
from relevo_schemas.records import Event
from tests.simulation.world.fold import Contradiction, Fold, JobLine
from tests.simulation.world.invariants import INVARIANTS, Violation
from tests.simulation.world.kafka import Kafka, Partition, Record, Txn
from tests.simulation.world.kafka_client import CLUSTER, COMMANDS, LOG
from tests.simulation.world.scheduler import Scheduler
from tests.simulation.world.signs import Signs
from tests.simulation.world.snapshots import Shelves
from tests.simulation.world.truth import Belief, PartitionTruth

ACTIVATIONS: Final = f"{CLUSTER}.activations."

UNTOLD: Final = (cmd.ExtendJobs, cmd.ReportSlots)


class Oracle:
    """The truth of a whole world.

    Args:
        scheduler: Told of violations: it stops.
        kafka: Watched.
        shelves: Watched.
        partitions: Of the cluster.
        make_machine: An empty machine for a partition.
        whole: Whether all is compared: memory and fold behind each transaction, and the ways forward behind
            each event. It takes time, so most worlds look at a third of the transactions.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        kafka: Kafka,
        shelves: Shelves,
        partitions: int,
        make_machine: Callable[[int], PartitionMachine],
        whole: bool,
    ) -> None:
        self._whole = whole
        self._scheduler = scheduler
        self._kafka = kafka
        self._shelves = shelves
        self._make_machine = make_machine
        self.truths = [PartitionTruth(Fold(), make_machine(number)) for number in range(partitions)]
        self.reported: dict[str, int] = {}
        """Highest attempt of a job that a worker's command tells the end of."""
        self.acknowledged: dict[str, str] = {}
        """Keys of jobs whose creation Kafka has acknowledged, and of what kind."""
        self._commands_seen = [0] * partitions
        self._signs = Signs()
        self.done_at: dict[str, float] = {}
        self.effects: dict[str, list[str]] = {}
        self._claims: dict[str, tuple[str, float]] = {}
        self._granted: dict[tuple[str, str], float] = {}
        self.reads = self.commits = self.hashes_compared = self.snapshots = self.trims = 0
        shelves.finished = self._snapshot_finished
        shelves.trimmed = self._trimmed
        kafka.decided = self._decided
        kafka.moved = self._moved
        kafka.offsets_committed = self._offsets_committed

    def violate(self, invariant: str, detail: str) -> None:
        """Stop the world."""
        assert invariant in INVARIANTS, invariant
        if self._scheduler.failure is None:
            self._scheduler.note("oracle", f"VIOLATED {invariant}: {detail}")
            self._scheduler.failure = Violation(invariant, detail)

    # -- the log

    def _decided(self, txn: Txn) -> None:
        self.commits += 1
        for place, records in txn.records.items():
            if place.topic != LOG:
                continue
            for record in reversed(records):
                found = decode(record.value)
                if isinstance(found, Event):
                    truth = self.truths[place.number]
                    truth.decided_seq = max(truth.decided_seq, found.seq)
                    break

    def _moved(self, place: Partition) -> None:
        if place.topic == LOG:
            self._read_log(place)
        elif place.topic == COMMANDS:
            self._read_commands(place)

    def _read_log(self, place: Partition) -> None:
        truth = self.truths[place.number]
        while truth.next < place.stable and self._scheduler.failure is None:
            record = place.records[truth.next]
            truth.next += 1
            if record.control:
                if record.txn is truth.txn:
                    self._txn_read(place.number, truth)
                continue
            if record.txn is not None and record.txn.state != "committed":
                continue
            self._event(place, truth, record)

    def _event(self, place: Partition, truth: PartitionTruth, record: Record) -> None:
        found = decode(record.value)
        if isinstance(found, Barrier):
            return
        where = f"{place.topic} [{place.number}] at {record.offset}"
        if not isinstance(found, Event):
            self.violate("log replays", f"{where}: {type(found).__name__}")
            return
        truth.txn = record.txn
        writer = record.txn.writer if record.txn is not None else ""
        try:
            truth.fold.apply(found)
        except Contradiction as error:
            name = next((name for name in INVARIANTS if str(error).startswith(name)), "log replays")
            self.violate(name, f"{where}: {error} (by {writer})")
            return
        if truth.writers.setdefault(found.epoch, writer) != writer:
            self.violate(
                "one writer per epoch",
                f"{where}: epoch {found.epoch} of {truth.writers[found.epoch]} has an event by {writer}",
            )
        if found.source >= 0:
            before = truth.answered.setdefault(found.source, record.txn)
            if before is not record.txn:
                self.violate("no accepted job lost", f"{where}: command {found.source} is decided twice")
        try:
            truth.machine.replay([Incoming(record.offset, record.key, record.value)])
        except LogDamaged as error:
            self.violate("log replays", str(error))
            return
        if self._whole:
            self._ways_forward(truth)
        if isinstance(found, ev.JobActivated):
            self._activated(record, found, truth.fold.jobs[found.key])

    def _activated(self, record: Record, event: ev.JobActivated, line: JobLine) -> None:
        """The activation stands in the same transaction, and says how far the attempts before it came."""
        assert record.txn is not None
        place = self._kafka.partition(ACTIVATIONS + line.type, event.slot)
        due = (event.key, line.created_seq, event.attempt, line.checkpoint)
        for other in record.txn.records.get(place, ()):
            found = decode(other.value)
            if not isinstance(found, Activation):
                continue
            if (found.job.key, found.created_seq, found.attempt, found.checkpoint) == due:
                return
        self.violate("way forward", f"{due} has no activation in {place.topic}")

    def _txn_read(self, number: int, truth: PartitionTruth) -> None:
        """The fold stands at the end of a transaction, as its leader did."""
        truth.txn = None
        seq = truth.fold.seq
        if self.samples(seq):
            truth.hashes[seq] = truth.machine.state_hash()
            self._compare(number, seq)
            self._ways_forward(truth)

    def samples(self, seq: int) -> bool:
        """Whether memory and fold are compared after this event."""
        return self._whole or seq % 3 == 0

    def _ways_forward(self, truth: PartitionTruth) -> None:
        state = truth.machine._machine.state
        for key, job in state.jobs.items():
            if job.state is JobState.ACTIVE:
                ok = key in state.started or key in state.unclaimed
            elif job.state is JobState.SCHEDULED:
                ok = job.due_at > 0
            elif job.state is JobState.READY:
                ok = job.entry is not None and job.type in state.waiting
            else:
                ok = job.state is JobState.INCIDENT
            if not ok or job.state.value != truth.fold.jobs[key].state:
                self.violate("way forward", f"{job!r}: the events say {truth.fold.jobs[key]}")

    # -- leaders

    def belief(self, machine: PartitionMachine) -> Belief:
        """What a leader's memory is after a decision that isn't committed yet."""
        state = machine._machine.state
        seq = state.last_seq
        if not self.samples(seq):
            return Belief(seq)
        leases = machine._machine._leases
        return Belief(seq, machine.state_hash(), tuple(key for key in state.started if key not in leases))

    def leader_committed(self, who: str, number: int, belief: Belief) -> None:
        """A leader has heard that its transaction committed; its memory must be the log's fold."""
        if belief.state_hash is not None:
            self.truths[number].claimed_hashes[belief.seq] = (who, belief.state_hash)
            self._compare(number, belief.seq)
        for key in belief.without_lease:
            self.violate("way forward", f"{who}: {key} was started and has no lease")

    def _compare(self, number: int, seq: int) -> None:
        truth = self.truths[number]
        claimed = truth.claimed_hashes.get(seq)
        if claimed is None or seq not in truth.hashes:
            return
        self.hashes_compared += 1
        if claimed[1] != truth.hashes[seq]:
            self.violate(
                "state equals fold", f"partition {number} after event {seq}: {claimed[0]} has another state"
            )

    def answer(self, who: str, number: int, machine: PartitionMachine, floor: int) -> int:
        """A proven read is being answered from ``machine``; ``floor`` was committed when it was asked."""
        seq = machine._machine.state.last_seq
        self.reads += 1
        if seq < floor:
            self.violate("no stale read", f"{who}: partition {number} shows {seq}, {floor} stood in the log")
        if seq > self.truths[number].decided_seq:
            self.violate(
                "no stale read",
                f"{who}: partition {number} shows {seq}, only {self.truths[number].decided_seq} is committed",
            )
        return seq

    def given_up(self, who: str, machine: PartitionMachine, writes: Sequence[Write]) -> None:
        """A leader decides, and hasn't committed yet: whose leases ran out had been silent for as long."""
        for write in writes:
            event = decode(write.value) if write.topic == LOG else None
            if not isinstance(event, ev.JobTimedOut) or event.cause != LEASE:
                continue
            job = machine._machine.state.jobs[event.key]
            contradiction = self._signs.contradiction(job, event, self._scheduler.now)
            if contradiction is not None:
                self.violate("no live attempt given up", f"{who}: {contradiction}")

    # -- snapshots

    def _snapshot_finished(self, manifest: Manifest, pieces: list[bytes]) -> None:
        """A snapshot, and what follows it in the log, must make the very state that the whole log makes."""
        self.snapshots += 1
        self._check_snapshot(manifest, pieces)

    def check_snapshots(self) -> None:
        """All that are kept, against the log as it is now."""
        for shelf in self._shelves.of:
            for manifest in shelf.manifests:
                if manifest.name != shelf.damaged:
                    self._check_snapshot(manifest, shelf.content[manifest.name])

    def _check_snapshot(self, manifest: Manifest, pieces: list[bytes]) -> None:
        truth = self.truths[manifest.partition]
        place = self._kafka.partition(LOG, manifest.partition)
        machine = self._make_machine(manifest.partition)
        try:
            machine.restore(pieces)
            found = place.committed(manifest.log_offset, len(place.records))[0]
            machine.replay([record for record in found if record.offset < truth.next])
        except (LogDamaged, SnapshotUnfit) as error:
            self.violate("snapshot fits", f"{manifest.name}: {error}")
            return
        if machine.state_hash() != truth.machine.state_hash():
            self.violate(
                "snapshot fits", f"{manifest.name}: with the log from {manifest.log_offset} on: other"
            )

    def _trimmed(self, number: int, log_begin: int, commands_begin: int) -> None:
        """Two snapshots that are whole stand above what was deleted."""
        self.trims += 1
        intact = self._shelves.of[number].intact()
        for what, begin, starts in (
            ("log", log_begin, [each.log_offset for each in intact]),
            ("commands", commands_begin, [each.position for each in intact]),
        ):
            if begin > 0 and sum(start >= begin for start in starts) < 2:
                self.violate(
                    "log kept", f"{what} of partition {number} begin at {begin}, snapshots at {starts}"
                )

    # -- workers

    def _read_commands(self, place: Partition) -> None:
        seen = self._commands_seen[place.number]
        for record in place.records[seen:]:
            command = decode(record.value)
            if isinstance(command, cmd.CompleteJob):
                if not self.effects.get(command.key):
                    self.violate("effect before completion", f"{command.key} is completed, nothing was done")
                if command.key not in self.done_at:
                    self.violate("effect before completion", f"{command.key} has no done mark")
            if isinstance(command, cmd.StartJobs | cmd.ExtendJobs):
                jobs = self.truths[place.number].machine._machine.state.jobs
                for ref in command.jobs:
                    self._signs.given(jobs.get(ref.key), ref, record.at)
            if isinstance(command, cmd.CompleteJob | cmd.FailJob | cmd.ThrowError):
                any_attempt = isinstance(command, cmd.CompleteJob)  # the engine takes it from each
                attempt = sys.maxsize if any_attempt else command.attempt
                self.reported[command.key] = max(self.reported.get(command.key, 0), attempt)
        self._commands_seen[place.number] = len(place.records)

    def _offsets_committed(self, topic: str, number: int, before: int, offset: int) -> None:
        place = self._kafka.partition(topic, number)
        if offset < before:
            self.violate("no commit above unfinished work", f"{topic} [{number}]: {offset} after {before}")
        for record in place.records[before:offset]:
            if record.control or (record.txn is not None and record.txn.state != "committed"):
                continue
            found = decode(record.value)
            assert isinstance(found, Activation)
            key = found.job.key
            line = self.truths[found.partition].fold.jobs.get(key)  # its own part may be decided and not read
            settled = line is not None and (
                not line.open or line.attempt > found.attempt or line.state != "ACTIVE"
            )
            if not settled and self.reported.get(key, 0) < found.attempt:
                self.violate(
                    "no commit above unfinished work",
                    f"{topic} [{number}]: {offset} passes {record.offset}, where attempt {found.attempt} "
                    f"of {key} is unfinished",
                )

    def claimed(self, who: str, key: str, seconds: float) -> None:
        """The store has given a claim."""
        now = self._scheduler.now
        held = self._claims.get(key)
        if held is not None and held[0] != who and held[1] > now:
            self.violate("one claimant", f"{key}: {who} was given what {held[0]} holds")
        self._claims[key] = (who, now + seconds)
        self._granted.setdefault((who, key), now)

    def released(self, who: str, key: str) -> None:
        """A claim was given back, or turned into a done mark."""
        held = self._claims.get(key)
        if held is not None and held[0] == who:
            del self._claims[key]

    def done(self, who: str, key: str) -> None:
        """The store has marked a job as done."""
        self.released(who, key)
        if not self.effects.get(key):
            self.violate("effect before completion", f"{key} is marked as done, nothing was")
        self.done_at.setdefault(key, self._scheduler.now)

    def effect(self, who: str, key: str) -> None:
        """A handler has its effect."""
        granted_at = self._granted.get((who, key))
        if granted_at is None:
            self.violate("one claimant", f"{key}: {who} has the effect without a claim")
        elif self.done_at.get(key, granted_at) < granted_at:
            self.violate("no effect repeated", f"{key}: {who} does again what was marked as done")
        self.effects.setdefault(key, []).append(who)

    # -- at the end

    def unanswered(self) -> list[str]:
        """Commands that no event speaks of, and acknowledged jobs that don't exist."""
        found = []
        for number, truth in enumerate(self.truths):
            for record in self._kafka.partition(COMMANDS, number).records:
                command: Any = decode(record.value)
                if record.offset not in truth.answered and not isinstance(command, UNTOLD):
                    found.append(f"command {record.offset} of partition {number}: {command}")
        everything = {key for truth in self.truths for key in truth.fold.jobs}
        found += [f"job {key}" for key in self.acknowledged if key not in everything]
        return found

    def unfinished(self) -> list[str]:
        """Open jobs that are no incidents."""
        return [
            f"{key}: {line}"
            for truth in self.truths
            for key, line in truth.fold.jobs.items()
            if line.open and line.state != "INCIDENT"
        ]
