"""What became of the jobs of many lines: an import must not end with "nothing heard" where there was news."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from relevo import JobEvent, JobEvents, JobHandle
from relevo.cli.answers import Answers
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
    assert [(answer.number, answer.there) for answer in waiting.read()] == [(1, False), (2, True)]
    assert waiting.pending == 0


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
