"""Jobs from JSON lines: good ones pass, bad ones are told by line number, and none costs another one."""

from __future__ import annotations

import orjson
import pytest

from relevo.cli.job_lines import BadLine, GoodLine, from_flags, read_lines
from relevo.client.requests import NewJob
from relevo.errors import InvalidRequest

NOW_MS = 1_700_000_000_000


def read(*lines: str | bytes) -> list[GoodLine | BadLine]:
    return list(read_lines((x.encode() if isinstance(x, str) else x for x in lines), now_ms=NOW_MS))


def test_a_whole_job() -> None:
    (line,) = read(
        '{"type": "mail", "key": "k/1", "variables": {"a": [1]}, "priority": 5, "retries": 0, "lease": 9.5,'
        ' "run_at": "+90s", "expires_at": 1700000100000, "correlation_id": "c", "headers": {"h": "1"}}'
    )
    assert line == GoodLine(
        1,
        NewJob(
            type="mail",
            key="k/1",
            variables={"a": [1]},
            priority=5,
            retries=0,
            lease=9.5,
            run_at=NOW_MS + 90_000,
            expires_at=1700000100000,
            correlation_id="c",
            headers={"h": "1"},
        ),
    )


def test_bad_lines_are_told_by_number_and_good_ones_are_kept() -> None:
    found = read('{"type": "a"}', "", "no json", '{"type": "b"}', b"\xff\xfe", "[]", '{"type": "c"}')
    assert [each.job.type for each in found if isinstance(each, GoodLine)] == ["a", "b", "c"]
    assert [each.number for each in found if isinstance(each, BadLine)] == [3, 5, 6]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{}", "'type' is missing"),
        ('{"type": ""}', "job type ''"),
        ('{"type": "a/b"}', "job type 'a/b'"),
        ('{"type": 7}', "job type 7"),
        ('{"type": "a", "key": ""}', "key must not be empty"),
        ('{"type": "a", "key": {}}', "key must be text, not dict"),
        ('{"type": "a", "prioritty": 1}', "did you mean 'priority'?"),
        ('{"type": "a", "priority": true}', "priority must be a whole number, not True"),
        ('{"type": "a", "priority": 99999999999}', "priority must be between"),
        ('{"type": "a", "lease": "long"}', "lease must be a number of seconds"),
        ('{"type": "a", "run_at": "tomorrow"}', "run_at: 'tomorrow' is no time"),
        ('{"type": "a", "run_at": []}', "run_at must be"),
        ('{"type": "a", "headers": {"x": 1}}', "header 'x' must be text"),
    ],
)
def test_what_is_wrong_is_said(line: str, reason: str) -> None:
    (found,) = read(line)
    assert isinstance(found, BadLine)
    assert reason in str(found)
    assert str(found).startswith("line 1: ")


def test_keys_and_variables_have_bounds() -> None:
    long_key = orjson.dumps({"type": "a", "key": "k" * 513})
    large = orjson.dumps({"type": "a", "variables": {"x": "y" * 1_000_001}})
    deep = b'{"type": "a", "variables": ' + b"[" * 2_000 + b"]" * 2_000 + b"}"
    huge = b'{"type": "a", "variables": "' + b"x" * 4_000_001 + b'"}'
    found = read(long_key, large, deep, huge)
    assert all(isinstance(each, BadLine) for each in found)
    assert "513 bytes" in str(found[0])
    assert "are allowed" in str(found[1])
    assert "it isn't JSON" in str(found[2])
    assert "4000000 are allowed" in str(found[3])


def test_a_job_from_flags() -> None:
    job = from_flags(
        {"type": "a", "variables": '{"x": 1}', "headers": ("h=1=2",), "run_at": "+1m", "key": None},
        now_ms=NOW_MS,
    )
    assert job == NewJob(type="a", variables={"x": 1}, headers={"h": "1=2"}, run_at=NOW_MS + 60_000)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"variables": "{x"}, "--variables isn't JSON"),
        ({"headers": ("h",)}, "--header 'h' must be NAME=VALUE"),
    ],
)
def test_wrong_flags_are_told(flags: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        from_flags({"type": "a", **flags}, now_ms=NOW_MS)
