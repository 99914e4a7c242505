"""Jobs and events as they are shown: a line stays a line, and JSON what it was."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from click.testing import CliRunner

from relevo import JobEvent
from relevo.cli import jobs as jobs_command
from relevo.cli.events import fields_of, line_of
from relevo.cli.output import as_json
from relevo_schemas import events as ev
from relevo_schemas.codec import decode, encode, job_spec
from relevo_schemas.records import Event

TORN = 'Traceback:\n  File "x.py", line 1\r\n\x1b[31mboom\x9b2J'
WHOLE = 'Traceback: File "x.py", line 1 \\x1b[31mboom\\x9b2J'
DEEP = b"[" * 254 + b"]" * 254
JOB = {
    "key": "k\n1",
    "type": "t",
    "state": "INCIDENT",
    "priority": 0,
    "attempt": 1,
    "created_at": 1,
    "error": TORN,
}


class Api:
    """A node with some jobs."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.jobs = jobs

    def get(self, _path: str, _query: Any) -> Any:
        failures = [{"partition": 1, "node": None, "reason": "no\nleader"}]
        return {"jobs": list(self.jobs), "not_reached": failures}

    def job(self, _key: str) -> Any:
        return self.jobs[0]


def run(monkeypatch: pytest.MonkeyPatch, api: Api, *arguments: str) -> Any:
    monkeypatch.setattr(jobs_command, "find_api", lambda *_: api)
    return CliRunner().invoke(jobs_command.command, list(arguments))


def test_a_listed_job_is_one_line_whatever_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors hold stacks, so that one incident took ten lines, and its colours went on to the terminal."""
    ran = run(monkeypatch, Api(JOB, {**JOB, "key": "k2", "error": "x" * 100}), "list")
    lines = ran.stdout.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("k 1")
    assert lines[1].endswith(WHOLE)
    assert lines[2].endswith(" " + "x" * 60 + "…")
    assert ran.stderr == "warning: not complete: partition 1: no leader\n"


def test_a_list_that_may_be_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever cancels what is listed takes it for all there is."""
    for limit, told in (("2", True), ("3", False)):
        ran = run(monkeypatch, Api(JOB, JOB), "list", "--json", "--limit", limit)
        assert len(ran.stdout.splitlines()) == 2
        assert ("these are the oldest 2, there may be more" in ran.stderr) == told


def test_a_job_is_shown_with_a_line_for_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api({**JOB, "headers": {"a": "\x1b[0m\x9b"}, "variables": {"a  b": "\x7f"}})
    assert run(monkeypatch, api, "get", "k").stdout.splitlines() == [
        "key         k 1",
        "type        t",
        "state       INCIDENT",
        "priority    0",
        "attempt     1",
        "created_at  1970-01-01T00:00:00.001Z",
        f"error       {WHOLE}",
        'headers     {"a":"\\u001b[0m\\x9b"}',
        'variables   {"a  b":"\\x7f"}',
    ]


@pytest.mark.parametrize("variables", [DEEP, b'{"wei":12345678901234567890123}'])
def test_a_jobs_variables_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch, variables: bytes) -> None:
    api = Api({"key": "k", "variables": json.loads(variables)})
    found = json.loads(run(monkeypatch, api, "get", "k", "--json").stdout)
    assert found == {"key": "k", "variables": json.loads(variables)}
    assert run(monkeypatch, api, "get", "k").stdout.splitlines()[1] == f"variables  {variables.decode()}"


HEAD = (1, 1, 5, 100)


def event(record: Event) -> JobEvent:
    return JobEvent(0, 7, type(record).__name__, "k\x1b[2J\n", cast(Event, decode(encode(record))))


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (ev.JobCreated(*HEAD, job_spec(key="k", type="t", variables=DEEP)), "variables"),
        (ev.JobCompleted(*HEAD, "k", 1, DEEP), "result"),
        (ev.JobCheckpointed(*HEAD, "k", 1, DEEP), "detail"),
    ],
)
def test_an_event_with_deep_json_is_a_line_of_json(record: Event, name: str) -> None:
    """One job nested as deep as the SDK allows ended every `events tail --json`."""
    line = as_json(fields_of(event(record)))
    assert "\n" not in line
    assert json.loads(line)[name] == json.loads(DEEP)


def test_an_event_is_a_line_whatever_stands_in_it() -> None:
    line = line_of(event(ev.JobIncident(*HEAD, "k", 1, "HANDLER", TORN)))
    assert line.endswith(f"k\\x1b[2J  attempt=1 cause=HANDLER message={WHOLE}")
    assert line.isprintable()
