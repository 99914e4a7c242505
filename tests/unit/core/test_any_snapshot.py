"""Snapshots of any history: begun at any event, taken while others are applied, restored, led from."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from relevo_engine import snapshot_format
from relevo_engine.core import snapshot
from relevo_engine.core.rules import Rules
from relevo_engine.machine import PartitionMachine
from relevo_partitions.statemachine import Frozen, Incoming, Term
from relevo_schemas.codec import encode
from relevo_schemas.records import Command, Event
from tests.unit.core.harness import Channels, Partition, check_consistent, incoming
from tests.unit.core.test_any_history import AnyHistory

SMALL_BATCH = 2
"""So that a copy of a few jobs takes several slices."""


class Twins(Partition):
    """Two leaders that are given the same: they must write the same, to the byte and in the same order.

    Attributes:
        twin: Replayed from the log alone, where the owner was restored from a snapshot.
    """

    twin: PartitionMachine | None = None

    def lead(self) -> None:
        self.terms += 1
        term = Term(f"n{self.terms}", f"i{self.terms}")
        writes = list(self.owner.lead(term, self.now))
        if self.twin is not None:
            assert writes == list(self.twin.lead(term, self.now))
        self.take(writes)

    def send(self, *commands: Command | bytes | None) -> list[Event]:
        batch = []
        for command in commands:
            value = encode(command) if isinstance(command, Command) else command
            batch.append(Incoming(self.offset, None, value))
            self.offset += 1
        writes = list(self.owner.step(batch, self.now))
        if self.twin is not None:
            assert writes == list(self.twin.step(batch, self.now))
            assert self.owner.wait_ms(self.now) == self.twin.wait_ms(self.now)
            assert self.owner.state_hash() == self.twin.state_hash()
        return self.take(writes)

    def failover(self) -> None:
        self.twin = None
        super().failover()


class AnySnapshot(AnyHistory):
    """A history in which snapshots are taken all the time."""

    def __init__(self) -> None:
        self.frozen: Frozen | None = None
        self.pieces: list[bytes] = []
        self.frozen_hash = ""
        self.log_at = 0
        self.done: tuple[Sequence[bytes], int] | None = None
        self.batches = [
            patch.object(snapshot, "BATCH", SMALL_BATCH),
            patch.object(snapshot_format, "BATCH", SMALL_BATCH),
        ]
        for each in self.batches:
            each.start()
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for each in self.batches:
                each.stop()

    def make(self, rules: Rules, channels: Channels) -> Partition:
        return Twins(rules, channels)

    @rule()
    def freeze(self) -> None:
        if self.frozen is None:
            self.frozen = self.p.owner.freeze()
            self.frozen_hash, self.log_at, self.pieces = self.p.owner.state_hash(), len(self.p.log), []

    @rule(slices=st.integers(1, 4))
    def go_on(self, slices: int) -> None:
        for _ in range(slices):
            if self.frozen is None:
                return
            piece = self.frozen.next(1)
            if piece is None:
                assert self.frozen.state_hash() == self.frozen_hash
                assert (self.frozen.seq, self.frozen.epoch) == (self.log_at, self.p.owner.epoch)
                self.done, self.frozen = (self.pieces, self.log_at), None
                assert self.p.state.keep is None, "a copy that is complete needs nothing kept any more"
            else:
                self.pieces.append(piece)

    @rule(slices=st.integers(1, 30))
    def take_a_whole_one(self, slices: int) -> None:
        self.freeze()
        self.go_on(slices)

    def restored(self, overlap: int) -> PartitionMachine:
        """A machine from the last snapshot and what followed; from somewhat earlier in the log, even."""
        assert self.done is not None
        pieces, at = self.done
        machine = self.p.fresh()
        machine.restore(pieces)
        assert (machine.last_seq, machine.count) == (at, len(machine._machine.state.jobs))
        first = max(0, at - overlap)
        machine.replay(incoming(self.p.log[first:], first))
        return machine

    @rule(overlap=st.integers(0, 8))
    def restore(self, overlap: int) -> None:
        if self.done is None:
            return
        machine, owner = self.restored(overlap), self.p.owner
        assert machine.state_hash() == owner.state_hash()
        assert (machine.position, machine.epoch, machine.last_at) == (
            owner.position,
            owner.epoch,
            owner.last_at,
        )
        check_consistent(machine._machine, leading=False)

    @rule(overlap=st.integers(0, 8))
    def failover_to_a_snapshot(self, overlap: int) -> None:
        assert isinstance(self.p, Twins)
        if self.done is None:
            return
        self.replay_at_every_boundary()
        self.p.twin, self.p.owner = self.p.replayed(), self.restored(overlap)
        self.frozen = None
        self.p.lead()

    def new_leader(self, skew: int) -> None:
        self.frozen = None
        super().new_leader(skew)


AnySnapshot.TestCase.settings = settings(stateful_step_count=50)
TestAnySnapshot = AnySnapshot.TestCase
