"""What a caller asks for, checked before anything is sent."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from relevo.errors import InvalidRequest
from relevo.names import check_type
from relevo_schemas.codec import encode_json, job_spec
from relevo_schemas.errors import RecordError
from relevo_schemas.job import KEY_LENGTH_MAX, JobSpec

# What the engine refuses anyway, said before anything is sent.
VARIABLES_BYTES_MAX: Final = 900_000
"""Longest variables in bytes: every record that carries the job must fit."""
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 16_384
PRIORITY_MAX: Final = 100
RETRIES_MAX: Final = 1_000
LEASE_MIN_S: Final = 1
LEASE_MAX_S: Final = 86_400
PAUSE_MAX_S: Final = 30 * 86_400
DELAY_MAX_S: Final = 100 * 366 * 86_400
MOMENT_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999; times beyond it are slips, such as nanoseconds for milliseconds."""
CORRELATION_ID_MAX: Final = 512
TEXT_MAX: Final = 4_096
"""Longest reason, in bytes."""


PRIORITY: Final = 0
RETRIES: Final = 3
BACKOFF_S: Final = 1.0
BACKOFF_MAX_S: Final = 300.0
LEASE_S: Final = 30.0


class _Filled(NamedTuple):
    """What a job gets where its creation doesn't say, checked and as it is sent."""

    priority: int
    retries: int
    backoff_ms: int
    backoff_max_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefaults:
    """What a client gives the jobs of one type where their creation doesn't say; None: the package's default.

    Attributes:
        priority: Higher runs earlier. Default 0.
        retries: How many failures are answered with another attempt. Default 3.
        backoff: Pause after the first failure in seconds, doubled for each further one. Default 1.
        backoff_max: Longest pause in seconds. Default 300.
        lease: How long a started attempt may run without a sign of life, in seconds. Default 30.

    Raises:
        InvalidRequest: A value can't be right.
    """

    priority: int | None = None
    retries: int | None = None
    backoff: float | None = None
    backoff_max: float | None = None
    lease: float | None = None
    # Worked out once, not for each job.
    _filled: _Filled = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        filled = _Filled(
            check_priority(PRIORITY if self.priority is None else self.priority),
            check_retries(RETRIES if self.retries is None else self.retries),
            _ms("backoff", BACKOFF_S if self.backoff is None else self.backoff),
            _ms("backoff_max", BACKOFF_MAX_S if self.backoff_max is None else self.backoff_max),
            _lease_ms(LEASE_S if self.lease is None else self.lease),
        )
        object.__setattr__(self, "_filled", filled)  # frozen for everybody else


def _lease_ms(lease: float) -> int:
    return _ms("lease", lease, least_s=LEASE_MIN_S, most_s=LEASE_MAX_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be created. What is None is as the client has it for the type, see `JobDefaults`.

    Attributes:
        type: Job type.
        variables: The job's input, anything with a JSON form.
        key: The job's identity; None: a new UUIDv7. Creating a key twice gives the same job.
        priority: Higher runs earlier.
        retries: How many failures are answered with another attempt.
        backoff: Pause after the first failure in seconds, doubled for each further one.
        backoff_max: Longest pause in seconds.
        lease: How long a started attempt may run without a sign of life, in seconds.
        run_at: Not before this time: a datetime with a time zone, or milliseconds since the Unix epoch.
        delay: Not before so many seconds from now, by this machine's clock. Not together with ``run_at``.
        expires_at: A job still open then becomes EXPIRED: as ``run_at``.
        correlation_id: The caller's own identifier, handed to the worker.
        headers: Handed to the worker as they are.
    """

    type: str
    variables: Any = None
    key: str | None = None
    priority: int | None = None
    retries: int | None = None
    backoff: float | None = None
    backoff_max: float | None = None
    lease: float | None = None
    run_at: datetime | int | None = None
    delay: float | None = None
    expires_at: datetime | int | None = None
    correlation_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def spec(self, defaults: JobDefaults | None = None) -> JobSpec:
        """The job as it is sent.

        Args:
            defaults: For what the job itself doesn't say; None: the package's.

        Raises:
            InvalidRequest: Something in it can't be right; the message says what.
        """
        check_type(self.type)
        if self.run_at is not None and self.delay is not None:
            raise InvalidRequest("run_at and delay exclude each other")
        if self.correlation_id is not None:
            _text("correlation_id", self.correlation_id, CORRELATION_ID_MAX)
        run_at = _moment("run_at", self.run_at)
        if self.delay is not None:
            run_at = round(time.time() * 1_000) + _ms("delay", self.delay, most_s=DELAY_MAX_S)
        filled = (_PLAIN if defaults is None else defaults)._filled
        backoff_ms = filled.backoff_ms if self.backoff is None else _ms("backoff", self.backoff)
        backoff_max_ms = (
            filled.backoff_max_ms if self.backoff_max is None else _ms("backoff_max", self.backoff_max)
        )
        try:
            return job_spec(
                key=new_key() if self.key is None else check_key(self.key),
                type=self.type,
                variables=encode_variables(self.variables),
                priority=filled.priority if self.priority is None else check_priority(self.priority),
                retries=filled.retries if self.retries is None else check_retries(self.retries),
                backoff_ms=backoff_ms,
                backoff_max_ms=max(backoff_ms, backoff_max_ms),
                lease_ms=filled.lease_ms if self.lease is None else _lease_ms(self.lease),
                run_at=run_at,
                expires_at=_moment("expires_at", self.expires_at),
                correlation_id=self.correlation_id,
                headers=_headers(self.headers),
            )
        except RecordError as error:
            raise InvalidRequest(str(error)) from error


def check_defaults(defaults: Mapping[str, JobDefaults] | None) -> dict[str, JobDefaults]:
    """Defaults by job type, where they are.

    Raises:
        InvalidRequest: A name can't be a job type's, or what stands there is no `JobDefaults`.
    """
    for job_type, given in (defaults or {}).items():
        check_type(job_type)
        if not isinstance(given, JobDefaults):
            raise InvalidRequest(f"the defaults of {job_type!r} must be a JobDefaults, not {given!r:.100}")
    return dict(defaults or {})


def new_key() -> str:
    """A UUID of version 7 (RFC 9562): its order is the order of creation, to the millisecond."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF000 << 64) | 0x7000 << 64
    value = value & ~(0xC000 << 48) | 0x8000 << 48
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def check_key(key: str) -> str:
    """The key itself, where it can be one.

    Raises:
        InvalidRequest: It is empty, too long, or not text.
    """
    _text("key", key, KEY_LENGTH_MAX)
    if not key:
        raise InvalidRequest("key must not be empty: leave it out for a new one")
    return key


def encode_variables(variables: Any) -> bytes:
    """Variables as JSON.

    Raises:
        InvalidRequest: They have no JSON form, are nested too deep, or are too large.
    """
    if variables is None:
        return b"{}"
    try:
        encoded = encode_json(variables)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"variables have no JSON form: {error}") from error
    if len(encoded) > VARIABLES_BYTES_MAX:
        raise InvalidRequest(
            f"variables have {len(encoded)} bytes, {VARIABLES_BYTES_MAX} are allowed: "
            f"store them elsewhere and send where"
        )
    return encoded


