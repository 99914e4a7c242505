"""Jobs as people write them: one from flags, many as JSON lines. Each bad line is told by its number."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import orjson

from relevo.cli.output import parse_time
from relevo.client.requests import NewJob
from relevo.errors import InvalidRequest
from relevo_schemas.codec import RECORD_BYTES_MAX

LINE_BYTES_MAX: Final = 4 * RECORD_BYTES_MAX
"""A longer line isn't parsed: no job that fits would need it."""
FIELDS: Final = tuple(field.name for field in fields(NewJob) if field.name != "delay")
_TIMES: Final = ("run_at", "expires_at")
INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**64 - 1
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 19
"""So many digits has the shortest integer that doesn't fit into 64 bits, once all digits are made zeros."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no job.

    Attributes:
        number: Counts from 1.
        reason: What is wrong with it.
    """

    number: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GoodLine:
    """A line that is a job.

    Attributes:
        number: Counts from 1.
        job: What is to be created; checked.
    """

    number: int
    job: NewJob


def read_lines(lines: Iterable[bytes], *, now_ms: int) -> Iterator[GoodLine | BadLine]:
    """Reads jobs from JSON lines; empty lines are skipped. Never raises because of what stands there."""
    for each in _numbered(lines):
        if isinstance(each, BadLine):
            yield each
            continue
        number, text = each
        try:
            yield GoodLine(number, parse(_from_json(text), now_ms=now_ms))
        except orjson.JSONDecodeError as error:
            yield BadLine(number, f"it isn't JSON: {error}")
        except InvalidRequest as error:
            yield BadLine(number, str(error))
        except RecursionError:
            yield BadLine(number, "it is nested too deep")


def read_keys(lines: Iterable[bytes]) -> Iterator[str | BadLine]:
    """Reads jobs' keys from JSON lines: objects with a ``key``, as commands print them, or texts.

    Empty lines are skipped. Never raises because of what stands there.
    """
    for each in _numbered(lines):
        if isinstance(each, BadLine):
            yield each
            continue
        number, text = each
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            yield BadLine(number, f"it isn't JSON: {error}")
            continue
        key = found.get("key") if isinstance(found, dict) else found
        yield key if isinstance(key, str) else BadLine(number, 'it must be {"key": "…"}, or a text')


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes] | BadLine]:
    """The lines that aren't empty, with their numbers; instead of one that is too long, that it is."""
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if len(text) > LINE_BYTES_MAX:
            yield BadLine(number, f"it has {len(text)} bytes, {LINE_BYTES_MAX} are allowed")
        elif text:
            yield number, text


def parse(given: object, *, now_ms: int) -> NewJob:
    """A job from its fields by name.

    Raises:
        InvalidRequest: A field is missing, unknown or wrong; the text says which and why.
    """
    if not isinstance(given, dict):
        raise InvalidRequest('it must be a JSON object, such as {"type": "hello", "variables": {}}')
    for name in given:
        if name not in FIELDS:
            close = difflib.get_close_matches(str(name), FIELDS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(FIELDS)}"
            raise InvalidRequest(f"unknown field {name!r}{hint}")
    if "type" not in given:
        raise InvalidRequest("'type' is missing")
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in _TIMES:
        if isinstance(values.get(name), str):
            values[name] = _time(name, values[name], now_ms)
    job = NewJob(**values)
    job.spec()
    return job


def from_flags(given: Mapping[str, Any], *, now_ms: int) -> NewJob:
    """A job from flags; those that weren't given are None. Variables come as JSON text.

    Raises:
        InvalidRequest: A value is wrong; the text says which and why.
    """
    values = {name: value for name, value in given.items() if value not in (None, ())}
    if "variables" in values:
        try:
            values["variables"] = _from_json(values["variables"].encode(errors="surrogatepass"))
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"--variables isn't JSON: {error}") from error
        except RecursionError as error:
            raise InvalidRequest("--variables is nested too deep") from error
    headers = {}
    for each in values.pop("headers", ()):
        name, equals, value = each.partition("=")
        if not equals:
            raise InvalidRequest(f"--header {each!r} must be NAME=VALUE")
        headers[name] = value
    return parse({**values, "headers": headers or None}, now_ms=now_ms)


def _from_json(text: bytes) -> Any:
    """What a JSON text says.

    Raises:
        InvalidRequest: An integer in it is beyond 64 bits: orjson would make another number of it.
        orjson.JSONDecodeError: It isn't JSON.
        RecursionError: It is nested too deep to be looked through.
    """
    found = orjson.loads(text)
    # Looked through only where there may be one, as that takes many times as long.
    if _LONG_NUMBER in text.translate(_DIGITS):
        json.loads(text, parse_int=_check_integer)
    return found


def _check_integer(digits: str) -> None:
    # By its length first: Python refuses to read very long ones.
    if len(digits) > 20 or not INTEGER_MIN <= int(digits) <= INTEGER_MAX:
        shown = digits if len(digits) <= 40 else f"{digits[:40]}… ({len(digits)} digits)"
        raise InvalidRequest(f"the integer {shown} is beyond 64 bits: write it as a text")


def _time(name: str, text: str, now_ms: int) -> int:
    try:
        return parse_time(text, now_ms=now_ms)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from error
