"""What became of the jobs of many lines: an import must not end with "nothing heard" where there was news."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from relevo import JobEvent, JobEvents, JobHandle, JobResult, Outcome
from relevo.cli.answers import Answer, Answers
from relevo.cli.refusals import why
from relevo.client.receipts import OFFSET_UNKNOWN
from relevo_schemas import events
from relevo_schemas.codec import job_spec
from relevo_schemas.records import Event


class Log:
    """A log that holds what it is given."""

    def __init__(self) -> None:
        self.events: list[JobEvent] = []

    def add(self, event: Event) -> None:
        self.events.append(JobEvent(0, len(self.events), type(event).__name__, "k", event))

    def read(self, _seconds: float) -> Iterator[JobEvent]:
        taken, self.events = self.events, []
        yield from taken


def answers(log: Log, *, decided: bool = False) -> Answers:
    made = Answers(cast(JobEvents, log), decided_is_enough=decided)
    made.expect(7, JobHandle("k", 0, 100, 0))
    return made


def test_the_last_thing_heard_of_a_job_that_waits_is_told() -> None:
    log = Log()
    waiting = answers(log)
    assert list(waiting.unanswered()) == [Answer(7, "k", 0, "nothing", Outcome.UNKNOWN)]
    log.add(events.JobCreated(1, 1, 0, 100, job_spec(key="k", type="t", variables=b"{}")))
    assert list(waiting.read()) == []
    assert list(waiting.unanswered()) == [Answer(7, "k", 0, "it was created", created=True)]
    log.add(events.JobIncident(2, 1, 0, 101, "k", 1, "HANDLER", "no route"))
    assert list(waiting.read()) == []
    last = "an incident (HANDLER: no route), it waits for a person"
    assert list(waiting.unanswered()) == [Answer(7, "k", 0, last, created=True)]


def test_a_key_that_exists_counts_as_there() -> None:
    log = Log()
    log.add(events.CommandRejected(1, 1, 0, 100, "k", "CreateJob", "ALREADY_EXISTS", "a new key", "READY"))
    (answer,) = answers(log, decided=True).read()
    assert answer == Answer(7, "k", 0, created=False, state="READY")


def test_commands_without_a_known_offset_are_answered_by_their_key() -> None:
    """What time or an election causes names no command, and is nobody's answer."""
    log = Log()
    waiting = Answers(cast(JobEvents, log), decided_is_enough=True)
    for number in (1, 2):
        waiting.expect(number, JobHandle("k", 0, OFFSET_UNKNOWN, 0))
    log.add(events.LeaderElected(1, 1, 0, -1, "n1", "i1"))
    log.add(events.JobTimedOut(2, 1, 0, -1, "k", 1, "LEASE", 1))
    assert list(waiting.read()) == []
    assert [answer.number for answer in waiting.unanswered()] == [1, 2]
    log.add(events.JobCreated(3, 1, 0, 50, job_spec(key="k", type="t", variables=b"{}")))
    log.add(events.CommandRejected(4, 1, 0, 51, "k", "CreateJob", "ALREADY_EXISTS", "a new key", "READY"))
    assert [(answer.number, answer.created) for answer in waiting.read()] == [(1, True), (2, False)]
    assert waiting.pending == 0


def test_a_job_that_ended_is_answered_with_its_result() -> None:
    log = Log()
    waiting = answers(log)
    waiting.expect(8, JobHandle("k", 0, 101, 0))
    log.add(events.JobCreated(1, 1, 0, 100, job_spec(key="k", type="t", variables=b"{}")))
    log.add(events.CommandRejected(2, 1, 0, 101, "k", "CreateJob", "ALREADY_EXISTS", "a new key", "ACTIVE"))
    log.add(events.JobErrored(3, 1, 5, 102, "k", 1, "NO", "not so"))
    result = JobResult("k", "ERRORED", 1, b"", code="NO", message="not so", at=5)
    trouble = "ended as ERRORED NO: not so"
    assert list(waiting.read()) == [
        Answer(7, "k", 0, trouble, created=True, result=result),
        Answer(8, "k", 0, trouble, created=False, state="ACTIVE", result=result),
    ]
    assert waiting.pending == 0


def test_a_job_that_had_ended_before_is_answered_without_its_result() -> None:
    log = Log()
    log.add(
        events.CommandRejected(1, 1, 0, 100, "k", "CreateJob", "ALREADY_EXISTS", "a new key", "COMPLETED")
    )
    (answer,) = answers(log).read()
    assert answer == Answer(7, "k", 0, created=False, state="COMPLETED", result=JobResult("k", "COMPLETED"))


def test_a_refused_command_made_nothing() -> None:
    log = Log()
    log.add(events.CommandRejected(1, 1, 0, 100, "k", "CreateJob", "INVALID", "priority", "101"))
    (answer,) = answers(log).read()
    assert (answer.outcome, answer.created) == (Outcome.NOT_DONE, None)
    assert answer.trouble.startswith("refused: ")


@pytest.mark.parametrize(
    ("reason", "found", "told"),
    [
        ("ALREADY_COMPLETED", "COMPLETED", "it is completed already"),
        ("NOT_RETRYABLE", "READY", "it is READY; only one that is an INCIDENT"),
        ("NOT_FOUND", "nothing", "there is no such job"),
        ("INVALID", "priority 101", "found priority 101"),
    ],
)
def test_refusals_are_told_in_words(reason: str, found: str, told: str) -> None:
    assert told in why(reason, "something", found)
