"""What can't be right is refused before it is sent: by the log, its creator might never hear of it."""

from __future__ import annotations

import re
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from relevo.client.requests import VARIABLES_BYTES_MAX, JobDefaults, NewJob, check_defaults, new_key
from relevo.errors import InvalidRequest


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def job(**fields: Any) -> NewJob:
    return NewJob(**{"type": "send-email", **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"type": ""}, "job type ''"),
        ({"type": "a.b"}, "job type 'a.b'"),
        ({"type": "../x"}, "job type"),
        ({"type": "x" * 101}, "100 at most"),
        ({"key": ""}, "must not be empty"),
        ({"key": "k" * 513}, "513 bytes, 512 are allowed"),
        ({"key": "é" * 257}, "514 bytes"),
        ({"key": 7}, "key must be text, not int"),
        ({"key": "\ud800"}, "UTF-8"),
        ({"variables": object()}, "no JSON form"),
        ({"variables": {1: "a"}}, "no JSON form"),
        ({"variables": nested(300)}, "no JSON form"),
        ({"variables": {"x": float("nan")}}, "no JSON form: it holds NaN or an infinite number"),
        ({"variables": [None, {"x": float("-inf")}]}, "no JSON form: it holds NaN"),
        ({"variables": "x" * VARIABLES_BYTES_MAX}, "are allowed: store them elsewhere"),
        ({"priority": 101}, "priority must be between -100 and 100"),
        ({"priority": 1.5}, "whole number"),
        ({"priority": True}, "whole number"),
        ({"retries": -1}, "retries must be between 0"),
        ({"backoff": -0.1}, "backoff must be between 0"),
        ({"backoff": "1"}, "number of seconds"),
        ({"backoff": float("nan")}, "backoff must be between"),
        ({"lease": 0}, "lease must be between 1"),
        ({"lease": float("inf")}, "lease must be between"),
        ({"run_at": datetime(2030, 1, 1)}, "no time zone"),
        ({"run_at": -1}, "out of range"),
        ({"run_at": time.time_ns()}, "out of range"),
        ({"run_at": 1.5}, "milliseconds"),
        ({"run_at": 5, "delay": 5}, "exclude each other"),
        ({"delay": -1}, "delay must be between 0"),
        ({"expires_at": "tomorrow"}, "expires_at must be a datetime"),
        ({"correlation_id": "c" * 513}, "correlation_id has 513 bytes"),
        ({"headers": {"a": 1}}, "header 'a' must be text"),
        ({"headers": {"a": "x" * 20_000}}, "are allowed"),
        ({"headers": {str(n): "" for n in range(65)}}, "65 headers"),
        ({"headers": ["a"]}, "headers must map"),
    ],
)
def test_what_cannot_be_right_is_refused_with_a_reason(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        job(**fields).spec()


def test_a_job_is_sent_as_it_was_described() -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    spec = job(
        key="order-1",
        variables={"to": "ana"},
        priority=-5,
        retries=0,
        backoff=0.25,
        backoff_max=10,
        lease=1.5,
        run_at=moment,
        expires_at=1_900_000_000_000,
        correlation_id="c",
        headers={"traceparent": "00-1"},
    ).spec()
    assert (spec.key, spec.type, spec.variables) == ("order-1", "send-email", b'{"to":"ana"}')
    assert (spec.priority, spec.retries, spec.backoff_ms, spec.backoff_max_ms) == (-5, 0, 250, 10_000)
    assert (spec.lease_ms, spec.run_at, spec.expires_at) == (1_500, 1_893_553_445_678, 1_900_000_000_000)
    assert (spec.correlation_id, dict(spec.headers)) == ("c", {"traceparent": "00-1"})


def test_a_delay_counts_from_now() -> None:
    before = round(time.time() * 1_000)
    spec = job(delay=60).spec()
    assert before + 60_000 <= spec.run_at <= round(time.time() * 1_000) + 60_000


def test_no_variables_are_an_empty_object() -> None:
    """A handler that does `**job.variables` would fail on null."""
    assert job().spec().variables == b"{}"


def test_new_keys_are_uuids_of_version_7_in_order_of_time() -> None:
    keys = [new_key() for _ in range(1_000)]
    assert len(set(keys)) == 1_000
    parsed = [uuid.UUID(key) for key in keys]
    assert {(each.version, each.variant) for each in parsed} == {(7, uuid.RFC_4122)}
    times = [each.int >> 80 for each in parsed]
    assert times == sorted(times)
    assert abs(times[-1] - time.time() * 1_000) < 60_000


def test_what_a_job_does_not_say_its_type_says() -> None:
    defaults = JobDefaults(priority=7, retries=9, backoff=2, backoff_max=20, lease=60)
    spec = NewJob(type="t", retries=0).spec(defaults)
    assert (spec.priority, spec.retries, spec.backoff_ms, spec.backoff_max_ms, spec.lease_ms) == (
        7, 0, 2_000, 20_000, 60_000
    )  # fmt: skip
    plain = NewJob(type="t").spec()
    assert (plain.priority, plain.retries, plain.backoff_ms, plain.backoff_max_ms, plain.lease_ms) == (
        0, 3, 1_000, 300_000, 30_000
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"retries": -1}, "retries must be between 0"),
        ({"priority": 101}, "priority must be between -100"),
        ({"backoff": -1}, "backoff must be between 0"),
        ({"backoff_max": "60"}, "backoff_max must be a number"),
        ({"lease": 0}, "lease must be between 1"),
    ],
)
def test_defaults_that_can_not_be_are_refused_before_any_job(values: dict[str, Any], says: str) -> None:
    """Else each create of the type fails, long after the program has started."""
    with pytest.raises(InvalidRequest, match=says):
        JobDefaults(**values)


def test_defaults_belong_to_types() -> None:
    with pytest.raises(InvalidRequest, match="type"):
        check_defaults({"no type": JobDefaults()})
    with pytest.raises(InvalidRequest, match="must be a JobDefaults"):
        check_defaults({"mail": {"retries": 3}})  # type: ignore[dict-item]
