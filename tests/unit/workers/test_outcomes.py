"""How a handler ends decides what the engine hears; nothing it does may end the worker."""

from __future__ import annotations

import asyncio
import enum
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest

from relevo.errors import VariablesError
from relevo.worker.bounds import ERROR_TEXT_MAX, RESULT_BYTES_MAX
from relevo.worker.job import Fail, JobError
from relevo.worker.outcomes import Completed, Errored, Failed, of_exception, of_result


@dataclass
class Receipt:
    number: int


@pytest.mark.parametrize(
    ("result", "encoded"),
    [
        (None, b""),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (Receipt(7), b'{"number":7}'),
        (datetime(2026, 1, 2, tzinfo=UTC), b'"2026-01-02T00:00:00+00:00"'),
        (False, b"false"),
    ],
)
def test_a_result_becomes_json(result: Any, encoded: bytes) -> None:
    assert of_result(result) == Completed(encoded)


@dataclass
class Rate:
    value: float | None
    _seen: float = math.nan  # no part of the result


@dataclass(slots=True)
class Slotted:
    parts: list[Any]


class Limit(enum.Enum):
    NONE = math.inf


@pytest.mark.parametrize(
    "result",
    [
        math.nan,
        {"a": [None, -math.inf]},
        (1, [math.inf]),
        Rate(math.nan),
        Slotted([None, Slotted([math.nan])]),
        {"limit": Limit.NONE},
    ],
)
def test_a_number_that_json_does_not_have_is_no_result(result: Any) -> None:
    """It would be stored as null, and the reader take that for "nothing"."""
    outcome = of_result(result)
    assert isinstance(outcome, Failed)
    assert not outcome.retriable
    assert "not JSON: it holds NaN or an infinite number" in outcome.error


@pytest.mark.parametrize(
    ("result", "encoded"),
    [
        (["null", 2.5, None], b'["null",2.5,null]'),
        (Rate(None), b'{"value":null}'),
        (Slotted([None, Slotted([2.5])]), b'{"parts":[null,{"parts":[2.5]}]}'),
        (
            [None, date(2026, 1, 2), UUID(int=1)],
            b'[null,"2026-01-02","00000000-0000-0000-0000-000000000001"]',
        ),
    ],
)
def test_null_where_nothing_was_meant_stays(result: Any, encoded: bytes) -> None:
    assert of_result(result) == Completed(encoded)


@pytest.mark.parametrize("result", [object(), {1: 2}, {"a": {1, 2}}, b"raw", "\ud800"])
def test_a_result_that_is_not_json_fails_for_good(result: Any) -> None:
    """Running it again would perform the effect again, and fail in the same way."""
    outcome = of_result(result)
    assert isinstance(outcome, Failed)
    assert not outcome.retriable
    assert "not JSON" in outcome.error


def test_a_result_that_is_too_large_fails_for_good() -> None:
    outcome = of_result("x" * RESULT_BYTES_MAX)
    assert isinstance(outcome, Failed)
    assert not outcome.retriable


def test_a_forgotten_async_says_so() -> None:
    async def handler() -> None: ...

    outcome = of_result(handler())
    assert isinstance(outcome, Failed)
    assert "async def" in outcome.error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (JobError("NO_FUNDS", "declined"), Errored("NO_FUNDS", "declined")),
        (Fail("later", retry_in=1.5), Failed("later", 1_500, True)),
        (Fail("never", retriable=False), Failed("never", -1, False)),
        (VariablesError("not JSON"), Failed("not JSON", -1, False)),
        (ValueError("boom"), Failed("ValueError: boom")),
        (SystemExit(3), Failed("SystemExit: 3")),
        (KeyboardInterrupt(), Failed("KeyboardInterrupt")),
        (GeneratorExit(), Failed("GeneratorExit")),
        (asyncio.CancelledError(), Failed("the handler was cancelled")),
    ],
)
def test_every_exception_is_an_outcome(error: BaseException, outcome: object) -> None:
    assert of_exception(error) == outcome


def test_an_error_tells_where_it_came_from() -> None:
    def charge() -> None:
        raise RuntimeError("no answer")

    with pytest.raises(RuntimeError) as caught:
        charge()
    outcome = of_exception(caught.value)
    assert isinstance(outcome, Failed)
    assert "RuntimeError: no answer (at test_outcomes.py:" in outcome.error
    assert "in charge)" in outcome.error


def test_an_exception_that_cannot_be_printed_is_still_an_outcome() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    outcome = of_exception(BrokenError())
    assert isinstance(outcome, Failed)
    assert "BrokenError" in outcome.error


@pytest.mark.parametrize("text", ["x" * 100_000, "\ud800" * 10])
def test_an_error_text_always_fits_into_a_record(text: str) -> None:
    outcome = of_exception(ValueError(text))
    assert isinstance(outcome, Failed)
    assert len(outcome.error) <= ERROR_TEXT_MAX
    outcome.error.encode()