def check_retries(retries: int) -> int:
    """The number itself, where it can be a number of retries.

    Raises:
        InvalidRequest: It can't.
    """
    return _integer("retries", retries, 0, RETRIES_MAX)


def check_priority(priority: int) -> int:
    """The number itself, where it can be a priority.

    Raises:
        InvalidRequest: It can't.
    """
    return _integer("priority", priority, -PRIORITY_MAX, PRIORITY_MAX)


def check_reason(reason: str) -> str:
    """The text itself, where it can be a reason for people to read.

    Raises:
        InvalidRequest: It can't.
    """
    return _text("reason", reason, TEXT_MAX)


def _text(name: str, value: Any, bytes_max: int) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name} can't be written as UTF-8: {error.reason}") from error
    if size > bytes_max:
        raise InvalidRequest(f"{name} has {size} bytes, {bytes_max} are allowed")
    return value


def _integer(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise InvalidRequest(f"{name} must be between {least} and {most}, not {value}")
    return value


def _ms(name: str, seconds: Any, *, least_s: float = 0, most_s: float = PAUSE_MAX_S) -> int:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise InvalidRequest(f"{name} must be a number of seconds, not {seconds!r}")
    if not least_s <= seconds <= most_s:
        raise InvalidRequest(f"{name} must be between {least_s:g} and {most_s:g} seconds, not {seconds!r}")
    return round(seconds * 1_000)


def _moment(name: str, value: datetime | int | None) -> int:
    """A point in time in milliseconds since the Unix epoch; 0 for none."""
    match value:
        case None:
            return 0
        case datetime():
            if value.tzinfo is None:
                raise InvalidRequest(
                    f"{name} has no time zone: use datetime.now(timezone.utc) or .astimezone()"
                )
            ms = round(value.timestamp() * 1_000)
        case bool():
            raise InvalidRequest(
                f"{name} must be a datetime or milliseconds since the Unix epoch, not {value!r}"
            )
        case int():
            ms = value
        case _:
            raise InvalidRequest(
                f"{name} must be a datetime or milliseconds since the Unix epoch, not {value!r}"
            )
    if not 0 <= ms <= MOMENT_MAX_MS:
        raise InvalidRequest(f"{name} is out of range: {ms} milliseconds since the Unix epoch")
    return ms


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not headers:
        return {}
    if not isinstance(headers, Mapping):
        raise InvalidRequest(f"headers must map text to text, not be a {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise InvalidRequest(f"there are {len(headers)} headers, {HEADERS_MAX} are allowed")
    size = 0
    for name, value in headers.items():
        size += len(_text("a header's name", name, HEADERS_BYTES_MAX).encode())
        size += len(_text(f"header {name!r}", value, HEADERS_BYTES_MAX).encode())
    if size > HEADERS_BYTES_MAX:
        raise InvalidRequest(f"headers have {size} bytes, {HEADERS_BYTES_MAX} are allowed")
    return dict(headers)


_PLAIN: Final = JobDefaults()
