"""A job's transaction as its handler and the gate see it."""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from relevo.consumer.offsets import Ownership
from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.sql import SqlDedupStore
from relevo.dedup.sql_rows import Call, Row, answer_of, rounds, stored_key
from relevo.dedup.store import MINE, Claim, DedupStore, Done, Finish, Held, StoreTransaction, Unknown
from relevo.errors import ClaimLost, ConfigurationError, InvalidRequest
from relevo.worker.execution import AsyncRunner, LoopThread, ThreadRunner
from relevo.worker.item import Item
from relevo.worker.job import Job
from relevo.worker.outcomes import Completed, Failed, NotOurs, of_exception
from relevo.worker.transactions import Grant, at_end
from relevo_schemas.commands import CompleteJob
from tests.unit.workers.fakes import CREATED, activation, activation_bytes
from tests.unit.workers.gate_world import World


class FakeTransaction:
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def begin(self) -> str:
        self.calls.append("begin")
        return "connection"

    def finish(self, result: bytes | None) -> None:
        self.calls.append(("finish", result))

    def undo(self) -> None:
        self.calls.append("undo")

    def abandon(self) -> None:
        self.calls.append("abandon")

    async def abegin(self) -> str:
        return self.begin()

    async def afinish(self, result: bytes | None) -> None:
        self.finish(result)

    async def aundo(self) -> None:
        self.undo()


class TransactionalStore(MemoryDedupStore):
    def __init__(self) -> None:
        super().__init__()
        self.made = FakeTransaction()

    def transaction(self, claim: Claim, ttl: float | None) -> StoreTransaction:
        return self.made


def job_with(store: DedupStore) -> Job:
    job = Job(activation("k"))
    job._grant = Grant(store, Claim("k", "me", 60), None)
    return job


def test_a_store_that_is_no_database_says_so() -> None:
    with pytest.raises(ConfigurationError, match="needs a SqlDedupStore: MemoryDedupStore can't commit"):
        job_with(MemoryDedupStore()).transaction()


def test_a_job_without_a_claim_has_no_transaction() -> None:
    with pytest.raises(ConfigurationError, match="run at most once, or not by a worker"):
        Job(activation("k")).transaction()


def test_a_result_belongs_into_the_block() -> None:
    job = job_with(TransactionalStore())
    with pytest.raises(ConfigurationError, match=r"inside a job\.transaction"):
        job.done(1)
    with job.transaction() as connection:
        job.done({"paid": True})
        with pytest.raises(ConfigurationError, match="open already"):
            job.transaction()
    assert connection == "connection"
    with pytest.raises(ConfigurationError, match=r"inside a job\.transaction"):
        job.done(1)


def test_a_block_commits_or_rolls_back() -> None:
    store = TransactionalStore()
    job = job_with(store)
    with pytest.raises(KeyError), job.transaction():
        raise KeyError
    with job.transaction():
        job.done([1])
    assert store.made.calls == ["begin", "undo", "begin", ("finish", b"[1]")]
    with pytest.raises(ConfigurationError, match="one transaction"):
        job.transaction()


def run_async(handler: Callable[[Job], Awaitable[Any]], job: Job) -> Any:
    """The outcome of a job, and what its handler left running has come to its end too."""
    item = Item(Ownership("t", 0, 1, 0).begin(0), activation("k"), "me")  # type: ignore[arg-type]
    item.job = job
    thread, ended = LoopThread(), queue.SimpleQueue[list[Item]]()
    AsyncRunner(thread, handler, ended.put).submit([item])
    ended.get(timeout=30)
    thread.close()
    return item.outcome


def test_a_connection_of_another_type_than_was_named_is_refused() -> None:
    """A handler for SQLite on PostgreSQL fails at its first statement, or doesn't, which is worse."""
    store = TransactionalStore()
    job = job_with(store)
    with pytest.raises(ConfigurationError, match=r"transaction\(bytes\): .* builtins.str here"):
        job.transaction(bytes).__enter__()
    assert store.made.calls == ["begin", "undo"]
    with pytest.raises(ConfigurationError, match="str here"):
        asyncio.run(job.transaction(bytes).__aenter__())
    assert store.made.calls == ["begin", "undo"] * 2
    with job.transaction(str) as connection:
        job.done(connection)
    assert store.made.calls[-1] == ("finish", b'"connection"')


