"""Reasons for refusing a command. A refusal is an event that changes nothing but the position."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Codes of `CommandRejected.reason`. For unreadable bytes it is a `RecordFault`."""

    ALREADY_EXISTS = "ALREADY_EXISTS"
    """Create: a job with this key is there, open or finished; ``found`` is its state."""
    ALREADY_COMPLETED = "ALREADY_COMPLETED"
    """The job is COMPLETED."""
    ALREADY_FINISHED = "ALREADY_FINISHED"
    """The job ended in another way; ``found`` is how."""
    NOT_FOUND = "NOT_FOUND"
    """No job has this key, or it ended so long ago that it is forgotten; by now a later one may have its key,
    of which a worker's command doesn't speak."""
    STALE_ATTEMPT = "STALE_ATTEMPT"
    """The job has been handed out anew since."""
    NOT_ACTIVE = "NOT_ACTIVE"
    """No attempt of the job is under way."""
    NOT_RETRYABLE = "NOT_RETRYABLE"
    """The job is neither an incident nor does it wait for another attempt."""
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    """The job's type isn't declared and may not be made."""
    WRONG_PARTITION = "WRONG_PARTITION"
    """The key belongs to another partition: the sender's partitioner or partition count differs."""
    INVALID = "INVALID"
    """A field is out of range; ``expected`` names it and says what is allowed."""
    TOO_LARGE = "TOO_LARGE"
    """A field is too long; ``expected`` names it and says what is allowed."""
    INTERNAL = "INTERNAL"
    """Deciding it failed: a bug of the engine. Nothing of the command had an effect."""
