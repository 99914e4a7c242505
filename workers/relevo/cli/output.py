"""What commands have in common: options, tables, times, and texts without secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import orjson

if TYPE_CHECKING:
    from relevo import JobResult

C = TypeVar("C", bound=Callable[..., Any])

_SECRET_OPTION: Final = re.compile(
    r"(?i)([\"']?[\w.]*(?:password|passwd|secret|token|sasl\.[\w.]+|ssl\.key[\w.]*)[\"']?\s*[=:]\s*)"
    r"(\"[^\"]*\"|'[^']*'|[^\s,;}&]+)"
)
_SECRET_URL: Final = re.compile(r"(?<=://)[^/\s@]*:[^/\s@]*(?=@)")


def scrub(text: str) -> str:
    """The text without passwords: those in addresses, and those given as ``name=value``."""
    return _SECRET_OPTION.sub(r"\1***", _SECRET_URL.sub("***", text))


def kafka_options(function: C) -> C:
    """Adds ``--kafka``, ``--cluster`` and ``--kafka-option``: how to reach a cluster's topics."""
    decorators = (
        click.option("--kafka", envvar="RELEVO_KAFKA", default="localhost:9092", show_default=True,
                     metavar="HOST:PORT", callback=addresses,
                     help="Kafka brokers, separated by commas.  [env RELEVO_KAFKA]"),
        click.option("--cluster", envvar="RELEVO_CLUSTER", default="relevo", show_default=True,
                     metavar="NAME", help="Name of the cluster.  [env RELEVO_CLUSTER]"),
        click.option("--kafka-option", "kafka_option", multiple=True, metavar="NAME=VALUE",
                     help="One more librdkafka option; repeatable. Secrets belong in RELEVO_KAFKA_OPTIONS."),
    )  # fmt: skip
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def addresses(_context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Lets through ``host:port``, several separated by commas; a callback of options.

    Raises:
        click.BadParameter: One has no host or no port.
    """
    if given is None:
        return None
    hosts = given.partition("/")[0] if "://" not in given else given  # ZooKeeper's may end with a path
    for each in hosts.split(","):
        host, _, port = each.strip().rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            usual = "2181" if parameter.name == "zookeeper" else "8080" if parameter.name == "api" else "9092"
            name = host or each.strip().rstrip(":")
            hint = f", such as {name or 'localhost'}:{usual}"
            raise click.BadParameter(f"{scrub(each.strip())!r} must be HOST:PORT{hint}")
    return given


def parse_kafka_options(given: Sequence[str]) -> dict[str, str]:
    """The librdkafka options from RELEVO_KAFKA_OPTIONS, overridden by those given as ``NAME=VALUE``.

    Raises:
        click.BadParameter: One has no ``=``, or the variable isn't a JSON object.
    """
    options: dict[str, str] = {}
    in_environment = os.environ.get("RELEVO_KAFKA_OPTIONS")
    if in_environment:
        try:
            parsed = orjson.loads(in_environment)
        except orjson.JSONDecodeError as error:
            raise click.BadParameter(f"RELEVO_KAFKA_OPTIONS isn't JSON (at {error.pos})") from error
        if not isinstance(parsed, dict):
            raise click.BadParameter(
                'RELEVO_KAFKA_OPTIONS must be a JSON object: {"sasl.mechanism": "PLAIN"}'
            )
        options |= {name: value if isinstance(value, str) else str(value) for name, value in parsed.items()}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            # The text may hold a secret and isn't repeated.
            raise click.BadParameter("must be NAME=VALUE", param_hint="--kafka-option")
        options[name] = value
    return options


def parse_time(text: str, *, now_ms: int) -> int:
    """A time on the command line, in milliseconds since the Unix epoch.

    Accepts ISO 8601 (``2030-01-31T09:00:00Z``; local time where no zone is given), ``+90s``, ``+15m``,
    ``+2h``, ``+1d`` from now (``-`` for the past), or the milliseconds themselves.

    Raises:
        ValueError: It is none of these, or lies beyond the year 9999.
    """
    try:
        at_ms = _parsed_time(text, now_ms)
        _moment(at_ms)
    except (ValueError, OverflowError, OSError):
        hint = "use 2030-01-31T09:00:00Z, +15m, or milliseconds"
        raise ValueError(f"{text!r:.60} is no time: {hint}") from None
    return at_ms


def _parsed_time(text: str, now_ms: int) -> int:
    relative = re.fullmatch(r"([+-])(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if relative:
        sign, number, unit = relative.groups()
        factor = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[unit]
        return now_ms + (1 if sign == "+" else -1) * int(float(number) * factor)
    if re.fullmatch(r"\d{10,}", text):
        return int(text)
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def show_time(at_ms: int) -> str:
    """A time for people, in UTC."""
    if at_ms <= 0:
        return "-"
    return _moment(at_ms).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _moment(at_ms: int) -> datetime:
    """Raises ValueError, OverflowError or OSError where there is no such day."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def shown(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would act on; otherwise as it is."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _visible(each) for each in text)


def _visible(each: str) -> str:
    return " " if each.isspace() else each.encode("unicode_escape").decode()


def cell(text: str, length_max: int | None = None) -> str:
    """The text as a part of a line: as `shown`, with one space for any run of them, cut where it is long."""
    line = " ".join(text.split())
    return shown(line if length_max is None or len(line) <= length_max else line[:length_max] + "…")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns of text under headings, each row on one line; numbers to the right."""
    rows_typed = [[cell(str(each)) for each in row] for row in rows]
    widths = [max([len(heading), *(len(row[i]) for row in rows_typed)]) for i, heading in enumerate(headings)]
    numeric = [
        bool(rows_typed) and all(re.fullmatch(r"[\d.,-]+", row[i]) for row in rows_typed)
        for i in range(len(headings))
    ]

    def line(row: Sequence[str]) -> str:
        parts = (
            each.rjust(width) if right else each.ljust(width)
            for each, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(parts).rstrip()

    return "\n".join([line(headings), *(line(row) for row in rows_typed)])


def as_json(value: object) -> str:
    """One line of JSON. Bytes that are JSON stand in it as they are, others as text."""
    try:
        return orjson.dumps(value, default=_embedded).decode()
    except TypeError:
        # What orjson can't write: a nesting of more than 254 levels, numbers beyond 64 bits, text that
        # isn't Unicode, as an argument may be. Other clients and other nodes may send the first two.
        return json.dumps(value, default=_parsed, separators=(",", ":"))


def _embedded(value: object) -> object:
    if not isinstance(value, bytes):
        return str(value)
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return value.decode(errors="replace")
    # Not what was read: it may be nested too deep to be written, and its large numbers are only close.
    # A line break can't stand within a text, so that it means nothing.
    return orjson.Fragment(value.replace(b"\n", b" ").replace(b"\r", b" "))


def _parsed(value: object) -> object:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value.decode(errors="replace")


def result_fields(result: JobResult) -> dict[str, Any]:
    """How a job ended, for programs."""
    return {"state": result.state, "attempt": result.attempt, "result": result.result or None,
            "code": result.code or None, "message": result.message or None}  # fmt: skip
