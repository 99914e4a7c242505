"""What handlers are given."""

from __future__ import annotations

import threading

import pytest

from relevo.errors import VariablesError
from relevo.worker.job import Fail, Job, JobError
from tests.unit.workers.fakes import activation


def test_a_job_tells_what_its_creator_said() -> None:
    job = Job(
        activation(
            "order-1",
            attempt=2,
            retries=1,
            variables=b'{"a":1}',
            correlation_id="c",
            headers={"h": "v"},
            priority=7,
        )
    )
    assert (job.key, job.type, job.attempt, job.retries_left) == ("order-1", "send-email", 2, 1)
    assert (job.variables, job.correlation_id, dict(job.headers), job.priority) == (
        {"a": 1},
        "c",
        {"h": "v"},
        7,
    )


def test_the_idempotency_key_is_the_same_for_all_attempts() -> None:
    assert {Job(activation("order-1", attempt=n)).idempotency_key for n in (1, 2, 9)} == {"workflow-order-1"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("order-1", "workflow-order-1"),
        ("shop:7/line@2=x", "workflow-shop:7/line@2=x"),
        ("two words", "workflow-two%20words"),
        ("100%", "workflow-100%25"),
        ('a"b,c', "workflow-a%22b%2Cc"),
        ("línea\r\nX-Evil: 1", "workflow-l%C3%ADnea%0D%0AX-Evil:%201"),
    ],
)
def test_the_idempotency_header_holds_every_key(key: str, value: str) -> None:
    """An HTTP client refuses such a header, or a server reads another one out of it."""
    assert Job(activation(key)).idempotency_headers == {"Idempotency-Key": value}


@pytest.mark.parametrize("raw", [b"{", b"\xff", b"[" * 2_000 + b"]" * 2_000, b"NaN", b"{} {}"])
def test_variables_that_are_not_json_say_so(raw: bytes) -> None:
    with pytest.raises(VariablesError, match="variables of job 'k' can't be read as JSON"):
        _ = Job(activation("k", variables=raw)).variables


def test_a_lost_job_wakes_who_waits_for_that() -> None:
    job = Job(activation("k"))
    assert not job.lost
    assert not job.wait_lost(0)
    threading.Timer(0.01, job._mark_lost, ("cancelled",)).start()
    assert job.wait_lost(30)
    assert (job.lost, job.lost_reason) == (True, "cancelled")


@pytest.mark.parametrize("pause", [-1, float("nan")])
def test_fail_refuses_what_is_no_pause(pause: float) -> None:
    with pytest.raises(ValueError, match="negative"):
        Fail("no", retry_in=pause)


def test_a_business_error_reads_well() -> None:
    assert str(JobError("NO_FUNDS", "card declined")) == "NO_FUNDS: card declined"
    assert str(JobError("NO_FUNDS")) == "NO_FUNDS"
