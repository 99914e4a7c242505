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
from typing import Any, Final, NoReturn

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

Schema = dict[str, Any]
# fastavro types a datum as any Avro value; ours are records, so dicts.
_read: Final[Any] = fastavro.schemaless_reader
_write: Final[Any] = fastavro.schemaless_writer
_make_job: Final[Any] = JobSpec

_UNREADABLE: Final = (
    ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError, MemoryError, StopIteration,
    fastavro.read.SchemaResolutionError,
)  # fmt: skip
"""What damaged bytes make of fastavro."""
_UNWRITABLE: Final = (ValueError, TypeError, OverflowError, AttributeError)
"""What values of the wrong kind make of it."""
_INT_END: Final = 1 << 31


def fingerprint(schema: Schema) -> bytes:
    """The eight bytes that name ``schema`` in every record made with it."""
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def _head(schema: Schema, last: str, *instead: Schema) -> Any:
    """``schema`` up to its last field, which must be called ``last``; other fields stand in its place."""
    *fields, field = schema["fields"]
    if field["name"] != last:
        raise TypeError(f"{schema['name']}: the last field must be {last!r}, not {field['name']!r}")
    return fastavro.parse_schema({"type": "record", "name": schema["name"], "fields": [*fields, *instead]})


def _int_names(schema: Schema) -> tuple[str, ...]:
    return tuple(field["name"] for field in schema["fields"] if field["type"] in ("int", ["null", "int"]))


def _int_array_names(schema: Schema) -> tuple[str, ...]:
    return tuple(f["name"] for f in schema["fields"] if f["type"] == {"type": "array", "items": "int"})


def _check_ints(datum: Mapping[Any, Any], names: Iterable[Any]) -> None:
    """Hold `int` fields to 32 bits: fastavro takes longer ones, which others who read the log refuse."""
    for name in names:
        number = datum[name]
        if number is None or (isinstance(number, int) and -_INT_END <= number < _INT_END):
            continue
        raise ValueError(f"{name} is {number!r}, not an integer of 32 bits")


_JOB_SCHEMA: Final = load_current("JobSpec")
_JOB_FIELDS: Final = tuple(field["name"] for field in _JOB_SCHEMA["fields"])
_JOB_INTS: Final = _int_names(_JOB_SCHEMA)
# Avro's `bytes` begin with their length, a `long`: read as one, it leaves the stream where they begin.
_JOB_HEAD: Final = _head(_JOB_SCHEMA, "variables", {"name": "variables", "type": "long"})


def _read_job(stream: io.BytesIO, value: bytes, start: int) -> JobSpec:
    """The job that begins at ``start``, where ``stream`` is, and must end where ``value`` ends."""
    head = _read(stream, _JOB_HEAD)
    _check_ints(head, _JOB_INTS)
    *fields, length = head.values()
    variables_at = stream.tell()
    if length < 0 or variables_at + length != len(value):
        raise ValueError(f"variables of {length} bytes where {len(value) - variables_at} follow")
    job: JobSpec = _make_job(*fields, value[start:], variables_at - start)
    return job


def decode_job(body: bytes) -> JobSpec:
    """The job whose Avro encoding is ``body``, as it stands in `JobSpec.body`.

    Raises:
        RecordError: ``body`` isn't a whole job.
    """
    try:
        return _read_job(io.BytesIO(body), body, 0)
    except _UNREADABLE as error:
        raise _damaged("JobSpec", error) from error


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
    stream = io.BytesIO()
    datum = dict(zip(_JOB_FIELDS, values, strict=True))
    try:
        _check_ints(datum, _JOB_INTS)
        _write(stream, _JOB_SCHEMA, datum)
    except _UNWRITABLE as error:
        raise _unwritable("JobSpec", error) from error
    body = stream.getvalue()
    return JobSpec(*values[:-1], body=body, variables_at=len(body) - len(variables))


def _unwritable(name: str, error: Exception) -> RecordError:
    return RecordError(RecordFault.DAMAGED, f"{name} can't be encoded: {error}")


def _damaged(name: str, error: Exception) -> RecordError:
    return RecordError(RecordFault.DAMAGED, f"damaged {name}: {str(error) or type(error).__name__}")


def _too_long(name: str, value: bytes) -> NoReturn:
    message = f"{name} has {len(value)} bytes, {RECORD_BYTES_MAX} are allowed"
    raise RecordError(RecordFault.OVERSIZED, message)


_ITEMS: Final[dict[type[Record], Any]] = {
    commands.StartJobs: commands.LeaseRef,
    commands.ExtendJobs: commands.LeaseRef,
}
"""What the array ``jobs`` of a batch command holds."""
for _item in _ITEMS.values():
    _item.FIELDS = tuple(_item.__slots__)


