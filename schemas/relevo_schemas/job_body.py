"""Jobs within records: encoded once, copied as bytes ever after, read in one go with what carries them."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from relevo_schemas.compiled import pair_maker_of
from relevo_schemas.fields import (
    HEADER_LENGTH,
    UNREADABLE,
    UNWRITABLE,
    Schema,
    check_ints,
    damaged,
    head,
    int_names,
    read,
    unwritable,
    write,
)
from relevo_schemas.files import load_current, parse
from relevo_schemas.job import JobSpec
from relevo_schemas.records import Record

# Called with values in the schema's order, which no type checker can follow.
_make_job: Final[Any] = JobSpec
_JOB_SCHEMA: Final = load_current("JobSpec")
_JOB_FIELDS: Final = tuple(field["name"] for field in _JOB_SCHEMA["fields"])
_JOB_INTS: Final = int_names(_JOB_SCHEMA)
# Avro's `bytes` begin with their length, a `long`: read as one, it leaves the stream where they begin.
_JOB_HEAD: Final = head(_JOB_SCHEMA, "variables", {"name": "variables", "type": "long"})


def _check_variables(length: int, variables_at: int, value: bytes) -> None:
    """Hold a job's variables, which come last, to the end of ``value``."""
    if length < 0 or variables_at + length != len(value):
        raise ValueError(f"variables of {length} bytes where {len(value) - variables_at} follow")


def decode_job(body: bytes) -> JobSpec:
    """The job whose Avro encoding is ``body``, as it stands in `JobSpec.body`.

    Raises:
        RecordError: ``body`` isn't a whole job.
    """
    stream = io.BytesIO(body)
    try:
        datum = read(stream, _JOB_HEAD)
        check_ints(datum, _JOB_INTS)
        *fields, length = datum.values()
        variables_at = stream.tell()
        _check_variables(length, variables_at, body)
    except UNREADABLE as error:
        raise damaged("JobSpec", error) from error
    job: JobSpec = _make_job(*fields, body, variables_at)
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
    stream = io.BytesIO()
    datum = dict(zip(_JOB_FIELDS, values, strict=True))
    try:
        check_ints(datum, _JOB_INTS)
        write(stream, _JOB_SCHEMA, datum)
    except UNWRITABLE as error:
        raise unwritable("JobSpec", error) from error
    body = stream.getvalue()
    return JobSpec(*values[:-1], body=body, variables_at=len(body) - len(variables))


def canonical(job: JobSpec) -> JobSpec:
    """``job`` itself where its encoding is the shortest, as every proper writer makes it; else encoded anew.

    Avro leaves room: a number may be padded to any length, a map may be cut into blocks and name a key
    twice. fastavro reads all of it, and counts the choices of a union from the end too; other readers of the
    log don't, and a megabyte of padding would leave no room for what later records of the job add. No field's
    encoding is shorter than the shortest, so the length of the whole tells; the choice takes one byte anyway.
    """
    correlation_id, body = job.correlation_id, job.body
    choice_at = (
        _text_length(job.key)
        + _text_length(job.type)
        + _numbers_length(
            job.priority, job.retries, job.backoff_ms, job.backoff_max_ms, job.lease_ms, job.run_at,
            job.expires_at,
        )
    )  # fmt: skip
    length = (
        choice_at
        + (1 if correlation_id is None else 1 + _text_length(correlation_id))
        + (_map_length(job.headers) if job.headers else 1)
        + _number_length(job.variables_size)
    )
    if length == len(body) - job.variables_size and body[choice_at] == (0 if correlation_id is None else 2):
        return job
    return job_spec(
        key=job.key,
        type=job.type,
        variables=job.variables,
        priority=job.priority,
        retries=job.retries,
        backoff_ms=job.backoff_ms,
        backoff_max_ms=job.backoff_max_ms,
        lease_ms=job.lease_ms,
        run_at=job.run_at,
        expires_at=job.expires_at,
        correlation_id=job.correlation_id,
        headers=job.headers,
    )


def _number_length(number: int) -> int:
    """Bytes of the shortest encoding: seven bits in each, of twice the number and its sign."""
    doubled = number << 1 if number >= 0 else ~(number << 1)
    return (doubled.bit_length() + 6) // 7 or 1


def _text_length(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode())
    return size + _number_length(size)


def _map_length(headers: Mapping[str, str]) -> int:
    """One block of all, and the zero at the end."""
    texts = sum(_text_length(name) + _text_length(text) for name, text in headers.items())
    return _number_length(len(headers)) + texts + 1


@lru_cache(maxsize=512)
def _numbers_length(*numbers: int) -> int:
    """Most jobs of a type have the same."""
    return sum(map(_number_length, numbers))


class JobCarrier:
    """Reads a kind of record that ends in a job: its own fields and the job's in one call of fastavro.

    Args:
        cls: Of the record, made of its own fields and the job.
        schema: Of the record's own fields.
    """

    __slots__ = ("_bytes_at_end", "_make", "_own_end", "schema")

    def __init__(self, cls: type[Record], schema: Schema) -> None:
        own, carried = schema["fields"], _JOB_HEAD["fields"]
        *numbers, last = [field["type"] for field in own] or ["int"]
        if not {*numbers, last} <= {"int", "long", "bytes"} or "bytes" in numbers:
            raise TypeError(f"{schema['name']}: before a job come numbers, and bytes at their end")
        names = [field["name"] for field in own]
        # The names must differ, and tell nobody anything: values are taken in order.
        prefixed = [{"name": f"job_{field['name']}", "type": field["type"]} for field in carried]
        fields = [*({"name": field["name"], "type": field["type"]} for field in own), *prefixed]
        layout: Schema = {"type": "record", "name": f"{schema['name']}.job", "fields": fields}
        self.schema = parse(layout)
        self._make = pair_maker_of(cls, names, JobSpec, [field["name"] for field in carried[:-1]], layout)
        self._bytes_at_end = names[-1] if last == "bytes" else ""
        # A number of Avro's, as the length of bytes is: seven bits a byte, the highest set where more follow.
        self._own_end = re.compile(rb"(?:[\x80-\xff]*+[\x00-\x7f]){%d}" % len(own)).match

    def read(self, stream: io.BytesIO, value: bytes) -> Any:
        """The record in ``value``; ``stream`` stands behind its header."""
        record, job, length = self._make(read(stream, self.schema))
        variables_at = stream.tell()
        if length < 0 or variables_at + length != len(value):
            _check_variables(length, variables_at, value)
        found = self._own_end(value, HEADER_LENGTH)
        if found is None:
            raise ValueError("the fields before the job don't end")
        start = found.end() + (len(getattr(record, self._bytes_at_end)) if self._bytes_at_end else 0)
        job.body = value[start:]
        job.variables_at = variables_at - start
        record.job = job
        return record
