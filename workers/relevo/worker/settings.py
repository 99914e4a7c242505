"""What a worker's settings may be; what can't be right is refused where it is given, not at the first job."""

from __future__ import annotations

from typing import Any

from relevo.client.requests import LEASE_MAX_S, LEASE_MIN_S
from relevo.dedup.store import DedupStore, check_seconds
from relevo.errors import ConfigurationError


def check_times(job_type: str, *, lease: Any, timeout: Any, ttl: Any) -> None:
    """Times of a job type in seconds; None is left to others.

    Raises:
        ConfigurationError: One is no number, or not within the bounds. The engine refuses other leases.
    """
    for name, seconds in (("lease", lease), ("timeout", timeout), ("ttl", ttl)):
        if seconds is None:
            continue
        what = f"{name} of {job_type!r}"
        if not _is_number(seconds):
            raise ConfigurationError(f"{what} must be a number of seconds, not {seconds!r}")
        if name != "lease":
            check_seconds(what, seconds)
        elif not LEASE_MIN_S <= seconds <= LEASE_MAX_S:
            raise ConfigurationError(
                f"{what} must be between {LEASE_MIN_S} and {LEASE_MAX_S:,} seconds, not {seconds!r}"
            )


def check_counts(job_type: str, **counts: Any) -> None:
    """Numbers of a job type by their names; None is left to others.

    Raises:
        ConfigurationError: One is no whole number, or below 1.
    """
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise ConfigurationError(
                f"{name} of {job_type!r} must be at least 1, and a whole number, not {count!r}"
            )


def check_process(*, drain: Any, suspect_after: Any) -> None:
    """Settings of a whole process.

    Raises:
        ConfigurationError: One can't be right.
    """
    if suspect_after is not None and (type(suspect_after) is not int or suspect_after < 1):
        raise ConfigurationError(
            f"suspect_after must be a whole number from 1 on, or None, not {suspect_after!r}"
        )
    if not _is_number(drain) or not 0 <= drain < float("inf"):
        raise ConfigurationError(f"drain must not be negative, and a number of seconds, not {drain!r}")


def check_store(dedup: Any) -> None:
    """A dedup store, or None.

    Raises:
        ConfigurationError: It is something else, such as a store's address or its class.
    """
    if dedup is None or isinstance(dedup, DedupStore):
        return
    # Not the thing itself: an address may hold a password.
    found = (
        f"the class {dedup.__name__}"
        if isinstance(dedup, type)
        else f"a value of type {type(dedup).__name__}"
    )
    raise ConfigurationError(
        f"the dedup store must be an object such as relevo.RedisDedupStore('redis://…'), or None, not {found}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


__all__ = ["check_counts", "check_process", "check_store", "check_times"]
