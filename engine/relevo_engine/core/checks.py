"""Limits on the fields of commands: each check gives None, or what is wrong."""

from __future__ import annotations

from typing import Final, NamedTuple

from relevo_engine.core.refusals import Reason
from relevo_engine.core.rules import Rules
from relevo_schemas.job import TYPE_PATTERN, JobSpec

FOUND_LENGTH_MAX: Final = 120
"""Characters of a bad value that a refusal repeats."""


class Fault(NamedTuple):
    """Why a command can't be taken."""

    reason: Reason
    expected: str
    found: str


def invalid(expected: str, found: object) -> Fault:
    """A field out of range."""
    return Fault(Reason.INVALID, expected, brief(str(found)))


def brief(text: str) -> str:
    """``text``, short enough to be repeated in a refusal."""
    return text if len(text) <= FOUND_LENGTH_MAX else text[:FOUND_LENGTH_MAX] + "…"


def size_of(text: str) -> int:
    """Length in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def cut(text: str, bytes_max: int) -> str:
    """``text``, cut to ``bytes_max`` UTF-8 bytes at a character."""
    if size_of(text) <= bytes_max:
        return text
    return text.encode()[:bytes_max].decode(errors="ignore")


def check_key(rules: Rules, key: str) -> Fault | None:
    """Keys are not empty and not longer than allowed."""
    if 0 < size_of(key) <= rules.key_bytes_max:
        return None
    return invalid(f"key of 1 to {rules.key_bytes_max} bytes", f"{size_of(key)} bytes")


def check_attempt(attempt: int, current: int) -> Fault | None:
    """An attempt that was handed out."""
    if 1 <= attempt <= current:
        return None
    expected = f"attempt from 1 to {current}" if current else "attempt of a job that was handed out"
    return invalid(expected, attempt)


def check_retries(rules: Rules, retries: int) -> Fault | None:
    """The range of retries."""
    if 0 <= retries <= rules.retries_max:
        return None
    return invalid(f"retries from 0 to {rules.retries_max}", retries)


def check_priority(rules: Rules, priority: int) -> Fault | None:
    """The range of priorities."""
    if rules.priority_min <= priority <= rules.priority_max:
        return None
    return invalid(f"priority from {rules.priority_min} to {rules.priority_max}", priority)


def check_lease(rules: Rules, lease_ms: int) -> Fault | None:
    """The range of leases."""
    if rules.lease_ms_min <= lease_ms <= rules.lease_ms_max:
        return None
    return invalid(f"lease_ms from {rules.lease_ms_min} to {rules.lease_ms_max}", lease_ms)


def check_result(rules: Rules, result: bytes) -> Fault | None:
    """The length of a result."""
    if len(result) <= rules.result_bytes_max:
        return None
    return Fault(
        Reason.TOO_LARGE, f"result of at most {rules.result_bytes_max} bytes", f"{len(result)} bytes"
    )


def check_checkpoint(rules: Rules, detail: bytes) -> Fault | None:
    """The length of what a checkpoint stores."""
    if len(detail) <= rules.checkpoint_bytes_max:
        return None
    return Fault(
        Reason.TOO_LARGE, f"detail of at most {rules.checkpoint_bytes_max} bytes", f"{len(detail)} bytes"
    )


def check_name(rules: Rules, field: str, name: str) -> Fault | None:
    """The length of a worker's name or an error code."""
    if size_of(name) <= rules.name_bytes_max:
        return None
    return invalid(f"{field} of at most {rules.name_bytes_max} bytes", f"{size_of(name)} bytes")


def check_type(job_type: str) -> Fault | None:
    """What a type may be called."""
    if TYPE_PATTERN.match(job_type) is not None:
        return None
    return invalid("type of 1 to 100 letters, digits, - and _, beginning with a letter or digit", job_type)


def check_spec(rules: Rules, spec: JobSpec) -> Fault | None:
    """All fields of a job to be created, apart from its key and type."""
    pause_max, time_max = rules.pause_ms_max, rules.time_max_ms
    if not rules.priority_min <= spec.priority <= rules.priority_max:
        return check_priority(rules, spec.priority)
    if not 0 <= spec.retries <= rules.retries_max:
        return check_retries(rules, spec.retries)
    if not rules.lease_ms_min <= spec.lease_ms <= rules.lease_ms_max:
        return check_lease(rules, spec.lease_ms)
    if not 0 <= spec.backoff_ms <= pause_max:
        return invalid(f"backoff_ms from 0 to {pause_max}", spec.backoff_ms)
    if not 0 <= spec.backoff_max_ms <= pause_max:
        return invalid(f"backoff_max_ms from 0 to {pause_max}", spec.backoff_max_ms)
    if not 0 <= spec.run_at <= time_max:
        return invalid(f"run_at from 0 to {time_max} ms", spec.run_at)
    if not 0 <= spec.expires_at <= time_max:
        return invalid(f"expires_at from 0 to {time_max} ms", spec.expires_at)
    if spec.variables_size > rules.variables_bytes_max or spec.headers or spec.correlation_id is not None:
        return _check_sizes(rules, spec)
    return None


def _check_sizes(rules: Rules, spec: JobSpec) -> Fault | None:
    size = spec.variables_size
    if size > rules.variables_bytes_max:
        return Fault(
            Reason.TOO_LARGE, f"variables of at most {rules.variables_bytes_max} bytes", f"{size} bytes"
        )
    if spec.correlation_id is not None:
        size = size_of(spec.correlation_id)
        if size > rules.correlation_id_bytes_max:
            allowed = rules.correlation_id_bytes_max
            return Fault(Reason.TOO_LARGE, f"correlation_id of at most {allowed} bytes", f"{size} bytes")
    if spec.headers:
        count = len(spec.headers)
        if count > rules.headers_max:
            return Fault(Reason.TOO_LARGE, f"headers: at most {rules.headers_max}", f"{count} headers")
        size = sum(size_of(name) + size_of(text) for name, text in spec.headers.items())
        if size > rules.headers_bytes_max:
            return Fault(
                Reason.TOO_LARGE, f"headers of at most {rules.headers_bytes_max} bytes", f"{size} bytes"
            )
    return None
