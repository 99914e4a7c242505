"""Numbers of variable length, and what the generated readers and writers refuse to be made for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo_schemas import varints
from relevo_schemas.compiled import compile_reader, compile_writer

EDGES = sorted({sign * (1 << bits) + step for sign in (1, -1) for bits in range(63) for step in (-1, 0, 1)})


def reference(number: int) -> bytes:
    """As the Avro specification describes it: zigzag, then seven bits at a time."""
    rest = (number << 1) ^ (number >> 63)
    out = []
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


@pytest.mark.parametrize("number", [*EDGES, -(1 << 63), (1 << 63) - 1])
def test_numbers_at_the_edges_of_their_lengths(number: int) -> None:
    value = varints.write_long(number)
    assert value == reference(number)
    assert varints.read_long(b"\xff" + value + b"\xff", 1) == (number, 1 + len(value))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_number(number: int) -> None:
    assert varints.write_long(number) == reference(number)
    assert varints.read_long(reference(number), 0) == (number, len(reference(number)))


def test_the_table_of_small_numbers() -> None:
    assert [reference(number) for number in range(varints.SMALL_END)] == varints.SMALL


@pytest.mark.parametrize(
    "kind", ["double", ["null", "long"], {"type": "map", "values": "int"}, {"type": "fixed"}]
)
def test_a_type_that_no_record_has_yet_is_an_error_at_start(kind: Any) -> None:
    """Whoever adds a field of a new type hears it from the first import, not from a broken record."""
    fields = [{"name": "field", "type": kind}]
    with pytest.raises(TypeError, match="no way to write"):
        compile_writer("Kind", fields, b"", takes_record=True)
    with pytest.raises(TypeError, match="no way to read"):
        compile_reader("Kind", fields, tuple)
