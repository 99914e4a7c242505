"""Mistakes in deciding about jobs, in snapshots and in workers, each planted into the real code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import relevo.worker.gate
from relevo.consumer.offsets import Ownership
from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.store import Mine, Unknown
from relevo.worker.claims import Claims
from relevo.worker.endings import Endings
from relevo.worker.item import Item
from relevo.worker.outcomes import Completed
from relevo_engine.core import appliers, commands
from relevo_engine.core.checks import Fault
from relevo_engine.core.refusals import Reason
from relevo_engine.machine import PartitionMachine
from relevo_partitions.snapshots.snapshotter import Snapshotter
from relevo_partitions.supervisor import replicas
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev


def complete_twice(patch: pytest.MonkeyPatch) -> None:
    """A finished job is completed again by whoever says so."""
    decide, completed = commands._complete, appliers._completed

    def again(turn: Any, command: cmd.CompleteJob) -> Any:
        finished = turn.state.finished.get(command.key)
        if finished is not None and finished[0] == "COMPLETED":
            seq, epoch, at, source = turn.head()
            return [ev.JobCompleted(seq, epoch, at, source, command.key, command.attempt, command.result)]
        return decide(turn, command)

    def tolerant(state: Any, event: ev.JobCompleted) -> None:
        if event.key in state.jobs:
            completed(state, event)

    patch.setitem(commands._DECIDERS, cmd.CompleteJob, again)
    patch.setitem(appliers._APPLIERS, ev.JobCompleted, tolerant)


def key_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A key is free again as soon as its job is finished."""
    original = commands._creation_fault

    def fault(turn: Any, spec: Any) -> Any:
        return None if spec.key in turn.state.finished else original(turn, spec)

    patch.setattr(commands, "_creation_fault", fault)


def stale_start(patch: pytest.MonkeyPatch) -> None:
    """A start of an old attempt begins the lease of the present one."""
    running = appliers._running

    def under_way(job: Any, told: Any) -> Any:
        return None if job.attempt and str(job.state) == "ACTIVE" else Fault(Reason.NOT_ACTIVE, "", "")

    patch.setattr(commands, "_not_under_way", under_way)
    patch.setattr(appliers, "_running", lambda state, event: running(state, _of_now(state, event)))


def _of_now(state: Any, event: Any) -> Any:
    class Present:
        key = event.key
        attempt = state.jobs[event.key].attempt

    return Present()


def dispatch_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """The event of a hand-over is committed without its activation, which is sent some other time."""
    original = PartitionMachine._handover_writes

    def writes(self: PartitionMachine, handover: Any) -> Any:
        return original(self, handover)[:1]

    patch.setattr(PartitionMachine, "_handover_writes", writes)


def trim_above_snapshot(patch: pytest.MonkeyPatch) -> None:
    """The log is deleted below the newest snapshot instead of the older one."""
    original = Snapshotter._clear_away

    def clear_away(self: Snapshotter, oldest: Any) -> None:
        original(self, self._verified[0])

    patch.setattr(Snapshotter, "_clear_away", clear_away)


def snapshot_ahead(patch: pytest.MonkeyPatch) -> None:
    """A snapshot says that it goes on further in the log than its state does."""
    original = Snapshotter._begin

    def begin(self: Snapshotter, machine: Any, log_offset: int) -> None:
        original(self, machine, log_offset + 4)

    patch.setattr(Snapshotter, "_begin", begin)


def events_skipped(patch: pytest.MonkeyPatch) -> None:
    """A start from a snapshot reads on some records too far."""
    original = vars(replicas)["load"]

    def load(*arguments: Any) -> Any:
        loaded = original(*arguments)
        return replace(loaded, log_offset=loaded.log_offset + 4) if loaded.manifest is not None else loaded

    patch.setattr(replicas, "load", load)


def snapshot_of_the_present(patch: pytest.MonkeyPatch) -> None:
    """Jobs that change while they are copied are copied as they have become."""
    from relevo_engine.core.state import State

    patch.setattr(State, "keep", property(lambda self: None, lambda self, keep: None), raising=False)


def highest_seen(patch: pytest.MonkeyPatch) -> None:
    """A worker commits behind the last message that it has read."""
    patch.setattr(Ownership, "committable", property(lambda self: self.next if self.next is not None else -1))


def complete_before_done(patch: pytest.MonkeyPatch) -> None:
    """A worker tells of the completion first, and marks the job as done some other time."""
    original = Endings.conclude

    def conclude(self: Endings, ended: list[Item], now: float) -> Any:
        hasty = [item for item in ended if isinstance(item.outcome, Completed)]
        for item in hasty:
            assert isinstance(item.outcome, Completed)
            self._outbox.add(item, item.outcome)
        return original(self, [item for item in ended if item not in hasty], now)

    patch.setattr(Endings, "conclude", conclude)


def done_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The dedup store forgets what is done, as one does that evicts at will."""
    original = MemoryDedupStore._other

    def other(self: MemoryDedupStore, key: str, token: str, now: float) -> Any:
        self._done.pop(key, None)
        return original(self, key, token, now)

    patch.setattr(MemoryDedupStore, "_other", other)


def claims_of_old(patch: pytest.MonkeyPatch) -> None:
    """A claim is known by the job alone, so that a later incarnation takes it for its own."""

    def item(entry: Any, activation: Any, token: str) -> Item:
        return Item(entry, activation, activation.job.key)

    patch.setattr(relevo.worker.gate, "Item", item)


def unknown_is_mine(patch: pytest.MonkeyPatch) -> None:
    """Where the dedup store doesn't answer, a worker takes the claim for granted."""
    original = Claims.take

    def take(self: Claims, batch: list[Item], now: float) -> list[Item]:
        store = self._store
        assert store is not None
        claim = store.claim

        def hopeful(claims: Any) -> Any:
            return [Mine() if isinstance(answer, Unknown) else answer for answer in claim(claims)]

        store.claim = hopeful  # type: ignore[method-assign]
        try:
            return original(self, batch, now)
        finally:
            del store.claim

    patch.setattr(Claims, "take", take)
