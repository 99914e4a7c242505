"""Records to bytes and back: Avro single-object encoding, a job's bytes copied and never encoded anew.

A value is two marker bytes, the CRC-64-AVRO fingerprint of its schema (eight bytes, little-endian) and the
body (Avro specification, "Single-object encoding"). Avro nests records by plain concatenation, so a record
whose last field is a `JobSpec` is its own fields followed by the spec's bytes: the codec reads all fields
before `variables` as one record, checks that `variables` ends where the value ends, and keeps the bytes.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cache
from typing import Any, Final, NoReturn

import orjson

from relevo_schemas import commands, delivery, events
from relevo_schemas.compiled import datum_of, maker_of
from relevo_schemas.errors import RecordError, RecordFault
from relevo_schemas.fields import (
    HEADER_LENGTH,
    MARKER,
    UNREADABLE,
    UNWRITABLE,
    Schema,
    check_ints,
    damaged,
    fingerprint,
    head,
    int_array_names,
    int_names,
    not_its_end,
    read,
    unwritable,
    write,
)
from relevo_schemas.files import load_current, load_retired
from relevo_schemas.job import JobSpec
from relevo_schemas.job_body import JobCarrier, canonical, decode_job, job_spec
from relevo_schemas.records import Command, Record

__all__ = [
    "HEADER_LENGTH",
    "MARKER",
    "RECORD_BYTES_MAX",
    "Codec",
    "canonical",
    "decode",
    "decode_job",
    "default_codec",
    "encode",
    "encode_about",
    "encode_json",
    "fingerprint",
    "job_spec",
    "record_classes",
]

RECORD_BYTES_MAX: Final = 1_000_000
"""Longest record in bytes: below the 1 MiB that brokers take by default, with room for what an event adds."""


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


class _Kind:
    """How one kind of record is written and read."""

    __slots__ = (
        "carries_job", "cls", "fields_of", "has_arrays", "head", "int_arrays", "ints", "item",
        "item_fields_of", "item_ints", "made", "make_item", "name", "names",
        "prefix", "read", "schema",
    )  # fmt: skip

    def __init__(self, cls: type[Record], schema: Schema) -> None:
        self.cls = cls
        self.name = cls.__name__
        self.schema = schema
        self.prefix = MARKER + fingerprint(schema)
        cls.FIELDS = tuple(field["name"] for field in schema["fields"])
        self.carries_job = cls.FIELDS[-1] == "job"
        self.head = head(schema, "job") if self.carries_job else schema
        self.names = cls.FIELDS[:-1] if self.carries_job else cls.FIELDS
        self.fields_of = datum_of(self.names)
        self.made = maker_of(cls, schema)
        self.ints = int_names(self.head)
        self.item = _ITEMS.get(cls)
        if self.item is not None:
            self.item_fields_of = datum_of(self.item.FIELDS)
            self.make_item = maker_of(self.item, schema["fields"][-1]["type"]["items"])
            self.item_ints = int_names(schema["fields"][-1]["type"]["items"])
        self.int_arrays = int_array_names(self.head)
        self.has_arrays = self.item is not None or bool(self.int_arrays)
        # The record in a value that was written with the current schema; the stream stands behind its header.
        self.read: Callable[[io.BytesIO, bytes], Any] = (
            JobCarrier(cls, self.head).read if self.carries_job else self._read_plain
        )

    def datum(self, record: Record) -> dict[str, Any]:
        """The fields of ``record`` as fastavro wants them, without the job."""
        datum = self.fields_of(record)
        if self.has_arrays:
            for name in self.int_arrays:
                datum[name] = list(datum[name])
            if self.item is not None:
                datum["jobs"] = [self.item_fields_of(ref) for ref in datum["jobs"]]
        return datum

    def make(self, datum: dict[str, Any], *job: JobSpec) -> Any:
        """The record of a datum as fastavro gives it, without the job, and the job where it carries one."""
        if self.has_arrays:
            self.check(datum)
            for name in self.int_arrays:
                datum[name] = tuple(datum[name])
            if self.item is not None:
                datum["jobs"] = tuple(self.make_item(ref) for ref in datum["jobs"])
        return self.made({**datum, "job": job[0]} if self.carries_job else datum)

    def check(self, datum: dict[str, Any]) -> None:
        """Refuse what fastavro would let pass, in either direction."""
        check_ints(datum, self.ints)
        if self.has_arrays:
            for name in self.int_arrays:
                check_ints(dict(enumerate(datum[name])), range(len(datum[name])))
            if self.item is not None:
                for ref in datum["jobs"]:
                    check_ints(ref, self.item_ints)

    def write(self, datum: dict[str, Any], tail: bytes) -> bytes:
        """A record's bytes: the fields in ``datum``, then ``tail`` as it is."""
        self.check(datum)
        stream = io.BytesIO()
        stream.write(self.prefix)
        if datum:
            write(stream, self.head, datum)
        stream.write(tail)
        return stream.getvalue()

    def write_as(self, datum: dict[str, Any], prefix: bytes, schema: Schema) -> bytes:
        """A record's bytes by an earlier schema, which leaves out what it doesn't have."""
        self.check(datum)
        stream = io.BytesIO()
        stream.write(prefix)
        write(stream, schema, datum)
        return stream.getvalue()

    def _read_plain(self, stream: io.BytesIO, value: bytes) -> Any:
        """See `read`; a record that carries no job."""
        datum = read(stream, self.head)
        if stream.tell() != len(value):
            raise not_its_end(stream, value)
        # Every event but the first of a job comes this way.
        return self.make(datum) if self.has_arrays else self.made(datum)

    def read_as(self, value: bytes, written: Schema) -> Any:
        """The record in ``value``, which was written with an earlier schema."""
        stream = io.BytesIO(value)
        stream.seek(HEADER_LENGTH)
        datum = read(stream, written, self.schema)
        if stream.tell() != len(value):
            raise not_its_end(stream, value)
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
        self._earlier: dict[type[Record], list[tuple[bytes, Schema]]] = defaultdict(list)
        for prefix, (schema, kind) in self._retired.items():
            self._earlier[kind.cls].append((prefix, schema))

    def encode(self, record: Record) -> bytes:
        """The value of ``record`` as it stands in Kafka.

        Raises:
            RecordError: A field doesn't fit the schema, or the whole is longer than `RECORD_BYTES_MAX`.
        """
        kind = self._by_class[type(record)]
        try:
            value = kind.write(kind.datum(record), record.job.body if kind.carries_job else b"")  # type: ignore[attr-defined]
        except UNWRITABLE as error:
            raise unwritable(kind.name, error) from error
        return value if len(value) <= RECORD_BYTES_MAX else _too_long(kind.name, value)

    def encode_earlier(self, record: Record) -> bytes:
        """The value of ``record`` as the version before wrote it, for readers that know no other.

        Only for kinds of which one schema is retired, and that carry no job.

        Raises:
            RecordError: As `encode`.
        """
        kind = self._by_class[type(record)]
        ((prefix, schema),) = self._earlier[type(record)]
        try:
            value = kind.write_as(kind.datum(record), prefix, schema)
        except UNWRITABLE as error:
            raise unwritable(kind.name, error) from error
        return value if len(value) <= RECORD_BYTES_MAX else _too_long(kind.name, value)

    def encode_carrying(self, cls: type[Record], values: Sequence[Any], body: bytes) -> bytes:
        """The value of a record that carries a job: the ``values`` of its other fields, then the job's bytes.

        Raises:
            RecordError: As `encode`.
        """
        kind = self._by_class[cls]
        try:
            value = kind.write(dict(zip(kind.names, values, strict=True)), body)
        except UNWRITABLE as error:
            raise unwritable(kind.name, error) from error
        return value if len(value) <= RECORD_BYTES_MAX else _too_long(kind.name, value)

    def decode(self, value: bytes | None) -> Record:
        """The record in a Kafka value.

        Raises:
            RecordError: It can't be read; `RecordError.fault` says why.
        """
        stream = io.BytesIO(value or b"")
        kind = self._by_prefix.get(stream.read(HEADER_LENGTH))
        if value is None or kind is None or len(value) > RECORD_BYTES_MAX:
            return self._decode_otherwise(value)
        try:
            record: Record = kind.read(stream, value)
        except UNREADABLE as error:
            raise damaged(kind.name, error) from error
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
        except UNREADABLE as error:
            raise damaged(f"{kind.name} of an earlier version", error) from error
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


