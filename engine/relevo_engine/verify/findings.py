"""What a job log promises, by name, and what it looks like when a promise is broken."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from relevo_engine.errors import EngineError


class VerifyError(EngineError):
    """The log can't be checked; nothing is said about whether it is sound."""


class Invariant(StrEnum):
    """A promise of the job log. The values are public."""

    RECORD = "RECORD"
    """Every record is an event or a barrier that can be read."""
    CHECKSUM = "CHECKSUM"
    """Every batch is as the broker took it in."""
    KEY = "KEY"
    """A record's key is the key of the job that its event speaks of; empty where it speaks of none."""
    PLACE = "PLACE"
    """An event stands in the partition of its job: murmur2(key) mod N."""
    TRUNCATED = "TRUNCATED"
    """The log reaches as far as snapshots and published positions tell, with the events that they tell of."""
    SEQ = "SEQ"
    """Events are numbered from 1, without hole or repeat."""
    EPOCH = "EPOCH"
    """One writer per epoch: each announcement raises it, and every event has the one announced last."""
    TIME = "TIME"
    """Time never goes back."""
    SOURCE = "SOURCE"
    """Commands are decided once each, in their order."""
    CREATED_ONCE = "CREATED_ONCE"
    """No job is created while it is open, or ended and still remembered."""
    OPEN_JOB = "OPEN_JOB"
    """Events speak of jobs that are open."""
    COMPLETED_ONCE = "COMPLETED_ONCE"
    """No job is completed twice."""
    ENDED_ONCE = "ENDED_ONCE"
    """A job ends at most once, in whatever way."""
    ATTEMPT = "ATTEMPT"
    """Attempts rise by one, and outcomes name an attempt that was handed out."""
    TRANSITION = "TRANSITION"
    """What happens to a job can happen in the state it is in; only a ready one is handed to workers."""
    ACCEPTED = "ACCEPTED"
    """A job that Kafka acknowledged to its creator is on the log, or still waits to be decided."""


class Fault(NamedTuple):
    """A broken promise, before anybody says where."""

    invariant: Invariant
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Attributes:
        invariant: Which.
        topic: The log.
        partition: Where in it.
        offset: The record that breaks it, or the log's end where its tail is missing; -1 where it is about
            neither.
        seq: Number of the event, None where the record holds none.
        key: The job's key, empty where it is about none.
        expected: What would have been right.
        found: What there is.
    """

    invariant: Invariant
    topic: str
    partition: int
    offset: int
    seq: int | None
    key: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = f"{self.topic} partition {self.partition}"
        if self.offset >= 0:
            where += f" offset {self.offset}"
        return f"{where}: {self.invariant.value}: expected {self.expected}, found {self.found}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
