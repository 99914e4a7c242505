"""Which event on the log answers whom: in whatever order it and the delivery report come."""

from __future__ import annotations

import pytest

from relevo.client.answers import Decision, Ending
from relevo.client.receipts import OFFSET_UNKNOWN
from relevo.client.results import JobHandle, JobResult
from relevo.errors import JobNotCompleted, LogGap, Rejected
from relevo_schemas.codec import job_spec
from relevo_schemas.events import (
    CommandRejected,
    JobCancelled,
    JobCompleted,
    JobCreated,
    JobErrored,
    JobExpired,
    JobStarted,
)


def created(source: int) -> JobCreated:
    return JobCreated(1, 1, 1, source, job_spec(key="k", type="t"))


def rejected(source: int, reason: str, found: str = "COMPLETED") -> CommandRejected:
    return CommandRejected(1, 1, 1, source, "k", "CreateJob", reason, "no such job", found)


def test_an_answer_that_is_read_before_the_delivery_report() -> None:
    decision = Decision("k", "CreateJob")
    decision.heard(10, created(5))
    assert not decision.future.done()
    decision.sent_as(5)
    assert decision.future.result(0).created is True
    assert decision.future.result(0).at == 10


def test_the_answer_to_somebody_elses_command_is_not_ours() -> None:
    decision = Decision("k", "CreateJob")
    decision.sent_as(6)
    decision.heard(10, created(5))
    assert not decision.future.done()
    decision.heard(11, rejected(6, "ALREADY_EXISTS", "READY"))
    found = decision.future.result(0)
    assert (found.created, found.state) == (False, "READY")


def test_an_answer_whose_command_kafka_put_who_knows_where() -> None:
    """A repeat that the broker recognises is acknowledged without an offset: waiting for 0 never ends."""
    for answer, made in ((created(5), True), (rejected(5, "ALREADY_EXISTS", "READY"), False)):
        decision = Decision("k", "CreateJob")
        decision.heard(9, JobStarted(1, 1, 1, 4, "k", 1, "w", 30_000))
        decision.sent_as(OFFSET_UNKNOWN)
        assert not decision.future.done()
        decision.heard(10, answer)
        assert decision.future.result(0).created is made


def test_a_refusal_says_why() -> None:
    decision = Decision("k", "CreateJob")
    decision.sent_as(5)
    decision.heard(10, rejected(5, "UNKNOWN_TYPE", "t"))
    with pytest.raises(Rejected, match="UNKNOWN_TYPE") as caught:
        decision.future.result(0)
    assert (caught.value.reason, caught.value.found) == ("UNKNOWN_TYPE", "t")


def test_an_answer_heard_twice_is_one_answer() -> None:
    """The follower goes back for others who wait."""
    decision = Decision("k", "CreateJob")
    decision.sent_as(5)
    decision.heard(10, created(5))
    decision.heard(10, created(5))
    decision.failed(LogGap("gone"))
    assert decision.future.result(0).created is True


@pytest.mark.parametrize(
    ("event", "result"),
    [
        (JobCompleted(1, 1, 9, 7, "k", 2, b"[1]"), JobResult("k", "COMPLETED", 2, b"[1]", at=9)),
        (JobErrored(1, 1, 9, 7, "k", 2, "C", "m"), JobResult("k", "ERRORED", 2, b"", "C", "m", 9)),
        (JobCancelled(1, 1, 9, 7, "k", "why"), JobResult("k", "CANCELLED", message="why", at=9)),
        (JobExpired(1, 1, 9, -1, "k"), JobResult("k", "EXPIRED", at=9)),
    ],
)
def test_whatever_ends_a_job_ends_the_wait(event: JobCompleted, result: JobResult) -> None:
    ending = Ending(JobHandle("k", 0, 5, 0))
    ending.heard(10, JobStarted(1, 1, 1, 6, "k", 1, "w", 30_000))
    assert not ending.future.done()
    ending.heard(11, event)
    assert ending.future.result(0) == result


def test_the_end_of_an_earlier_job_of_the_key_is_not_ours() -> None:
    """A key can be used again once its job is forgotten, and the log still holds what became of that."""
    ending = Ending(JobHandle("k", 0, 5, 0))
    ending.heard(3, JobCompleted(1, 1, 9, 2, "k", 1, b'"last week"'))
    ending.heard(4, JobExpired(2, 1, 9, -1, "k"))
    assert (ending.future.done(), ending.last) == (False, "nothing")
    ending.heard(10, created(5))
    ending.heard(3, JobCompleted(1, 1, 9, 2, "k", 1, b'"last week"'))  # the follower goes back for others
    assert not ending.future.done()
    ending.heard(11, JobCompleted(3, 1, 9, 8, "k", 1, b'"today"'))
    assert ending.future.result(0).value == "today"


def test_a_job_whose_command_kafka_put_who_knows_where_ends_all_the_same() -> None:
    ending = Ending(JobHandle("k", 0, OFFSET_UNKNOWN, 0))
    ending.heard(11, JobCompleted(3, 1, 9, 8, "k", 1, b"1"))
    assert ending.future.result(0).value == 1


def test_a_job_that_had_ended_before_is_not_waited_for() -> None:
    ending = Ending(JobHandle("k", 0, 5, 0))
    ending.heard(10, rejected(5, "ALREADY_EXISTS", "COMPLETED"))
    result = ending.future.result(0)
    assert (result.state, result.result) == ("COMPLETED", None)
    with pytest.raises(JobNotCompleted, match="not known here"):
        _ = result.value


def test_a_job_that_exists_and_is_open_is_waited_for() -> None:
    ending = Ending(JobHandle("k", 0, 5, 0))
    ending.heard(10, rejected(5, "ALREADY_EXISTS", "ACTIVE"))
    assert not ending.future.done()


def test_results_give_values_or_say_why_not() -> None:
    assert JobResult("k", "COMPLETED", 1, b'{"a":1}').value == {"a": 1}
    assert JobResult("k", "COMPLETED", 1, b"").value is None
    with pytest.raises(JobNotCompleted, match="ended as ERRORED: NO_FUNDS: declined"):
        _ = JobResult("k", "ERRORED", 1, b"", "NO_FUNDS", "declined").value
