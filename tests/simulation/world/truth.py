"""What is true of a partition, and what its leader believes."""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo_engine.machine import PartitionMachine
from tests.simulation.world.fold import Fold
from tests.simulation.world.kafka import Txn


@dataclass(frozen=True, slots=True)
class Belief:
    """What a leader takes for the state behind one of its events."""

    seq: int
    """Of that event."""
    state_hash: str | None = None
    """None: not one of those that are compared."""
    without_lease: tuple[str, ...] = ()
    """Jobs that were started and have no lease."""


@dataclass
class PartitionTruth:
    """What is known of one partition."""

    fold: Fold
    machine: PartitionMachine
    next: int = 0
    decided_seq: int = 0
    """Of the last event in a transaction whose commit was decided."""
    writers: dict[int, str] = field(default_factory=dict)
    hashes: dict[int, str] = field(default_factory=dict)
    claimed_hashes: dict[int, tuple[str, str]] = field(default_factory=dict)
    answered: dict[int, Txn | None] = field(default_factory=dict)
    """Offsets of commands that events speak of."""
    txn: Txn | None = None
