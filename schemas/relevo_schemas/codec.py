"""Records to bytes and back: Avro single-object encoding, a job's bytes copied and never encoded anew.

A value is two marker bytes, the CRC-64-AVRO fingerprint of its schema (eight bytes, little-endian) and the
body (Avro specification, "Single-object encoding"). Avro nests records by plain concatenation, so a record
whose last field is a `JobSpec` is its own fields followed by the spec's bytes: the codec reads the fields
before `variables`, checks that `variables` ends exactly where the value ends, and keeps the bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NoReturn

import fastavro
import orjson

from relevo_schemas import commands, delivery, events
from relevo_schemas.compiled import Schema, compile_reader, compile_writer
from relevo_schemas.errors import RecordError, RecordFault
from relevo_schemas.files import load_current, load_retired
from relevo_schemas.job import JobSpec
from relevo_schemas.records import Record

MARKER: Final = b"\xc3\x01"
HEADER_LENGTH: Final = 10
RECORD_BYTES_MAX: Final = 1_000_000
"""Longest record in bytes: below the 1 MiB that brokers take by default, with room for what an event adds."""

_UNREADABLE: Final = (ValueError, IndexError)
_UNREADABLE_BY_FASTAVRO: Final = (
    ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError, MemoryError, StopIteration,
    fastavro.read.SchemaResolutionError,
)  # fmt: skip
"""What damaged bytes make of it."""
_UNWRITABLE: Final = (ValueError, TypeError, OverflowError, AttributeError)
"""What values of the wrong kind make of a writer."""


def fingerprint(schema: Schema) -> bytes:
    """The eight bytes that name ``schema`` in every record made with it."""
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def _fields_before(schema: Schema, name: str) -> Sequence[Schema]:
    """The fields of ``schema`` without the last one, which must be called ``name``."""
    fields: list[Schema]
    *fields, last = schema["fields"]
    if last["name"] != name:
        raise TypeError(f"{schema['name']}: the last field must be {name!r}, not {last['name']!r}")
    return fields


_JOB_SCHEMA: Final = load_current("JobSpec")
_write_job: Final = compile_writer("JobSpec", _JOB_SCHEMA["fields"], b"", takes_record=False)
_read_job: Final = compile_reader(
    "JobSpec", _fields_before(_JOB_SCHEMA, "variables"), JobSpec, stops_at_variables=True
)


def decode_job(body: bytes) -> JobSpec:
    """The job whose Avro encoding is ``body``, as it stands in `JobSpec.body`.

    Raises:
        RecordError: ``body`` isn't a whole job.
    """
    try:
        job: JobSpec = _read_job(body, 0)
    except _UNREADABLE as error:
        raise RecordError(RecordFault.DAMAGED, f"damaged JobSpec: {error}") from error
    return job


def job_spec(
    *,
    key: str,
    type: str,
    variables: bytes = b"{}",
    priority: int = 0,
    retries: int = 3,
    backoff_ms: int = 1_000,
    backoff_max_ms: int = 300_000,
    lease_ms: int = 30_000,
    run_at: int = 0,
    expires_at: int = 0,
    correlation_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JobSpec:
    """Encode a job once; every later record that carries it copies the bytes.

    Raises:
        RecordError: A value doesn't fit the schema (a priority beyond 32 bits, a header that isn't text, …).
    """
    values = (
        key, type, priority, retries, backoff_ms, backoff_max_ms, lease_ms, run_at, expires_at,
        correlation_id, headers or {}, variables,
    )  # fmt: skip
    try:
        body = _write_job(*values)
    except _UNWRITABLE as error:
        raise _unwritable("JobSpec", error) from error
    return JobSpec(*values[:-1], body=body, variables_at=len(body) - len(variables))


def _unwritable(name: str, error: Exception) -> RecordError:
    return RecordError(RecordFault.DAMAGED, f"{name} can't be encoded: {error}")


_ITEMS: Final[dict[type[Record], Any]] = {
    commands.StartJobs: commands.AttemptRef,
    commands.ExtendJobs: commands.LeaseRef,
}
"""What the array ``jobs`` of a batch command holds."""
for _item in _ITEMS.values():
    _item.FIELDS = tuple(_item.__slots__)


class _Kind:
    """How one kind of record is written and read."""

    __slots__ = ("carries_job", "cls", "items", "name", "prefix", "read", "schema", "write", "write_values")

    def __init__(self, cls: type[Record], schema: Schema) -> None:
        # Called with the values of its fields in the schema's order, which no type checker can follow.
        self.cls: Any = cls
        self.name = cls.__name__
        self.schema = schema
        self.prefix = MARKER + fingerprint(schema)
        self.items = _ITEMS.get(cls)
        cls.FIELDS = tuple(field["name"] for field in schema["fields"])
        self.carries_job = cls.FIELDS[-1] == "job"
        fields = _fields_before(schema, "job") if self.carries_job else schema["fields"]
        tail = {"tail": "r.job.body"} if self.carries_job else {}
        self.write = compile_writer(self.name, fields, self.prefix, takes_record=True, **tail)
        tail = {"tail": "body"} if self.carries_job else {}
        self.write_values = compile_writer(self.name, fields, self.prefix, takes_record=False, **tail)
        read_job = _read_job if self.carries_job else None
        self.read = compile_reader(self.name, fields, cls, make_item=self.items, read_job=read_job)

    def make(self, datum: dict[str, Any]) -> Any:
        """The record of a datum as fastavro gives it."""
        if self.carries_job:
            datum["job"] = job_spec(**datum["job"])
        if self.items is not None:
            datum["jobs"] = tuple(self.items(**ref) for ref in datum["jobs"])
        return self.cls(*datum.values())


def _too_long(name: str, value: bytes) -> NoReturn:
    message = f"{name} has {len(value)} bytes, {RECORD_BYTES_MAX} are allowed"
    raise RecordError(RecordFault.OVERSIZED, message)


def _read_as(value: bytes, written: Schema, wanted: Schema) -> dict[str, Any]:
    """The record in ``value``, written with one schema, in the shape of another."""
    stream = io.BytesIO(value)
    stream.seek(HEADER_LENGTH)
    datum: Any = fastavro.schemaless_reader(stream, written, wanted)
    if stream.tell() != len(value):
        raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")
    return dict(datum)


class Codec:
    """All kinds of records, by class and by fingerprint.

    Args:
        classes: The record classes; each has a current schema file of its name.
        retired: Schemas of earlier versions; records made with them are read as the current kind, by Avro's
            schema resolution.
    """

    def __init__(self, classes: Iterable[type[Record]], retired: Iterable[Schema] = ()) -> None:
        self._by_class: dict[type[Record], _Kind] = {
            cls: _Kind(cls, load_current(cls.__name__)) for cls in classes
        }
        self._by_prefix: dict[bytes, _Kind] = {kind.prefix: kind for kind in self._by_class.values()}
        by_name = {kind.name: kind for kind in self._by_class.values()}
        self._retired = {
            MARKER + fingerprint(schema): (schema, by_name[schema["name"].split(".")[-1]])
            for schema in retired
        }

    def encode(self, record: Record) -> bytes:
        """The value of ``record`` as it stands in Kafka.

        Raises:
            RecordError: A field doesn't fit the schema, or the whole is longer than `RECORD_BYTES_MAX`.
        """
        kind = self._by_class[type(record)]
        try:
            value = kind.write(record)
        except _UNWRITABLE as error:
            raise _unwritable(kind.name, error) from error
        return value if len(value) <= RECORD_BYTES_MAX else _too_long(kind.name, value)

    def encode_carrying(self, cls: type[Record], values: Sequence[Any], body: bytes) -> bytes:
        """The value of a record that carries a job: the ``values`` of its other fields, then the job's bytes.

        Raises:
            RecordError: As `encode`.
        """
        kind = self._by_class[cls]
        try:
            value = kind.write_values(*values, body)
        except _UNWRITABLE as error:
            raise _unwritable(kind.name, error) from error
        return value if len(value) <= RECORD_BYTES_MAX else _too_long(kind.name, value)

    def decode(self, value: bytes | None) -> Record:
        """The record in a Kafka value.

        Raises:
            RecordError: It can't be read; `RecordError.fault` says why.
        """
        kind = self._by_prefix.get(value[:HEADER_LENGTH]) if value else None
        if value is None or kind is None or len(value) > RECORD_BYTES_MAX:
            return self._decode_otherwise(value)
        try:
            record: Record = kind.read(value, HEADER_LENGTH)
        except _UNREADABLE as error:
            raise RecordError(RecordFault.DAMAGED, f"damaged {kind.name}: {error}") from error
        return record

    def _decode_otherwise(self, value: bytes | None) -> Record:
        """A value that isn't a current record of allowed length."""
        if not value or value[:2] != MARKER or len(value) < HEADER_LENGTH:
            raise RecordError(RecordFault.NOT_A_RECORD, "the value isn't in Avro's single-object encoding")
        if len(value) > RECORD_BYTES_MAX:
            _too_long("the value", value)
        found = self._retired.get(value[:HEADER_LENGTH])
        if found is None:
            raise RecordError(
                RecordFault.UNKNOWN_SCHEMA, f"no schema has the fingerprint {value[2:HEADER_LENGTH].hex()}"
            )
        schema, kind = found
        try:
            record: Record = kind.make(_read_as(value, schema, kind.schema))
        except _UNREADABLE_BY_FASTAVRO as error:
            raise RecordError(
                RecordFault.DAMAGED,
                f"damaged {kind.name} of an earlier version: {str(error) or type(error).__name__}",
            ) from error
        return record

    def kind_of(self, value: bytes | None) -> type[Record] | None:
        """The class of the record in ``value`` by its fingerprint alone; None where it has none of ours."""
        kind = self._by_prefix.get(value[:HEADER_LENGTH]) if value else None
        return kind.cls if kind is not None else None


def record_classes() -> tuple[type[Record], ...]:
    """All kinds of records that stand in Kafka."""
    found: list[type[Record]] = []
    for module in (commands, events, delivery):
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Record) and cls.__module__ == module.__name__:
                found.append(cls)
    return tuple(cls for cls in found if cls not in (commands.AttemptRef, commands.LeaseRef))


@cache
def default_codec() -> Codec:
    """The codec of this version: its schemas, and those that earlier versions wrote with."""
    return Codec(record_classes(), load_retired())


def encode(record: Record) -> bytes:
    """`Codec.encode` of the default codec."""
    return default_codec().encode(record)


def decode(value: bytes | None) -> Record:
    """`Codec.decode` of the default codec."""
    return default_codec().decode(value)


def encode_json(value: object) -> bytes:
    """JSON as job variables and results carry it.

    Raises:
        TypeError: The value has no JSON form (orjson says which part), or is nested deeper than 254 levels.
    """
    return orjson.dumps(value)
