"""What became of the jobs of many lines: an import must not end with "nothing heard" where there was news."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from relevo import JobEvent, JobEvents, JobHandle
from relevo.cli.answers import Answers
from relevo.cli.refusals import why
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
    assert list(waiting.unanswered()) == [(7, "k", "nothing", False, "unknown")]
    log.add(events.JobCreated(1, 1, 0, 100, job_spec(key="k", type="t", variables=b"{}")))
    assert list(waiting.read()) == []
    assert list(waiting.unanswered()) == [(7, "k", "it was created", False, "done")]
    log.add(events.JobIncident(2, 1, 0, 101, "k", 1, "HANDLER", "no route"))
    assert list(waiting.read()) == []
    last = "an incident (HANDLER: no route), it waits for a person"
    assert list(waiting.unanswered()) == [(7, "k", last, False, "done")]


def test_a_key_that_exists_counts_as_there() -> None:
    log = Log()
    log.add(events.CommandRejected(1, 1, 0, 100, "k", "CreateJob", "ALREADY_EXISTS", "a new key", "READY"))
    (answer,) = answers(log, decided=True).read()
    assert (answer.number, answer.trouble, answer.there) == (7, "", True)


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
