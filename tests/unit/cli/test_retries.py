"""Retrying all incidents: each once, in pages, told one by one; what failed is said in fields too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

from relevo import BulkResult, Client, JobHandle
from relevo.cli import retries
from relevo.cli.failures import fields_of
from relevo.cli.retries import Incidents, retry_all
from relevo.errors import OutcomeUnknown, QueueFull, Rejected, RelevoError, Unreachable
from relevo_engine.api.client import ApiClient, ApiError
from relevo_engine.errors import SettingsError, UnreachableError


class Api:
    """Lists incidents as a node does."""

    def __init__(self, *keys: str) -> None:
        self.keys = list(keys)
        self.asked: list[Any] = []

    def get(self, path: str, query: Any) -> Any:
        self.asked.append((path, query))
        return {"jobs": [{"key": key} for key in self.keys[: query["limit"]]], "not_reached": []}


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PAGE", 3)


def incidents(api: Api, limit: int = 100) -> Incidents:
    return Incidents(cast(ApiClient, api), "send-email", limit)


def test_all_pages_are_read_and_each_key_comes_once() -> None:
    api = Api(*"abcdefg")
    taken = []
    for key in incidents(api):
        taken.append(key)
        api.keys.remove(key)
        if key == "b":
            api.keys.append("b")  # failed again
    assert taken == list("abcdefg")
    assert api.asked[0] == ("/v1/jobs", {"state": "INCIDENT", "type": "send-email", "limit": 3})


def test_jobs_that_fail_again_at_once_are_not_retried_for_ever() -> None:
    """A handler that is still broken would keep it going, and fill the log."""
    api = Api(*"abcdefg")
    found = incidents(api)
    assert list(found) == list("abc")
    assert found.hidden


def test_no_more_are_taken_than_allowed() -> None:
    found = incidents(Api(*"ab"), limit=1)
    assert list(found) == ["a"]
    assert found.cut
    exact = incidents(Api(*"ab"), limit=2)
    assert list(exact) == ["a", "b"]
    assert not exact.cut


class Jobs:
    """A client whose retries end as they are told."""

    def __init__(self, **errors: RelevoError) -> None:
        self.errors = errors
        self.tried: list[str] = []

    def retry_many(self, keys: Iterable[str], retries: int, *, timeout: float) -> Iterator[BulkResult]:
        for index, key in enumerate(keys):
            self.tried.append(key)
            error = self.errors.get(key)
            yield BulkResult(index, key, None if error else JobHandle(key, 0, 1, 0), error)


def run(jobs: Jobs, keys: str, *, total: int = 0, json_: bool = False) -> int:
    return retry_all(cast(Client, jobs), list(keys), 3, total=total, timeout_s=1, json_=json_)


def test_one_that_is_refused_does_not_hold_up_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Jobs(
        b=Rejected("b", "RetryJob", "NOT_RETRYABLE", "INCIDENT", "READY"), d=OutcomeUnknown("no answer for d")
    )
    assert run(jobs, "abcde", json_=True) == 1
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["key"], line["outcome"], line.get("retry")) for line in lines] == [
        ("a", "done", None),
        ("b", "not_done", "stop"),
        ("c", "done", None),
        ("d", "unknown", "same"),
        ("e", "done", None),
    ]
    assert lines[1]["reason"] == "NOT_RETRYABLE"
    assert "no answer for d [outcome=unknown retry=same]" in err
    assert "3 ready again, 1 not, 1 unknown" in err


def test_named_ones_are_told_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Jobs(), "ab", total=2) == 0
    assert capsys.readouterr().out == "a ready again\nb ready again\n"


@pytest.mark.parametrize(("error", "code"), [(Unreachable("Kafka is away"), 6), (QueueFull("full"), 1)])
def test_it_ends_where_kafka_is_away(
    capsys: pytest.CaptureFixture[str], error: RelevoError, code: int
) -> None:
    """Ten thousand incidents would be tried for hours, each until its time is up."""
    jobs = Jobs(b=error)
    assert run(jobs, "abcde") == code
    assert jobs.tried == ["a", "b"]
    assert "run it again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "outcome", "retry"),
    [
        (OutcomeUnknown("x"), "unknown", "same"),
        (Rejected("k", "CancelJob", "NOT_FOUND", "a job", "none"), "not_done", "stop"),
        (UnreachableError("no node answers"), "not_done", "elsewhere"),
        (ApiError(503, "NO_LEADER", "nobody leads", 1.0), "not_done", "same"),
        (ApiError(404, "NOT_FOUND", "no such job", None), "not_done", "stop"),
        (SettingsError("bad"), "not_done", "stop"),
        (ZeroDivisionError("a bug"), "unknown", "stop"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_error_has_its_fate_in_fields(error: Exception, outcome: str, retry: str) -> None:
    fields = fields_of(error)
    assert (fields["kind"], fields["outcome"], fields["retry"]) == (type(error).__name__, outcome, retry)


def test_fields_hold_no_secret() -> None:
    error = Unreachable("postgres://user:s3cr3t@db is away, sasl.password=s3cr3t")
    assert "s3cr3t" not in json.dumps(fields_of(error))