def encode_about(created_seq: int, command: Command) -> bytes:
    """A worker's command about an attempt of the job that is known by ``created_seq``; 0: it isn't known.

    Then the activation may be from a node that can't read the command with that field: it would refuse it,
    and a completion be lost. So it is written without. Of a batch, any number that isn't 0 will do.

    Raises:
        RecordError: As `Codec.encode`.
    """
    codec = default_codec()
    return codec.encode(command) if created_seq else codec.encode_earlier(command)


def decode(value: bytes | None) -> Record:
    """`Codec.decode` of the default codec."""
    return default_codec().decode(value)


def encode_json(value: object) -> bytes:
    """JSON as job variables and results carry it.

    Raises:
        TypeError: The value has no JSON form (orjson says which part), or is nested deeper than 254 levels.
        ValueError: A number in it is NaN or infinite, which JSON doesn't have.
    """
    encoded = orjson.dumps(value)
    # orjson makes null of such a number; only where there is one, somebody has to look.
    return encoded if b"null" not in encoded else _checked(value, encoded)


def _checked(value: object, encoded: bytes) -> bytes:
    try:
        _STRICT.encode(value)
    except ValueError as error:
        raise ValueError(
            "it holds NaN or an infinite number, and JSON has neither: use None or a text"
        ) from error
    return encoded


def _parts(value: object) -> object:
    """What orjson writes for a value that `json` doesn't know, as far as there may be numbers in it."""
    if isinstance(value, Enum):
        return value.value
    if not dataclasses.is_dataclass(value):
        return None  # a time or a UUID
    try:
        found = vars(value)
    except TypeError:
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {name: part for name, part in found.items() if not name.startswith("_")}


_STRICT: Final = json.JSONEncoder(allow_nan=False, check_circular=False, default=_parts)
