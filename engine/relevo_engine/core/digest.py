"""A digest of a state's records: one canonical form, whoever made them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

HASH_BYTES: Final = 16

Fields = Mapping[str, Any]
"""A record's fields in the schema's order: numbers, texts, bytes, and arrays of one of them."""


class StateDigest:
    """Takes the records of a state one by one, all but the last, which holds the result.

    It knows none of their fields, so it covers all of them, those of later versions included.
    """

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=HASH_BYTES)

    def take(self, name: str, record: Fields) -> None:
        """The next record."""
        parts: list[bytes] = [name.encode()]
        for value in record.values():
            parts += _canonical(value if isinstance(value, list) else [value])
        self._digest.update(b"".join(parts))

    def result(self) -> str:
        """Of all that was taken, as hexadecimal text."""
        return self._digest.hexdigest()


def _canonical(values: list[Any]) -> tuple[bytes, ...]:
    """Values of one kind: how many, the length of each where they differ, and what they are."""
    count = len(values)
    first = values[0] if values else 0
    if isinstance(first, int):
        return (struct.pack(f"<c{count + 1}q", b"n", count, *values),)
    lengths = struct.pack(f"<c{count + 1}q", b"t", count, *map(len, values))
    if isinstance(first, str):
        return lengths, "".join(values).encode()
    return lengths, b"".join(values)
