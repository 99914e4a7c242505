"""Jobs from JSON lines: good ones pass, bad ones are told by line number, and none costs another one."""

from __future__ import annotations

import orjson
import pytest

from relevo.cli.job_lines import BadLine, GoodLine, from_flags, read_keys, read_lines
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
        ('{"type": "a", "run_at": "+' + "9" * 400 + 's"}', "run_at: '+999"),
        ('{"type": "a", "run_at": "' + "9" * 400 + '"}', "is no time"),
        ('{"type": "a", "run_at": "' + "9" * 5_000 + '"}', "is no time"),
        ('{"type": "a", "priority": ' + "[" * 1_000 + "]" * 1_000 + "}", "nested too deep"),
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
        (
            {"variables": '{"wei":12345678901234567890123}'},
            "the integer 12345678901234567890123 is beyond 64 bits",
        ),
        ({"variables": "\udcff"}, "--variables isn't JSON"),
        ({"run_at": "+" + "9" * 400 + "d"}, "is no time"),
    ],
)
def test_wrong_flags_are_told(flags: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        from_flags({"type": "a", **flags}, now_ms=NOW_MS)


@pytest.mark.parametrize(
    "number",
    [
        str(2**64),
        str(-(2**63) - 1),
        "12345678901234567890123",
        "9" * 300,  # the longest that a double holds has 309 digits
    ],
)
def test_an_integer_that_would_become_another_number_is_refused(number: str) -> None:
    """Amounts in the smallest unit have more digits than a double: they were stored as 1.23e22."""
    bad, good = read(f'{{"type":"a","variables":{{"wei":[{number}]}}}}', '{"type":"b"}')
    assert isinstance(bad, BadLine)
    assert f"the integer {number[:40]}" in bad.reason
    assert "beyond 64 bits" in bad.reason
    assert len(bad.reason) < 120
    assert isinstance(good, GoodLine)
    with pytest.raises(InvalidRequest, match="no JSON form"):
        NewJob(type="a", variables={"wei": [int(number)]}).spec()  # as the SDK has it


@pytest.mark.parametrize(
    "value",
    [2**64 - 1, -(2**63), 10**18, 1.2345678901234568e22, "12345678901234567890123", 0.1234567890123456789],
)
def test_other_long_numbers_come_through_as_they_are(value: object) -> None:
    (line,) = read(orjson.dumps({"type": "a", "variables": value}))
    assert isinstance(line, GoodLine)
    assert line.job.variables == value
    assert type(line.job.variables) is type(value)


def test_keys_come_from_what_commands_print_or_as_texts() -> None:
    """Through xargs, a key with a space was two other keys, and one with a dash an option."""
    lines = [b'{"key":"a b","state":"INCIDENT"}', b'"--reason"', b"", b'"two\\nlines"', b'{"key":"\\"\'"}']
    assert list(read_keys(lines)) == ["a b", "--reason", "two\nlines", "\"'"]


def test_lines_without_a_key_are_told_by_number() -> None:
    lines = [
        b"order-1",
        b'{"error":"no node answers"}',
        b'{"key":7}',
        b"[]",
        b"7",
        b'"good"',
        b"x" * 5_000_000,
    ]
    found = list(read_keys(lines))
    assert [each for each in found if isinstance(each, str)] == ["good"]
    assert [each.number for each in found if isinstance(each, BadLine)] == [1, 2, 3, 4, 5, 7]
