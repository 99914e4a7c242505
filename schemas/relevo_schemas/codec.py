"""Records to bytes and back: Avro single-object encoding, a job's bytes copied and never encoded anew.

A value is two marker bytes, the CRC-64-AVRO fingerprint of its schema (eight bytes, little-endian) and the
body (Avro specification, "Single-object encoding"). Avro nests records by plain concatenation, so a record
whose last field is a `JobSpec` is its own fields followed by the spec's bytes: the codec reads the fields
before `variables`, checks that `variables` ends exactly where the value ends, and keeps the bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final

import fastavro
import orjson

from relevo_schemas import commands, delivery, events
from relevo_schemas.errors import RecordError, RecordFault
from relevo_schemas.files import load_current, load_retired
from relevo_schemas.job import JobSpec
from relevo_schemas.records import Record

MARKER: Final = b"\xc3\x01"
HEADER_LENGTH: Final = 10
RECORD_BYTES_MAX: Final = 1_000_000
"""Longest record in bytes: below the 1 MiB that brokers take by default, with room for what an event adds."""

_UNREADABLE: Final = (
    ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError, MemoryError, StopIteration,
)  # fmt: skip
"""What damaged bytes make fastavro raise."""

# fastavro types a datum as any Avro value; ours are records, so dicts.
_read: Final[Any] = fastavro.schemaless_reader
_write: Final[Any] = fastavro.schemaless_writer
_make_job: Final[Any] = JobSpec
Schema = dict[str, Any]


def fingerprint(schema: Schema) -> bytes:
    """The eight bytes that name ``schema`` in every record made with it."""
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def _without_last(schema: Schema, name: str) -> Schema:
    last = schema["fields"][-1]["name"]
    if last != name:
        raise TypeError(f"{schema['name']}: the last field must be {name!r}, not {last!r}")
    return {**schema, "name": f"{schema['name']}Head", "fields": schema["fields"][:-1]}


_JOB_SCHEMA: Final = load_current("JobSpec")
_JOB_HEAD: Final[Any] = fastavro.parse_schema(_without_last(_JOB_SCHEMA, "variables"))
_JOB_FIELDS: Final = tuple(field["name"] for field in _JOB_SCHEMA["fields"])


def _read_length(value: bytes, at: int) -> tuple[int, int]:
    """Avro's zigzag varint at ``at``, and the position behind it."""
    shift = number = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a length of more than ten bytes")


def _read_job(stream: io.BytesIO, value: bytes, start: int) -> JobSpec:
    """The job that begins at ``start`` and must end where ``value`` ends."""
    head = _read(stream, _JOB_HEAD, None)
    length, variables_at = _read_length(value, stream.tell())
    if length < 0 or variables_at + length != len(value):
        raise ValueError(f"variables of {length} bytes do not end where the record does")
    body = value[start:] if start else value
    job: JobSpec = _make_job(*head.values(), body, variables_at - start)
    return job


def decode_job(body: bytes) -> JobSpec:
    """The job whose Avro encoding is ``body``, as it stands in `JobSpec.body`.

    Raises:
        RecordError: ``body`` isn't a whole job.
    """
    try:
        return _read_job(io.BytesIO(body), body, 0)
    except _UNREADABLE as error:
        raise RecordError(
            RecordFault.DAMAGED, f"damaged JobSpec: {str(error) or type(error).__name__}"
        ) from error


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
        correlation_id, dict(headers or {}), variables,
    )  # fmt: skip
    stream = io.BytesIO()
    _encode_into(stream, _JOB_SCHEMA, dict(zip(_JOB_FIELDS, values, strict=True)), "JobSpec")
    body = stream.getvalue()
    return JobSpec(*values[:-1], body=body, variables_at=len(body) - len(variables))


def _encode_into(stream: io.BytesIO, schema: Schema, datum: dict[str, Any], name: str) -> None:
    try:
        _write(stream, schema, datum)
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError, UnicodeError) as error:
        raise RecordError(RecordFault.DAMAGED, f"{name} can't be encoded: {error}") from error


_ITEMS: Final[dict[type[Record], Any]] = {
    commands.StartJobs: commands.AttemptRef,
    commands.ExtendJobs: commands.LeaseRef,
}
"""What the array ``jobs`` of a batch command holds."""
for _item in _ITEMS.values():
    _item.FIELDS = tuple(_item.__slots__)


