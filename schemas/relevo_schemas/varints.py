"""Avro's primitive values as bytes: zigzag numbers of variable length, texts, maps of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1


def _plain(n: int) -> bytes:
    """``n`` in groups of seven bits, the lowest first; all but the last are marked."""
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


# Two groups at a time, looked up: a loop over groups costs a leader more than all the rest of a record.
_LAST: Final = [_plain(n) for n in range(1 << 14)]
_MORE: Final = [bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(1 << 14)]

SMALL: Final = [_plain(n << 1) for n in range(1 << 13)]
"""The encoding of each number from 0 to 8191."""
SMALL_END: Final = len(SMALL)


def write_long(n: int) -> bytes:
    """A ``long``.

    Raises:
        OverflowError: It has more than 64 bits.
        TypeError: It is no integer.
    """
    z = n << 1 if n >= 0 else ~(n << 1)
    if z < 0x4000:
        return _LAST[z]
    high = z >> 14
    if high < 0x4000:
        return _MORE[z & 0x3FFF] + _LAST[high]
    if high < 0x10000000:
        return _MORE[z & 0x3FFF] + _MORE[high & 0x3FFF] + _LAST[high >> 14]
    if not -_LONG_MAX - 1 <= n <= _LONG_MAX:
        raise OverflowError(f"{n} has more than 64 bits")
    return _plain(z)


def write_int(n: int) -> bytes:
    """An ``int``.

    Raises:
        OverflowError: It has more than 32 bits.
        TypeError: It is no integer.
    """
    if not -_INT_MAX - 1 <= n <= _INT_MAX:
        raise OverflowError(f"{n} has more than 32 bits")
    return write_long(n)


def write_text(text: str) -> bytes:
    """A ``string``."""
    data = text.encode()
    return write_long(len(data)) + data


def write_texts(texts: Mapping[str, str]) -> bytes:
    """A ``map`` of strings."""
    if not texts:
        return b"\x00"
    entries = (write_text(name) + write_text(text) for name, text in texts.items())
    return write_long(len(texts)) + b"".join(entries) + b"\x00"


def read_long(value: bytes, at: int) -> tuple[int, int]:
    """The ``long`` at ``at``, and the position behind it.

    Raises:
        ValueError: It has more than 64 bits.
        IndexError: It goes on behind the end.
    """
    byte = value[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    n = byte & 0x7F
    byte = value[at + 1]
    n |= (byte & 0x7F) << 7
    if byte < 0x80:
        return (n >> 1) ^ -(n & 1), at + 2
    byte = value[at + 2]
    n |= (byte & 0x7F) << 14
    if byte < 0x80:
        return (n >> 1) ^ -(n & 1), at + 3
    at += 3
    shift = 21
    while True:
        byte = value[at]
        at += 1
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
    if n >> 64:
        raise ValueError("a number of more than 64 bits")
    return (n >> 1) ^ -(n & 1), at


def read_int(value: bytes, at: int) -> tuple[int, int]:
    """The ``int`` at ``at``, and the position behind it; raises as `read_long`."""
    n, at = read_long(value, at)
    if not -_INT_MAX - 1 <= n <= _INT_MAX:
        raise ValueError(f"{n} where a number of 32 bits belongs")
    return n, at


def read_bytes(value: bytes, at: int) -> tuple[bytes, int]:
    """The ``bytes`` at ``at``, and the position behind them."""
    length, at = read_long(value, at)
    end = at + length
    if length < 0 or end > len(value):
        raise ValueError(f"{length} bytes announced where {len(value) - at} follow")
    return value[at:end], end


def read_text(value: bytes, at: int) -> tuple[str, int]:
    """The ``string`` at ``at``, and the position behind it."""
    data, at = read_bytes(value, at)
    return data.decode(), at


def read_count(value: bytes, at: int) -> tuple[int, int]:
    """How many entries the next block of a map or array has, and where they begin. 0: none follow."""
    count, at = read_long(value, at)
    if count < 0:
        # The block's length in bytes stands between: for readers that skip it.
        _, at = read_long(value, at)
        count = -count
    return count, at


def read_texts(value: bytes, at: int) -> tuple[dict[str, str], int]:
    """The ``map`` of strings at ``at``, and the position behind it."""
    texts: dict[str, str] = {}
    count, at = read_count(value, at)
    while count:
        for _ in range(count):
            name, at = read_text(value, at)
            texts[name], at = read_text(value, at)
        count, at = read_count(value, at)
    return texts, at
