"""What fastavro leaves open about a record's fields: their bounds, their end, and what it makes of damage."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, Final

import fastavro

from relevo_schemas.errors import RecordError, RecordFault
from relevo_schemas.files import parse

Schema = dict[str, Any]
MARKER: Final = b"\xc3\x01"
HEADER_LENGTH: Final = 10

# fastavro types a datum as any Avro value; ours are records, so dicts.
read: Final[Any] = fastavro.schemaless_reader
write: Final[Any] = fastavro.schemaless_writer

UNREADABLE: Final = (
    ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError, MemoryError, StopIteration,
    fastavro.read.SchemaResolutionError,
)  # fmt: skip
"""What damaged bytes make of fastavro."""
UNWRITABLE: Final = (ValueError, TypeError, OverflowError, AttributeError)
"""What values of the wrong kind make of it."""
INT_END: Final = 1 << 31
"""Behind the last number of 32 bits."""


def fingerprint(schema: Schema) -> bytes:
    """The eight bytes that name ``schema`` in every record made with it."""
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def head(schema: Schema, last: str, *instead: Schema) -> Any:
    """``schema`` up to its last field, which must be called ``last``; other fields stand in its place."""
    *fields, field = schema["fields"]
    if field["name"] != last:
        raise TypeError(f"{schema['name']}: the last field must be {last!r}, not {field['name']!r}")
    return parse({"type": "record", "name": schema["name"], "fields": [*fields, *instead]})


def int_names(schema: Schema) -> tuple[str, ...]:
    """The fields of 32 bits, by name."""
    return tuple(field["name"] for field in schema["fields"] if field["type"] in ("int", ["null", "int"]))


def int_array_names(schema: Schema) -> tuple[str, ...]:
    """The arrays of such numbers, by name."""
    return tuple(f["name"] for f in schema["fields"] if f["type"] == {"type": "array", "items": "int"})


def check_ints(datum: Mapping[Any, Any], names: Iterable[Any]) -> None:
    """Hold `int` fields to 32 bits: fastavro takes longer ones, which others who read the log refuse."""
    for name in names:
        number = datum[name]
        if number is None or (isinstance(number, int) and -INT_END <= number < INT_END):
            continue
        raise ValueError(f"{name} is {number!r}, not an integer of 32 bits")


def unwritable(name: str, error: Exception) -> RecordError:
    """The error of a record that doesn't fit its schema."""
    return RecordError(RecordFault.DAMAGED, f"{name} can't be encoded: {error}")


def damaged(name: str, error: Exception) -> RecordError:
    """The error of bytes that are no such record."""
    return RecordError(RecordFault.DAMAGED, f"damaged {name}: {str(error) or type(error).__name__}")


def not_its_end(stream: io.BytesIO, value: bytes) -> ValueError:
    """The error of a record that ends elsewhere than its value."""
    return ValueError(f"{len(value) - stream.tell()} bytes follow the record")
