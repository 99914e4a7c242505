"""`JobSpec`: the part of a job that never changes, kept beside the bytes it came from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: What a type may be called: it becomes part of a Kafka topic's name.
TYPE_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z")
KEY_LENGTH_MAX: Final = 512
"""Longest key in UTF-8 bytes."""
CHECKPOINT_BYTES_MAX: Final = 65_536
"""Longest detail of a checkpoint: with the longest variables, an activation still fits into a record."""


class JobSpec:
    """A job as its creator described it.

    ``body`` is its Avro encoding. Records that carry a job end with these very bytes, so a leader that hands
    a job on copies them and encodes nothing. Make one with `relevo_schemas.codec.job_spec`.

    Attributes:
        key: Identity of the job.
        type: Job type.
        priority: Higher runs earlier.
        retries: Failures answered with another attempt.
        backoff_ms: Pause after the first failure, in milliseconds; doubled for each further one.
        backoff_max_ms: Longest pause, in milliseconds.
        lease_ms: How long a started attempt may run without a sign of life, in milliseconds.
        run_at: Not before this time, in milliseconds since the Unix epoch; 0: at once.
        expires_at: Expires when still open at this time; 0: never.
        correlation_id: The caller's own identifier.
        headers: Carried to the worker as they are.
        body: The Avro encoding of all of it.
        variables_at: Where in it the variables begin, which stand last.
    """

    __slots__ = (
        "backoff_max_ms",
        "backoff_ms",
        "body",
        "correlation_id",
        "expires_at",
        "headers",
        "key",
        "lease_ms",
        "priority",
        "retries",
        "run_at",
        "type",
        "variables_at",
    )

    def __init__(
        self,
        key: str,
        type: str,
        priority: int,
        retries: int,
        backoff_ms: int,
        backoff_max_ms: int,
        lease_ms: int,
        run_at: int,
        expires_at: int,
        correlation_id: str | None,
        headers: Mapping[str, str],
        body: bytes,
        variables_at: int,
    ) -> None:
        self.key = key
        self.type = type
        self.priority = priority
        self.retries = retries
        self.backoff_ms = backoff_ms
        self.backoff_max_ms = backoff_max_ms
        self.lease_ms = lease_ms
        self.run_at = run_at
        self.expires_at = expires_at
        self.correlation_id = correlation_id
        self.headers = headers
        self.body = body
        self.variables_at = variables_at

    @property
    def variables(self) -> bytes:
        """The job's input: JSON, as the creator wrote it."""
        return self.body[self.variables_at :]

    @property
    def variables_size(self) -> int:
        """Length of `variables` in bytes."""
        return len(self.body) - self.variables_at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobSpec) and self.body == other.body

    def __hash__(self) -> int:
        return hash(self.body)

    def __repr__(self) -> str:
        return f"JobSpec(key={self.key!r}, type={self.type!r}, {self.variables_size} bytes of variables)"
