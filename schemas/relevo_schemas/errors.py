"""What can be wrong with the bytes of a record."""

from __future__ import annotations

from enum import StrEnum


class RecordFault(StrEnum):
    """Kinds of unreadable record; the value goes into events and metrics."""

    NOT_A_RECORD = "NOT_A_RECORD"
    """The value doesn't begin with the two marker bytes of Avro's single-object encoding."""
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
    """The fingerprint belongs to no schema of this version."""
    DAMAGED = "DAMAGED"
    """The body doesn't fit its schema: truncated, too long, or not what it says."""
    OVERSIZED = "OVERSIZED"
    """The record is longer than allowed."""


class RecordError(ValueError):
    """The bytes are not a record that can be read; `fault` says in which way."""

    def __init__(self, fault: RecordFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