def run_plain(handler: Callable[[Job], Any], job: Job) -> Any:
    """The outcome of a job."""
    item = Item(Ownership("t", 0, 1, 0).begin(0), activation("k"), "me")  # type: ignore[arg-type]
    item.job = job
    ended = queue.SimpleQueue[list[Item]]()
    runner = ThreadRunner(handler, 1, ended.put, "t")
    runner.submit([item])
    ended.get(timeout=30)
    runner.close()
    return item.outcome


def test_a_transaction_that_a_plain_handler_leaves_open_is_no_success() -> None:
    """It would be completed, its effect never committed, and lost when the server ends the transaction."""
    store = TransactionalStore()

    def handler(job: Job) -> None:
        job.transaction().__enter__()

    outcome = run_plain(handler, job_with(store))
    assert isinstance(outcome, Failed)
    assert outcome.retriable
    assert "was rolled back: end the block" in outcome.error
    assert store.made.calls == ["begin", "abandon"]


def test_a_transaction_that_a_coroutine_leaves_to_a_task_is_no_success() -> None:
    store = TransactionalStore()
    found: list[BaseException] = []
    inside = asyncio.Event()

    async def leaked(job: Job) -> None:
        try:
            async with job.transaction():
                inside.set()
                await asyncio.sleep(0.05)
        except ConfigurationError as error:
            found.append(error)

    tasks = []

    async def handler(job: Job) -> None:
        tasks.append(asyncio.create_task(leaked(job)))
        await inside.wait()
        tasks.append(asyncio.create_task(asyncio.wait_for(tasks[0], 10)))

    outcome = run_async(handler, job_with(store))
    assert isinstance(outcome, Failed)
    assert store.made.calls == ["begin", "abandon"], "and the task that still holds it does nothing more"


def test_a_handler_that_has_ended_opens_no_transaction() -> None:
    """What it left running would commit an effect for an attempt that has been reported as failed."""
    store = TransactionalStore()
    job = job_with(store)
    assert at_end(job, Completed(b"1")) == Completed(b"1")
    with pytest.raises(ConfigurationError, match="the handler has ended"):
        job.transaction()
    late = job_with(store)
    block = late.transaction()
    at_end(late, Completed(b"1"))
    with pytest.raises(ConfigurationError, match="the handler has ended"), block:
        pass
    assert store.made.calls == ["begin", "abandon"]


@pytest.mark.parametrize("form", ["plain", "coroutine"])
def test_a_transaction_left_open_lets_go_of_its_file(tmp_path: Path, form: str) -> None:
    """SQLite has one writer: what is left open would stop every worker on the machine."""
    url = f"sqlite:///{tmp_path}/shop.db"
    store, other = SqlDedupStore(url), SqlDedupStore(url, timeout=5)
    store.check()
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE effects (key TEXT)")
    connection.close()
    store.claim([Claim("k", "me", 60)])
    job = job_with(store)

    def handler(job: Job) -> None:
        job.transaction().__enter__().execute("INSERT INTO effects VALUES ('k')")

    async def coroutine(job: Job) -> None:
        (await job.transaction().__aenter__()).execute("INSERT INTO effects VALUES ('k')")

    outcome = run_plain(handler, job) if form == "plain" else run_async(coroutine, job)
    assert isinstance(outcome, Failed)
    assert other.claim([Claim("another", "you", 60)]) == [MINE]
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        assert connection.execute("SELECT * FROM effects").fetchall() == []
    connection.close()
    store.close()
    other.close()


def test_a_failure_stays_one_and_says_its_own_reason() -> None:
    store = TransactionalStore()
    job = job_with(store)
    job.transaction().__enter__()
    assert at_end(job, Failed("boom")) == Failed("boom")
    assert store.made.calls == ["begin", "abandon"]


@pytest.mark.parametrize(("result", "said"), [(object(), "not JSON"), ("x" * 1_000_000, "bytes")])
def test_a_result_that_cannot_be_stored_rolls_back(result: Any, said: str) -> None:
    store = TransactionalStore()
    job = job_with(store)
    with pytest.raises(InvalidRequest, match=said), job.transaction():
        job.done(result)
    assert store.made.calls == ["begin", "undo"]


