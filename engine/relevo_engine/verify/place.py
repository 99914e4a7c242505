"""Whether a record stands where it belongs, under the key that it must have."""

from __future__ import annotations

from relevo_engine.verify.facts import JobFacts
from relevo_engine.verify.findings import Fault, Invariant
from relevo_schemas import codec
from relevo_schemas.delivery import Barrier
from relevo_schemas.errors import RecordError
from relevo_schemas.events import CommandRejected, JobCreated, LeaderElected
from relevo_schemas.partitioning import partition_of
from relevo_schemas.records import Event

_EXPECTED = "an event or a barrier"


def read_record(value: bytes | None) -> Event | Barrier | Fault:
    """The event or barrier in a value, or what else there is."""
    try:
        record = codec.decode(value)
    except RecordError as error:
        return Fault(Invariant.RECORD, _EXPECTED, f"{error.fault.value}: {error}")
    if isinstance(record, (Event, Barrier)):
        return record
    return Fault(Invariant.RECORD, _EXPECTED, f"{type(record).__name__}, which doesn't belong on the log")


def key_of(event: Event) -> str:
    """Key of the job that ``event`` speaks of, empty where it speaks of none."""
    if type(event) is JobCreated:
        return event.job.key
    if type(event) is LeaderElected:
        return ""
    key: str = event.key  # type: ignore[attr-defined] # all other events have one
    return key


def check_key(key: str, record_key: bytes | None) -> Fault | None:
    """A record's key is its job's: who reads by key finds all of a job."""
    if (record_key or b"") == key.encode():
        return None
    return Fault(Invariant.KEY, f"the record's key to be {key!r}", repr(record_key))


def check_place(
    event: Event, key: str, partition: int, partitions: int, known: JobFacts | None
) -> Fault | None:
    """A job's events stand in the partition of its key; a refusal stands where the command was.

    Where the job was met before spares hashing its key.
    """
    if not key or type(event) is CommandRejected:
        return None
    belongs = known.partition if known is not None and known.exists else partition_of(key, partitions)
    if belongs == partition:
        return None
    found = f"{type(event).__name__} for {key!r} in partition {partition}"
    return Fault(Invariant.PLACE, f"partition {belongs} of {partitions}", found)