def _getter(names: Sequence[str]) -> Callable[[Any], Iterable[Any]]:
    """A function that gives the values of these attributes; `attrgetter` gives no tuple for one or none."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: [getattr(record, name) for name in names]


class _Kind:
    """How one kind of record is written and read."""

    __slots__ = (
        "carries_job", "cls", "has_arrays", "head", "int_arrays", "ints", "item", "item_ints", "item_values",
        "name", "names", "prefix", "schema", "values",
    )  # fmt: skip

    def __init__(self, cls: type[Record], schema: Schema) -> None:
        # Called with the values of its fields in the schema's order, which no type checker can follow.
        self.cls: Any = cls
        self.name = cls.__name__
        self.schema = schema
        self.prefix = MARKER + fingerprint(schema)
        cls.FIELDS = tuple(field["name"] for field in schema["fields"])
        self.carries_job = cls.FIELDS[-1] == "job"
        self.head = _head(schema, "job") if self.carries_job else schema
        self.names = cls.FIELDS[:-1] if self.carries_job else cls.FIELDS
        self.values = _getter(self.names)
        self.ints = _int_names(self.head)
        self.item = _ITEMS.get(cls)
        if self.item is not None:
            self.item_values = _getter(self.item.FIELDS)
            self.item_ints = _int_names(schema["fields"][-1]["type"]["items"])
        self.int_arrays = _int_array_names(self.head)
        self.has_arrays = self.item is not None or bool(self.int_arrays)

    def datum(self, record: Record) -> dict[str, Any]:
        """The fields of ``record`` as fastavro wants them, without the job."""
        datum = dict(zip(self.names, self.values(record), strict=False))
        if self.has_arrays:
            for name in self.int_arrays:
                datum[name] = list(datum[name])
            if self.item is not None:
                names, values = self.item.FIELDS, self.item_values
                datum["jobs"] = [dict(zip(names, values(ref), strict=False)) for ref in datum["jobs"]]
        return datum

    def make(self, datum: dict[str, Any], *job: JobSpec) -> Any:
        """The record of a datum as fastavro gives it, without the job, and the job where it carries one."""
        self.check(datum)
        if self.has_arrays:
            for name in self.int_arrays:
                datum[name] = tuple(datum[name])
            if self.item is not None:
                datum["jobs"] = tuple(self.item(*ref.values()) for ref in datum["jobs"])
        return self.cls(*datum.values(), *job)

    def check(self, datum: dict[str, Any]) -> None:
        """Refuse what fastavro would let pass, in either direction."""
        _check_ints(datum, self.ints)
        if self.has_arrays:
            for name in self.int_arrays:
                _check_ints(dict(enumerate(datum[name])), range(len(datum[name])))
            if self.item is not None:
                for ref in datum["jobs"]:
                    _check_ints(ref, self.item_ints)

    def write(self, datum: dict[str, Any], tail: bytes) -> bytes:
        """A record's bytes: the fields in ``datum``, then ``tail`` as it is."""
        self.check(datum)
        stream = io.BytesIO()
        stream.write(self.prefix)
        if datum:
            _write(stream, self.head, datum)
        stream.write(tail)
        return stream.getvalue()

    def read(self, value: bytes) -> Any:
        """The record in ``value``, which was written with the current schema."""
        stream = io.BytesIO(value)
        stream.seek(HEADER_LENGTH)
        datum = _read(stream, self.head) if self.names else {}
        if self.carries_job:
            return self.make(datum, _read_job(stream, value, stream.tell()))
        _check_end(stream, value)
        return self.make(datum)

    def read_as(self, value: bytes, written: Schema) -> Any:
        """The record in ``value``, which was written with an earlier schema."""
        stream = io.BytesIO(value)
        stream.seek(HEADER_LENGTH)
        datum = _read(stream, written, self.schema)
        _check_end(stream, value)
        for field in self.head["fields"]:
            # A default of `bytes` stands in a schema as text, and fastavro leaves it so.
            if field["type"] == "bytes" and isinstance(datum[field["name"]], str):
                datum[field["name"]] = datum[field["name"]].encode("latin-1")
        jobs = (job_spec(**datum.pop("job")),) if self.carries_job else ()
        # What the earlier version lacked comes last from fastavro, wherever it stands in the schema.
        if self.item is not None:
            names = self.item.FIELDS
            datum["jobs"] = [{name: ref[name] for name in names} for ref in datum["jobs"]]
        return self.make({name: datum[name] for name in self.names}, *jobs)


def _check_end(stream: io.BytesIO, value: bytes) -> None:
    if stream.tell() != len(value):
        raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")


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
            value = kind.write(kind.datum(record), record.job.body if kind.carries_job else b"")  # type: ignore[attr-defined]
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
            value = kind.write(dict(zip(kind.names, values, strict=True)), body)
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
            record: Record = kind.read(value)
        except _UNREADABLE as error:
            raise _damaged(kind.name, error) from error
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
            record: Record = kind.read_as(value, schema)
        except _UNREADABLE as error:
            raise _damaged(f"{kind.name} of an earlier version", error) from error
        return record

    def kind_of(self, value: bytes | None) -> type[Record] | None:
        """The class of the record in ``value`` by its fingerprint alone; None where it has none of ours."""
        prefix = value[:HEADER_LENGTH] if value else b""
        kind = self._by_prefix.get(prefix)
        if kind is None and prefix in self._retired:
            _, kind = self._retired[prefix]
        return kind.cls if kind is not None else None


def record_classes() -> tuple[type[Record], ...]:
    """All kinds of records that stand in Kafka."""
    found: list[type[Record]] = []
    for module in (commands, events, delivery):
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Record) and cls.__module__ == module.__name__:
                found.append(cls)
    return tuple(cls for cls in found if cls is not commands.LeaseRef)


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
