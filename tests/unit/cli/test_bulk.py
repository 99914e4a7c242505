"""Many creates: one object for each line, when what was waited for is known, and never two."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, cast

import pytest

from relevo import BulkResult, Client, JobEvent, JobHandle, NewJob
from relevo.cli import bulk
from relevo.errors import Refused
from relevo_schemas import events as ev
from relevo_schemas.codec import job_spec
from relevo_schemas.records import Event


class Kafka:
    """A client that takes every job, and the log that answers it."""

    bootstrap = "here"
    cluster = "relevo"
    kafka_options: Mapping[str, Any] = {}

    def __init__(self, *turns: list[Event] | BaseException) -> None:
        self.turns = list(turns)
        self.refused: set[str] = set()

    def create_many(self, jobs: Iterable[NewJob], *, timeout: float) -> Iterator[BulkResult]:
        for index, job in enumerate(jobs):
            assert job.key is not None
            if job.key in self.refused:
                yield BulkResult(index, job.key, error=Refused("not authorised"))
            else:
                yield BulkResult(index, job.key, JobHandle(job.key, 3, 100 + index, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, _seconds: float) -> Iterator[JobEvent]:
        turn = self.turns.pop(0) if self.turns else []
        if isinstance(turn, BaseException):
            raise turn
        for event in turn:
            key = event.job.key if isinstance(event, ev.JobCreated) else getattr(event, "key", "")
            yield JobEvent(3, 0, type(event).__name__, key, event)


Run = Callable[..., bool]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(kafka: Kafka, keys: Iterable[str], *, wait: str, json_: bool = True) -> bool:
        monkeypatch.setattr(bulk, "JobEvents", lambda *_, **__: kafka)
        lines = "".join(json.dumps({"type": "t", "key": key}) + "\n" if key else "bad\n" for key in keys)
        file = io.BytesIO(lines.encode())
        return bulk.create_lines(cast(Client, kafka), file, wait=wait, timeout_s=0.05, json_=json_)

    return run


def created(key: str, source: int) -> Event:
    return ev.JobCreated(1, 1, 0, source, job_spec(key=key, type="t", variables=b"{}"))


def there(key: str, source: int, state: str) -> Event:
    return ev.CommandRejected(1, 1, 0, source, key, "CreateJob", "ALREADY_EXISTS", "a new key", state)


def objects(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_decided_line_is_one_object(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """There were two for a job that was refused, and none said whether a job had been there already."""
    refused = ev.CommandRejected(1, 1, 0, 102, "c", "CreateJob", "INVALID", "priority", "101")
    kafka = Kafka([there("b", 101, "READY"), created("a", 100)], [refused])
    kafka.refused = {"d"}
    assert not run(kafka, ["a", "b", "c", "d", ""], wait="decided")
    told = objects(capsys)
    found = {each["line"]: each for each in told}
    assert len(found) == len(told) == 5
    assert found[1] == {
        "line": 1, "key": "a", "outcome": "done", "partition": 3, "created": True, "state": None,
        "result": None,
    }  # fmt: skip
    assert (found[2]["outcome"], found[2]["created"], found[2]["state"]) == ("done", False, "READY")
    assert (found[3]["outcome"], found[3]["created"], found[3]["retry"]) == ("not_done", None, "stop")
    assert (found[4]["error"], found[4]["outcome"]) == ("not authorised", "not_done")
    assert "it isn't JSON" in found[5]["error"]


def test_a_line_whose_job_ended_is_one_object_with_its_result(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = [
        ev.JobCompleted(1, 1, 0, 110, "a", 2, b'{"sum":12345678901234567890123}'),
        ev.JobErrored(1, 1, 0, 111, "b", 1, "NO", "not so"),
    ]
    kafka = Kafka([created("a", 100), created("b", 101), there("c", 102, "COMPLETED")], ended)
    assert not run(kafka, "abc", wait="result")
    told = objects(capsys)
    found = {each["line"]: each for each in told}
    assert len(found) == len(told) == 3
    assert (found[1]["outcome"], found[1]["created"]) == ("done", True)
    result = {"sum": 12345678901234567890123}
    completed = {"state": "COMPLETED", "attempt": 2, "result": result, "code": None, "message": None}
    assert found[1]["result"] == completed
    assert (found[2]["outcome"], found[2]["result"]["state"], found[2]["result"]["code"]) == (
        "done",
        "ERRORED",
        "NO",
    )
    assert found[2]["error"] == "ended as ERRORED NO: not so"
    assert (found[3]["created"], found[3]["state"], found[3]["result"]["state"]) == (
        False,
        "COMPLETED",
        "COMPLETED",
    )


def test_what_is_only_accepted_is_told_at_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Kafka(), "ab", wait="accepted")
    assert objects(capsys) == [{"line": n, "key": key, "partition": 3} for n, key in ((1, "a"), (2, "b"))]


def test_people_are_told_of_jobs_that_are_there(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    kafka = Kafka([created("a", 100), there("b\n2", 101, "INCIDENT")])
    assert run(kafka, ["a", "b\n2"], wait="decided", json_=False)
    out, err = capsys.readouterr()
    assert out == "line 2: b 2 already there: INCIDENT\n"
    assert "2 accepted, 1 of them already there" in err


def test_one_that_is_not_answered_in_time_is_one_object(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert not run(Kafka([created("a", 100), there("c", 102, "READY")]), "abc", wait="result")
    found = {each["line"]: each for each in objects(capsys)}
    assert [(each["outcome"], each["created"], each["state"], each["retry"]) for each in found.values()] == [
        ("unknown", None, None, "same"), ("done", True, None, "same"), ("done", False, "READY", "same"),
    ]  # fmt: skip
    assert "last heard: it was created" in found[1]["error"]


def test_an_interruption_leaves_no_object_without_an_answer(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script would take what it finds there for what became of the job."""
    with pytest.raises(KeyboardInterrupt):
        run(Kafka([created("b", 101)], KeyboardInterrupt()), "abc", wait="decided")
    out, err = capsys.readouterr()
    assert [json.loads(line)["key"] for line in out.splitlines()] == ["b"]
    assert "3 accepted; stopped at line 3; what became of 2 of those accepted was not waited for" in err


class Closing(io.StringIO):
    """Standard output whose reader goes away after some lines."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self.left = lines

    def write(self, text: str) -> int:
        if not self.left:
            raise BrokenPipeError
        self.left -= text.count("\n")
        return super().write(text)


def test_where_it_stopped_is_told_when_nobody_reads_on(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`relevo jobs create - --json | head` left an import half done, without a word."""
    monkeypatch.setattr(sys, "stdout", Closing(3))
    with pytest.raises(BrokenPipeError):
        run(Kafka(), "abcdefgh", wait="accepted")
    assert capsys.readouterr().err == "4 accepted; stopped at line 4\n"
