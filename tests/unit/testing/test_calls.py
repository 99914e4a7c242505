"""A call has failed where the product's own contract says so, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import relevo
from relevo.errors import RelevoError
from relevo.testing import calls
from relevo.testing.calls import Callers, Nodes
from relevo.testing.drills.calls import judge_calls
from relevo.testing.ledger import Call, Ledger, LedgerFile
from relevo.testing.report import Run
from relevo_engine.api.client import ApiError
from relevo_engine.errors import UnreachableError

BUSY = ApiError(503, "NO_LEADER", "nobody leads it", 0.01)


class Client:
    """Raises one error after the other, and then creates."""

    def __init__(self, *errors: RelevoError) -> None:
        self.errors = list(errors)
        self.keys: list[str] = []

    def create(self, _type: str, _variables: Any, *, key: str, **_: Any) -> None:
        self.keys.append(key)
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_PAUSE_S", 0.001)


@pytest.fixture
def book(tmp_path: Path) -> LedgerFile:
    return LedgerFile(tmp_path, "caller-1")


def ledger_of(book: LedgerFile) -> Ledger:
    ledger = Ledger(book.path.parent)
    ledger.refresh()
    return ledger


def create(book: LedgerFile, *errors: RelevoError) -> tuple[Call, Client]:
    client = Client(*errors)
    nodes = Nodes(["n:1"], "z:1", "c")
    callers = Callers(client, nodes, book, job_type="t", lease_s=3.0)  # type: ignore[arg-type]
    callers.call(0)
    callers._pool.shutdown()
    (call,) = ledger_of(book).calls
    return call, client


def read(
    monkeypatch: pytest.MonkeyPatch, book: LedgerFile, answer: Callable[[str], Any], *known: str
) -> tuple[Call, Nodes]:
    class Api:
        def __init__(self, address: str) -> None:
            self.address = address

        def job(self, _key: str) -> Any:
            return answer(self.address)

    monkeypatch.setattr("relevo_engine.api.client.ApiClient", Api)
    nodes = Nodes(known, "z:1", "c")
    callers = Callers(Client(), nodes, book, job_type="t", lease_s=3.0)  # type: ignore[arg-type]
    callers._newest = "a"
    callers.call(1)
    callers._pool.shutdown()
    (call,) = ledger_of(book).calls
    return call, nodes


def test_a_creation_that_may_be_asked_again_is_with_the_same_key(book: LedgerFile) -> None:
    call, client = create(book, relevo.OutcomeUnknown("?"), relevo.Unreachable("?"))
    assert (call.kind, call.tries, call.failed) == ("create", 3, "")
    assert len(set(client.keys)) == 1
    assert ledger_of(book).accepted.keys() == set(client.keys), "it must not be lost from now on"


def test_a_creation_whose_error_says_stop_has_failed(book: LedgerFile) -> None:
    call, client = create(book, relevo.Refused("not allowed"))
    assert (call.tries, "not allowed" in call.failed) == (1, True)
    assert ledger_of(book).refused.keys() == set(client.keys)


def test_a_creation_without_an_answer_in_the_end_has_failed(
    monkeypatch: pytest.MonkeyPatch, book: LedgerFile
) -> None:
    monkeypatch.setattr(calls, "CALL_S", 0.02)
    call, _ = create(book, *[relevo.DecisionTimeout("late")] * 1_000)
    assert call.failed.startswith("no answer in 0.02 s: late")


def test_a_read_goes_on_after_a_503_that_says_when(monkeypatch: pytest.MonkeyPatch, book: LedgerFile) -> None:
    answers: list[Any] = [BUSY, {"key": "a"}]

    def answer(_address: str) -> Any:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    call, _ = read(monkeypatch, book, answer, "n:1")
    assert (call.kind, call.tries, call.failed) == ("read", 2, "")
    assert call.took_ms >= 10


def test_a_read_goes_to_another_node_where_one_is_gone(
    monkeypatch: pytest.MonkeyPatch, book: LedgerFile
) -> None:
    """A node that was started again may have another port: it is looked up."""
    monkeypatch.setattr(calls, "live_addresses", lambda *_: {"a": "n:2", "b": ""})

    def answer(address: str) -> Any:
        if address == "n:1":
            raise UnreachableError("gone")
        return {"key": "a"}

    call, nodes = read(monkeypatch, book, answer, "n:1")
    assert (call.tries, call.failed) == (2, "")
    assert nodes.next() == "n:2"


@pytest.mark.parametrize(
    "error",
    [ApiError(404, "NOT_FOUND", "no such job", None), ApiError(503, "NO_LEADER", "and no word when", None)],
)
def test_a_read_that_is_told_something_else_has_failed(
    monkeypatch: pytest.MonkeyPatch, book: LedgerFile, error: ApiError
) -> None:
    """The job was decided before: that there is none is a wrong answer."""

    def answer(_address: str) -> Any:
        raise error

    call, _ = read(monkeypatch, book, answer, "n:1")
    assert (call.tries, str(error.status) in call.failed) == (1, True)


def test_a_read_of_another_job_has_failed(monkeypatch: pytest.MonkeyPatch, book: LedgerFile) -> None:
    call, _ = read(monkeypatch, book, lambda _address: {"key": "b"}, "n:1")
    assert "told of b" in call.failed


def test_each_repeat_is_told_of_its_calls() -> None:
    runs = [Run("rolling-restart", 1, 100.0), Run("rolling-restart", 2, 200.0)]
    made = [
        Call("create", 110.0, 12.0, 1),
        Call("read", 120.0, 900.0, 3),
        Call("create", 210.0, 30_000.0, 9, "no answer"),
        Call("read", 220.0, 5.0, 1),
    ]
    judge_calls(runs, made, lambda _run: True)
    assert runs[0].counts == {"calls": 2, "calls_asked_again": 1, "calls_failed": 0}
    assert runs[0].extra == {"slowest_create_ms": 12.0, "slowest_read_ms": 900.0}
    assert not runs[0].broken
    assert runs[1].counts["calls_failed"] == 1
    assert "create after 30000 ms: no answer" in runs[1].broken[0].found


def test_no_failed_call_of_none_is_no_proof() -> None:
    run = Run("rolling-restart", 1, 100.0)
    judge_calls([run], [Call("create", 110.0, 12.0, 1)], lambda _run: True)
    assert "only ['create'] were made" in run.broken[0].found


def test_where_calls_may_fail_they_are_told() -> None:
    run = Run("zookeeper-down", 1, 100.0)
    judge_calls([run], [Call("read", 110.0, 30_000.0, 9, "no answer")], lambda _run: False)
    assert not run.broken
    assert "1 of 1 calls failed: read after 30000 ms" in run.notes[0]
