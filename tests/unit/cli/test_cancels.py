"""Cancelling many jobs: each is told, and none is passed over without a word."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, cast

import pytest
from click.testing import CliRunner

from relevo import Client, JobHandle
from relevo.cli import jobs as jobs_command
from relevo.cli.job_lines import BadLine
from relevo.cli.retries import cancel_all
from relevo.errors import (
    Closed,
    DecisionTimeout,
    InvalidRequest,
    NotSent,
    OutcomeUnknown,
    QueueFull,
    Refused,
    Rejected,
    RelevoError,
    Unreachable,
)


class Jobs:
    """A client whose cancels end as they are told."""

    def __init__(self, **errors: RelevoError) -> None:
        self.errors = errors
        self.tried: list[str] = []
        self.reasons: set[str] = set()

    def cancel(self, key: str, reason: str, *, wait: str, timeout: float) -> JobHandle:
        assert wait == "decided"
        self.tried.append(key)
        self.reasons.add(reason)
        if key in self.errors:
            raise self.errors[key]
        return JobHandle(key, 0, 1, 0)


def run(jobs: Jobs, keys: Iterable[str | BadLine], *, json_: bool = False) -> int:
    return cancel_all(cast(Client, jobs), keys, "why", timeout_s=1, json_=json_)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Rejected("b", "CancelJob", "NOT_FOUND", "a job", "none"), "not_done"),
        (InvalidRequest("key must not be empty"), "not_done"),
        (DecisionTimeout("the engine has not decided it"), "unknown"),
        (OutcomeUnknown("no acknowledgement"), "unknown"),
        (Refused("not authorised"), "not_done"),
        (NotSent("it never left"), "not_done"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_one_that_is_not_cancelled_does_not_hold_up_the_others(
    capsys: pytest.CaptureFixture[str], error: RelevoError, outcome: str
) -> None:
    """The first undecided one ended it, and nobody heard of the others."""
    jobs = Jobs(b=error)
    assert run(jobs, "abc") == 1
    out, err = capsys.readouterr()
    assert jobs.tried == ["a", "b", "c"]
    assert jobs.reasons == {"why"}
    assert out == "a cancelled\nc cancelled\n"
    told = err.splitlines()
    assert told[0].startswith("Error: job 'b'")
    assert ("[outcome=unknown retry=same]" in told[0]) == (outcome == "unknown")
    assert told[1].startswith(f"2 cancelled, 1 {'unknown' if outcome == 'unknown' else 'not'} in ")
    assert run(jobs, "abc", json_=True) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["key"], line["outcome"]) for line in lines] == [
        ("a", "done"),
        ("b", outcome),
        ("c", "done"),
    ]


@pytest.mark.parametrize(
    ("error", "code"), [(Unreachable("away"), 6), (QueueFull("full"), 1), (Closed("shut"), 1)]
)
def test_where_kafka_is_away_it_ends_and_names_the_keys_not_tried(
    capsys: pytest.CaptureFixture[str], error: RelevoError, code: int
) -> None:
    jobs = Jobs(b=error)
    assert run(jobs, ["a", "b", "c c", "d\n"], json_=True) == code
    assert jobs.tried == ["a", "b"]
    out, err = capsys.readouterr()
    assert "Error: job 'b': " in err
    assert err.splitlines()[-1] == "ended early, 2 not tried: 'c c', 'd\\n'"
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["key"], line["outcome"]) for line in lines] == [
        ("a", "done"), ("b", "not_done"), ("c c", "not_done"), ("d\n", "not_done"),
    ]  # fmt: skip
    assert lines[2]["error"].startswith("not tried")
    assert lines[2]["retry"] == error.retry


def test_one_alone_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Jobs(), ["a\x1b[2J b"]) == 0
    assert capsys.readouterr() == ("a\\x1b[2J b cancelled\n", "")


def test_a_key_that_is_no_unicode_is_told_and_holds_up_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    odd = "\udcff"
    jobs = Jobs(**{odd: InvalidRequest("key can't be written as UTF-8")})
    assert run(jobs, [odd, "b"], json_=True) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["key"] for line in lines] == [odd, "b"]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """What the command finds instead of Kafka."""
    jobs = Jobs()
    monkeypatch.setattr(jobs_command, "_client", lambda *_: nullcontext(jobs))
    return jobs


def invoke(*arguments: str, given: str = "") -> Any:
    return CliRunner().invoke(jobs_command.command, ["cancel", *arguments], input=given)


def test_keys_come_from_standard_input_whatever_is_in_them(client: Jobs) -> None:
    """Through `jq | xargs`, a key with a space cancelled two other jobs."""
    keys = ["a b", "--reason", "it's", '"', "two\nlines", "-", "*"]
    given = "".join(json.dumps({"key": key, "state": "INCIDENT"}) + "\n" for key in keys)
    ran = invoke("-", "--reason", "why", given=given + '"text"\n')
    assert ran.exit_code == 0, ran.output
    assert client.tried == [*keys, "text"]


def test_a_line_without_a_key_is_told_and_the_others_are_done(client: Jobs) -> None:
    ran = invoke("-", "--json", given='{"key":"a"}\norder-1\n{"key":"b"}\n')
    assert ran.exit_code == 1
    assert client.tried == ["a", "b"]
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [line.get("key") or line["line"] for line in lines] == ["a", 2, "b"]
    assert "Error: line 2: it isn't JSON" in ran.stderr


def test_standard_input_stands_alone(client: Jobs) -> None:
    assert "- stands alone" in invoke("-", "a").stderr
    assert client.tried == []


def test_a_reason_that_can_not_be_is_told_once_before_anything_is_asked(client: Jobs) -> None:
    ran = invoke("a", "b", "--reason", "x" * 5_000)
    assert isinstance(ran.exception, InvalidRequest)
    assert client.tried == []
