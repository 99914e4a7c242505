"""What else a leader writes: activations for workers, barriers for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo_schemas.records import Record, record

if TYPE_CHECKING:
    from relevo_schemas.job import JobSpec


@record
class Activation(Record):
    """Hands one attempt of a job to the workers of its type."""

    partition: int
    epoch: int
    at: int
    created_seq: int
    attempt: int
    retries: int
    expiries: int
    checkpoint: bytes
    job: JobSpec


@record
class Barrier(Record):
    """Written to the log by a leader to learn that it has read all before it, and that it may still write.

    Not an event: it has no seq and changes nothing.
    """

    node: str
    incarnation: str
    nonce: str