class _Kind:
    """How one kind of record is written and read."""

    __slots__ = ("carries_job", "cls", "head", "items", "name", "names", "prefix", "schema", "values")

    def __init__(self, cls: type[Record], schema: Schema) -> None:
        fields = schema["fields"]
        # Called with the values of its fields in the schema's order, which no type checker can follow.
        self.cls: Any = cls
        self.name = cls.__name__
        self.schema = schema
        self.carries_job = fields[-1]["name"] == "job"
        head = _without_last(schema, "job") if self.carries_job else schema
        self.head: Any = fastavro.parse_schema(head) if self.carries_job else schema
        self.names = tuple(field["name"] for field in head["fields"])
        cls.FIELDS = tuple(field["name"] for field in fields)
        if len(self.names) > 1:
            self.values: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.names)
        else:
            self.values = lambda record: tuple(getattr(record, name) for name in self.names)
        self.items = _ITEMS.get(cls)
        self.prefix = MARKER + fingerprint(schema)

    def encode_head(self, fields: Sequence[Any]) -> bytes:
        stream = io.BytesIO(self.prefix)
        stream.seek(HEADER_LENGTH)
        _encode_into(stream, self.head, dict(zip(self.names, fields, strict=True)), self.name)
        return stream.getvalue()

    def encode(self, record: Record) -> bytes:
        datum = dict(zip(self.names, self.values(record), strict=True))
        if self.items is not None:
            datum["jobs"] = [{name: getattr(ref, name) for name in ref.FIELDS} for ref in datum["jobs"]]
        stream = io.BytesIO(self.prefix)
        stream.seek(HEADER_LENGTH)
        _encode_into(stream, self.head, datum, self.name)
        if self.carries_job:
            stream.write(record.job.body)  # type: ignore[attr-defined]
        return stream.getvalue()

    def decode(self, value: bytes) -> Any:
        stream = io.BytesIO(value)
        stream.seek(HEADER_LENGTH)
        datum = _read(stream, self.head, None) if self.names else {}
        if self.carries_job:
            return self.cls(*datum.values(), _read_job(stream, value, stream.tell()))
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")
        return self.make(datum)

    def make(self, datum: dict[str, Any]) -> Any:
        if self.items is not None:
            datum["jobs"] = tuple(self.items(**ref) for ref in datum["jobs"])
        return self.cls(*datum.values())


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
        value = self._by_class[type(record)].encode(record)
        if len(value) > RECORD_BYTES_MAX:
            raise RecordError(
                RecordFault.OVERSIZED,
                f"{type(record).__name__} has {len(value)} bytes, {RECORD_BYTES_MAX} are allowed",
            )
        return value

    def encode_carrying(self, cls: type[Record], fields: Sequence[Any], body: bytes) -> bytes:
        """The value of a record of ``cls``, which carries a job: its own ``fields``, then the job's bytes.

        Raises:
            RecordError: As `encode`.
        """
        kind = self._by_class[cls]
        value = kind.encode_head(fields) + body
        if len(value) > RECORD_BYTES_MAX:
            raise RecordError(
                RecordFault.OVERSIZED, f"{kind.name} has {len(value)} bytes, {RECORD_BYTES_MAX} are allowed"
            )
        return value

    def decode(self, value: bytes | None) -> Record:
        """The record in a Kafka value.

        Raises:
            RecordError: It can't be read; `RecordError.fault` says why.
        """
        if not value or value[:2] != MARKER or len(value) < HEADER_LENGTH:
            raise RecordError(RecordFault.NOT_A_RECORD, "the value isn't in Avro's single-object encoding")
        if len(value) > RECORD_BYTES_MAX:
            raise RecordError(
                RecordFault.OVERSIZED, f"the value has {len(value)} bytes, {RECORD_BYTES_MAX} are allowed"
            )
        kind = self._by_prefix.get(value[:HEADER_LENGTH])
        try:
            record: Record = kind.decode(value) if kind is not None else self._decode_retired(value)
            return record
        except RecordError:
            raise
        except _UNREADABLE as error:
            name = kind.name if kind is not None else "record of an earlier version"
            raise RecordError(
                RecordFault.DAMAGED, f"damaged {name}: {str(error) or type(error).__name__}"
            ) from error

    def _decode_retired(self, value: bytes) -> Record:
        found = self._retired.get(value[:HEADER_LENGTH])
        if found is None:
            raise RecordError(
                RecordFault.UNKNOWN_SCHEMA, f"no schema has the fingerprint {value[2:HEADER_LENGTH].hex()}"
            )
        schema, kind = found
        stream = io.BytesIO(value)
        stream.seek(HEADER_LENGTH)
        datum: Any = _read(stream, schema, kind.schema)
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")
        if kind.carries_job:
            datum["job"] = job_spec(**datum["job"])
        record: Record = kind.make(datum)
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
