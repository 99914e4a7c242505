"""What commands print, and what they read from flags."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click
import pytest

from relevo.cli.output import (
    addresses,
    as_json,
    cell,
    parse_kafka_options,
    parse_time,
    scrub,
    show_time,
    shown,
    table,
)

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("+90s", NOW_MS + 90_000),
        ("-15m", NOW_MS - 900_000),
        ("+1.5h", NOW_MS + 5_400_000),
        ("+2d", NOW_MS + 172_800_000),
        ("+5ms", NOW_MS + 5),
        ("1700000000123", 1_700_000_000_123),
        ("2030-01-31T09:00:00Z", int(datetime(2030, 1, 31, 9, tzinfo=UTC).timestamp() * 1000)),
        ("2030-01-31T09:00:00+02:00", int(datetime(2030, 1, 31, 7, tzinfo=UTC).timestamp() * 1000)),
    ],
)
def test_times_are_understood(text: str, at: int) -> None:
    assert parse_time(text, now_ms=NOW_MS) == at


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "+5",
        "15m",
        "2030-13-01",
        f"+{'9' * 400}s",
        "9" * 400,
        "9" * 5_000,
        "+99999999d",
        "0001-01-01",
    ],
)
def test_what_is_no_time_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        parse_time(text, now_ms=NOW_MS)


def test_times_are_shown_in_utc() -> None:
    assert show_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert show_time(0) == "-"


def test_tables_line_up_with_numbers_to_the_right() -> None:
    assert table(("NAME", "COUNT"), [("a", 1), ("long name", 1_000)]) == (
        "NAME       COUNT\na              1\nlong name   1000"
    )
    assert table(("NAME",), []) == "NAME"


def test_a_row_of_a_table_is_one_line_whatever_stands_in_it() -> None:
    """An error with a stack in it tore `jobs list` apart, and its colours went on to the terminal."""
    shown = table(("KEY", "ERROR"), [("a\nb", "first\r\n  second \x1b[31mred\x9b2J"), ("c", "")])
    assert shown == "KEY  ERROR\na b  first second \\x1b[31mred\\x9b2J\nc"


@pytest.mark.parametrize(
    ("text", "as_shown", "as_cell"),
    [
        ("plain ø 漢 €", "plain ø 漢 €", "plain ø 漢 €"),
        ("a  b\tc\n", "a  b c ", "a b c"),
        ("\x00\x1b]0;x\x07", "\\x00\\x1b]0;x\\x07", "\\x00\\x1b]0;x\\x07"),
        ("\u202e\u2028\udcff", "\\u202e \\udcff", "\\u202e \\udcff"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text: str, as_shown: str, as_cell: str) -> None:
    assert shown(text) == as_shown
    assert cell(text) == as_cell


def test_a_long_cell_is_cut() -> None:
    assert cell("abc  def", 7) == "abc def"
    assert cell("abc  defg", 7) == "abc def…"


@pytest.mark.parametrize(
    "text",
    [
        "redis://user:hunter2@host:6379/0",
        "sasl.password=hunter2",
        "ssl.key.password: 'hunter2'",
        '"sasl.password": "hunter2"',
        "token=hunter2&x=1",
    ],
)
def test_secrets_are_taken_out(text: str) -> None:
    assert "hunter2" not in scrub(text)


def test_kafka_options_come_from_the_environment_and_from_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_KAFKA_OPTIONS", '{"sasl.mechanism": "PLAIN", "linger.ms": 5}')
    assert parse_kafka_options(["linger.ms=7", "x=a=b"]) == {
        "sasl.mechanism": "PLAIN",
        "linger.ms": "7",
        "x": "a=b",
    }


@pytest.mark.parametrize("environment", ["{", "[]", "3"])
def test_kafka_options_that_are_no_object_are_told_without_what_stands_in_them(
    monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    monkeypatch.setenv("RELEVO_KAFKA_OPTIONS", environment)
    with pytest.raises(click.BadParameter):
        parse_kafka_options([])


def test_a_kafka_option_without_value_is_told_without_repeating_it() -> None:
    with pytest.raises(click.BadParameter) as caught:
        parse_kafka_options(["hunter2"])
    assert "hunter2" not in caught.value.message


def test_bytes_that_are_json_are_shown_as_json() -> None:
    assert as_json({"a": b'{"x":1}', "b": b"\xff"}) == '{"a":{"x":1},"b":"�"}'


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize("value", [nested(254), nested(900), b'{"wei":12345678901234567890123,"f":0.10}'])
def test_json_in_bytes_stands_there_as_it_is(value: bytes) -> None:
    """One job nested as deep as the SDK allows ended every `events tail --json`."""
    assert as_json({"variables": value}).encode() == b'{"variables":%b}' % value


def test_json_in_bytes_stands_on_one_line() -> None:
    assert as_json({"a": b'{\r\n "x": "a\\nb"\n}'}) == '{"a":{   "x": "a\\nb" }}'


@pytest.mark.parametrize("value", [b"1,2", b"", b"nan", b"1e400", nested(2_000)])
def test_bytes_that_are_no_json_are_shown_as_text(value: bytes) -> None:
    assert json.loads(as_json({"a": value})) == {"a": value.decode()}


@pytest.mark.parametrize("value", [json.loads(nested(300)), 10**30, "\udcff", {"a": "\udcff"}])
def test_what_orjson_can_not_write_is_written_all_the_same(value: object) -> None:
    """A node's answer holds what other clients sent, and an argument may be no Unicode."""
    given = {"v": value, "raw": b'{"x":1}', "at": datetime(2030, 1, 1, tzinfo=UTC)}
    assert json.loads(as_json(given)) == {"v": value, "raw": {"x": 1}, "at": "2030-01-01 00:00:00+00:00"}


@pytest.mark.parametrize("text", ["localhost", "a:9092,b", ":9092", "a:port", "a:70000", "a:"])
def test_an_address_without_host_or_port_is_refused(text: str) -> None:
    option = click.Option(["--kafka"])
    with pytest.raises(click.BadParameter, match=r"must be HOST:PORT, such as .*:9092"):
        addresses(click.Context(click.Command("x")), option, text)


@pytest.mark.parametrize("text", ["a:1", "a:1,b:2", "[::1]:9092", "z:2181,y:2181/path", None])
def test_addresses_are_let_through(text: str | None) -> None:
    assert addresses(click.Context(click.Command("x")), click.Option(["--zookeeper"]), text) == text
