"""Mistakes in electing, fencing, committing and answering, each planted into the real code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from relevo_engine.core import appliers
from relevo_engine.core.machine import JobMachine
from relevo_partitions.outcomes import Aborted, Unclear
from relevo_partitions.pace import Pace
from relevo_partitions.statemachine import Write
from relevo_partitions.term.commit_beside import CommitBeside
from relevo_partitions.term.endings import Setback
from relevo_partitions.term.establish import Establishing
from relevo_partitions.term.leading import Leading
from relevo_partitions.term.standby import Replica, Standby
from relevo_partitions.term.stuck_reader import StuckReaderWatch
from relevo_partitions.term.term_writer import TermWriter
from relevo_schemas import events as ev
from tests.simulation.world.kafka_client import SimIO, SimWriter


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Each node has a transactional id of its own: nobody shuts anybody out."""

    def fence(self: SimIO, cancelled: Any) -> SimWriter:
        tid = f"c-{self.number}-{self.client.process.name}"
        epoch = self.client.insist("init", lambda: self.client.kafka.init(tid), 30.0)
        return SimWriter(self.client, tid, epoch, [])

    patch.setattr(SimIO, "fence", fence)


def no_barrier(patch: pytest.MonkeyPatch) -> None:
    """A new leader believes what its standby has read so far, and waits for no barrier."""
    original = Standby._follow

    def follow(self: Standby, replica: Replica, pace: Pace) -> Replica | None:
        self._kept = replica  # type: ignore[attr-defined]
        return original(self, replica, pace)

    def from_standby(self: Establishing, nonce: str) -> Any:
        standby = self._standby
        assert standby is not None
        self._standby = None
        standby.stop()
        return standby._kept.machine  # type: ignore[attr-defined]

    patch.setattr(Standby, "_follow", follow)
    patch.setattr(Establishing, "_from_standby", from_standby)


def reply_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Reads are answered as soon as the step is decided."""

    def turn(self: Leading, established: Any, batch: list[Any], **_: Any) -> bool:
        machine = established.machine
        writes = machine.step(batch, established.clock.now())
        for read in self._reads.take():
            read.answer(machine)
        if writes:
            self._writer.commit(writes, len(batch))
        self._committed(writes, (machine.position, machine.last_seq))
        return bool(writes)

    patch.setattr(Leading, "_turn", turn)


def reads_run_ahead(patch: pytest.MonkeyPatch) -> None:
    """Reads are answered although a batch is decided whose commit is still under way."""
    original = Leading._turn

    def turn(self: Leading, established: Any, batch: list[Any], **rest: Any) -> bool:
        if self._beside is not None:
            for read in self._reads.take():
                read.answer(established.machine)
        return original(self, established, batch, **rest)

    patch.setattr(Leading, "_turn", turn)


def failure_beside_ignored(patch: pytest.MonkeyPatch) -> None:
    """A commit that failed while the next batch was decided is not noticed."""
    patch.setattr(CommitBeside, "finish", CommitBeside.wait)


def reads_from_memory(patch: pytest.MonkeyPatch) -> None:
    """A leader that has nothing to write answers from memory, without a probe."""
    original = Leading._turn

    def turn(self: Leading, established: Any, batch: list[Any], **rest: Any) -> bool:
        for read in self._reads._waiting:
            read.proven = False
        return original(self, established, batch, **rest)

    patch.setattr(Leading, "_turn", turn)


def epoch_again(patch: pytest.MonkeyPatch) -> None:
    """A term takes the number of the one before, and nobody checks."""
    elected = JobMachine.elected

    def same(self: JobMachine, node: str, incarnation: str, now: int) -> ev.LeaderElected:
        epoch = self.state.epoch
        if epoch:
            self.state.epoch = epoch - 1
        event = elected(self, node, incarnation, now)
        assert self.state.epoch == event.epoch
        return event

    patch.setattr(JobMachine, "elected", same)
    patch.setattr(appliers, "_check_order", lambda state, event: None)


def unclear_is_failed(patch: pytest.MonkeyPatch) -> None:
    """A commit without an answer counts as failed, and its records are appended again."""
    original = TermWriter.commit

    def commit(self: TermWriter, writes: Sequence[Write], commands: int = 0) -> None:
        try:
            original(self, writes, commands)
        except Setback as setback:
            if not isinstance(setback.outcome, Unclear):
                raise
            self.fence()
            original(self, writes, commands)

    patch.setattr(TermWriter, "commit", commit)


def same_producer_again(patch: pytest.MonkeyPatch) -> None:
    """After a commit without an answer the same producer goes on."""
    original = SimWriter._transact

    def transact(self: SimWriter, writes: list[Write]) -> Any:
        outcome = original(self, writes)
        return Aborted(outcome.reason) if isinstance(outcome, Unclear) else outcome

    patch.setattr(SimWriter, "_transact", transact)


def abort_shrugged_off(patch: pytest.MonkeyPatch) -> None:
    """After an abort the leader goes on with a memory that is ahead of the log."""
    original = TermWriter.commit

    def commit(self: TermWriter, writes: Sequence[Write], commands: int = 0) -> None:
        try:
            original(self, writes, commands)
        except Setback as setback:
            if not isinstance(setback.outcome, Aborted):
                raise

    patch.setattr(TermWriter, "commit", commit)


def leases_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A new leader gives started jobs no lease."""
    elected = JobMachine.elected

    def bare(self: JobMachine, node: str, incarnation: str, now: int) -> ev.LeaderElected:
        event = elected(self, node, incarnation, now)
        for key in list(self.state.started):
            self._leases.disarm(key)
        return event

    patch.setattr(JobMachine, "elected", bare)


def silence_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Leases run out by the clock, whatever the leader could hear."""
    patch.setattr(JobMachine, "heard", lambda self, since, until: None)


def stuck_reader_believed(patch: pytest.MonkeyPatch) -> None:
    """A reader that gets nothing is taken at its word: there is nothing."""
    patch.setattr(StuckReaderWatch, "look", lambda self: None)