def test_an_attempt_that_lost_its_claim_reports_nothing_and_asks_again() -> None:
    """A report of failure would cost the worker that has the job its attempt."""
    world = World()
    world.arrive(activation_bytes("a"))
    before = world.gate.running["a"].job
    world.store.now = 31  # the claim's time is over
    world.store.claim([Claim("c:dedup:a", "other", 60)])
    ended, world.runner.running = world.runner.running, []
    ended[0].job._mark_lost("another worker has claimed the job")
    ended[0].outcome = of_exception(ClaimLost("gone"))
    assert ended[0].outcome == NotOurs()
    world.gate.finished(ended)
    world.turn()
    assert (world.sender.sent, world.committable()) == ([], {})
    world.later()
    assert world.runner.started == ["a"], "the other worker has it"
    world.store.done([Finish("c:dedup:a", "other", b'"theirs"')])
    world.later()
    assert world.sender.sent == [CompleteJob("a", CREATED, 1, b'"theirs"')]
    assert ended[0].job is not before
    assert not ended[0].job.lost


def test_a_lost_claim_that_is_free_again_is_run_again() -> None:
    world = World()
    world.arrive(activation_bytes("a"))
    ended, world.runner.running = world.runner.running, []
    ended[0].outcome = NotOurs()
    world.gate.finished(ended)
    world.turn()
    world.later()
    assert world.runner.started == ["a", "a"]
    world.end(Completed(b"1"))
    assert world.sender.sent == [CompleteJob("a", CREATED, 1, b"1")]


def test_a_result_that_differs_from_the_committed_one_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The author would look for it in vain."""
    world = World()
    world.arrive(activation_bytes("a"))
    (item,) = world.runner.running
    world.store.done([Finish("c:dedup:a", item.token, b'"committed"')])
    assert item.job._grant is not None
    item.job._grant.committed = True
    with caplog.at_level(logging.WARNING):
        world.end(Completed(b'"returned"'))
    assert "the one given to job.done() stands" in caplog.text
    assert world.sender.sent == [CompleteJob("a", CREATED, 1, b'"committed"')]


@pytest.mark.parametrize(
    ("call", "row", "in_transaction", "expected"),
    [
        (Call.CLAIM, Row(True), False, MINE),
        (Call.CLAIM, Row(False, True, left_s=9), False, Held),
        (Call.CLAIM, Row(False, False, left_s=9), False, Held),
        (Call.CLAIM, Row(False, False, True, b"1", 9), False, Done(b"1")),
        (Call.CLAIM, Row(False, True, True, None, 9), False, Done(b"")),
        (Call.CLAIM, Row(False, False, True, b"1", -1), False, Held),
        (Call.CLAIM, Row(False), False, Held),
        (Call.RENEW, Row(False, True, left_s=9), False, Unknown),
        (Call.RENEW, Row(False, True, left_s=-9), True, MINE),
        (Call.RENEW, Row(False, False, left_s=9), True, Held),
        (Call.RENEW, Row(False, True, True, None, 9), False, MINE),
        (Call.RENEW, Row(False), False, Unknown),
        (Call.DONE, Row(False, False, left_s=9), False, Held),
        (Call.DONE, Row(False, True, left_s=9), False, Unknown),
        (Call.DONE, Row(False, True, True, b"1", 9), False, Done(b"1")),
        (Call.RELEASE, Row(False), False, MINE),
        (Call.RELEASE, Row(False, False, left_s=-1), False, MINE),
        (Call.RELEASE, Row(False, False, left_s=9), False, Held),
        (Call.RELEASE, Row(False, True, left_s=9), False, Unknown),
    ],
)
def test_what_a_row_means(call: Call, row: Row, in_transaction: bool, expected: Any) -> None:
    """A row that is locked is nobody's answer: neither a duplicate nor a claim."""
    found = answer_of(call, row, in_transaction)
    assert found == expected or (isinstance(expected, type) and isinstance(found, expected))


def test_no_statement_has_a_key_twice_or_too_many_bytes() -> None:
    items = [Claim(key, "me", 1) for key in "abacab"]
    assert list(rounds(items)) == [[0, 1, 3], [2, 5], [4]]
    large = [Finish(str(n), "me", b"x" * 3_000_000) for n in range(5)]
    assert list(rounds(large)) == [[0, 1], [2, 3], [4]]


def test_keys_are_stored_apart() -> None:
    keys = ["a\x00", "a\\0", "a\\\\0", "a\\", "a\\\x00"]
    assert len({stored_key(key) for key in keys}) == len(keys)
    assert all("\x00" not in stored_key(key) for key in keys)
    assert stored_key("c:dedup:order-1") == "c:dedup:order-1"


def test_a_process_without_psycopg_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    def missing(name: str, package: str | None = None) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install 'relevo\[sql\]'"):
        SqlDedupStore("postgresql://localhost/jobs")
