"""Many who write to one SQLite file: each gets its turn, whatever it is and wherever it runs."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relevo.dedup import sql_sqlite
from relevo.dedup.sql import SqlDedupStore
from relevo.dedup.sql_line import Line, NoThread, OneThread
from relevo.dedup.store import MINE, Answer, Claim, Done, Unknown
from relevo.errors import StoreUnavailable
from relevo.worker.transactions import Grant
from tests.support.waiting import wait_until

THREAD = "relevo-sqlite"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "dedup.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE effects (key text)")
    return path


@pytest.fixture
def store(file: Path) -> Iterator[SqlDedupStore]:
    store = SqlDedupStore(f"sqlite:///{file}")  # with the time-outs that everybody has
    yield store
    store.close()


def effects(file: Path) -> int:
    with sqlite3.connect(file) as database:
        found: int = database.execute("SELECT count(*) FROM effects").fetchone()[0]
        return found


def claimed(store: SqlDedupStore, count: int, name: str = "k") -> list[Claim]:
    claims = [Claim(f"{name}{number}", "me", 600) for number in range(count)]
    assert store.claim(claims) == [MINE] * count
    return claims


def work(store: SqlDedupStore, claim: Claim, seconds: float = 0.001) -> None:
    """A plain handler."""
    with Grant(store, claim, None).transaction() as connection:
        connection.execute("INSERT INTO effects VALUES (?)", (claim.key,))
        time.sleep(seconds)


async def awork(store: SqlDedupStore, claim: Claim, seconds: float = 0.001) -> None:
    """A handler that is a coroutine."""
    async with Grant(store, claim, None).transaction() as connection:
        connection.execute("INSERT INTO effects VALUES (?)", (claim.key,))
        await asyncio.sleep(seconds)


def in_loop(store: SqlDedupStore, claims: list[Claim], seconds: float = 0.001) -> None:
    """All of them at once, in a loop whose own threads are few."""

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        await asyncio.gather(*[awork(store, claim, seconds) for claim in claims])

    asyncio.run(main())


def test_a_hundred_coroutines_of_a_millisecond_all_succeed(store: SqlDedupStore, file: Path) -> None:
    """Whoever waits to begin must not sit on the thread that the holder needs to commit."""
    claims = claimed(store, 100)
    in_loop(store, claims)
    assert effects(file) == 100
    assert store.claim(claims) == [Done(b"")] * 100


def test_threads_and_coroutines_of_several_loops_share_the_line(store: SqlDedupStore, file: Path) -> None:
    mine, yours, plain = (claimed(store, 40, name) for name in ("a", "b", "c"))
    threads = [threading.Thread(target=in_loop, args=(store, claims)) for claims in (mine, yours)]
    threads += [threading.Thread(target=work, args=(store, claim)) for claim in plain]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert effects(file) == 120


def test_calls_are_answered_between_transactions(file: Path) -> None:
    """Claims and leases of other jobs must not wait for all that a burst has put in line."""
    store = SqlDedupStore(f"sqlite:///{file}", timeout=1.0)
    claims = claimed(store, 60)
    answers: list[Answer] = []
    burst = threading.Thread(target=in_loop, args=(store, claims, 0.04))
    burst.start()
    try:
        wait_until(lambda: store._in_transaction, "the burst is under way")
        while len(answers) < 10:
            answers += store.claim([Claim("other", "me", 600)])
        assert burst.is_alive(), "they were asked meanwhile"
    finally:
        burst.join(60)
    assert answers == [MINE] * 10
    assert effects(file) == 60
    store.close()


def test_the_claim_of_one_that_waits_for_its_turn_is_not_taken_for_renewed(file: Path) -> None:
    """It may wait longer than its claim holds, and as long as it does others may take that."""
    store = SqlDedupStore(f"sqlite:///{file}", timeout=0.2)
    first, second = claimed(store, 1), Claim("second", "me", 1.0)
    assert store.claim([second]) == [MINE]

    async def main() -> None:
        async with Grant(store, first[0], None).transaction():
            waiting = asyncio.create_task(awork(store, second))
            await asyncio.sleep(0.01)
            assert store.renew(first) == [MINE], "its row is its own while its transaction lasts"
            kept = await asyncio.to_thread(store.renew, [second])
            assert [type(answer) for answer in kept] == [Unknown], "and nobody pretends it for the other's"
        await waiting

    asyncio.run(main())
    assert effects(file) == 1
    store.close()


def test_who_waits_too_long_is_told_what_to_do(
    store: SqlDedupStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_sqlite, "TURN_WAIT_S", 0.05)
    first, second, third = claimed(store, 3)

    async def main() -> None:
        async with Grant(store, first, None).transaction():
            with pytest.raises(StoreUnavailable, match=r"one writer at a time\. Keep transactions short"):
                await awork(store, second)
            with pytest.raises(StoreUnavailable, match="lower the type's concurrency"):
                await asyncio.to_thread(work, store, third)

    asyncio.run(main())
    work(store, second)
    work(store, third)
    assert effects(file) == 2


def test_a_plain_block_in_a_coroutine_gives_up_before_it_stops_its_loop_for_long(file: Path) -> None:
    """The holder may be a coroutine of the same loop, which can't end as long as that is blocked."""
    store = SqlDedupStore(f"sqlite:///{file}", timeout=0.1)
    first, second = claimed(store, 2)

    async def main() -> None:
        began = time.monotonic()
        async with Grant(store, first, None).transaction():
            with pytest.raises(StoreUnavailable, match=r"0\.1 s were not enough"):
                work(store, second)
        assert time.monotonic() - began < sql_sqlite.TURN_WAIT_S / 2

    asyncio.run(main())
    store.close()


def test_a_handler_that_closes_its_connection_spoils_it_for_itself_only(
    store: SqlDedupStore, file: Path
) -> None:
    first, second = claimed(store, 2)

    def close_it() -> None:
        with Grant(store, first, None).transaction() as connection:
            connection.execute("INSERT INTO effects VALUES ('lost')")
            connection.close()

    with pytest.raises(sqlite3.ProgrammingError):
        close_it()
    work(store, second)
    in_loop(store, [first])
    assert effects(file) == 2


def test_a_block_left_open_with_its_connection_closed_leaves_the_way_free(
    store: SqlDedupStore, file: Path
) -> None:
    """Else one careless handler keeps all others of its process waiting, and every claim unanswered."""
    first, second = claimed(store, 2)
    left = Grant(store, first, None).transaction()
    connection = left.__enter__()
    connection.execute("INSERT INTO effects VALUES ('lost')")
    connection.close()
    left.abandon()
    assert not store._in_transaction
    work(store, second)
    assert store.claim([Claim("other", "me", 600)]) == [MINE]
    assert effects(file) == 1


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Once it has an item, the next thread of the store's can't be started; that one is the item then."""
    refused: list[Any] = []
    start = threading.Thread.start

    def refuse_one(thread: threading.Thread) -> None:
        if refused == [None] and thread.name.startswith("relevo-"):
            refused[:] = [thread]
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_one)
    return refused


def test_a_thread_that_the_system_refuses_costs_one_transaction_only(
    store: SqlDedupStore, file: Path, no_thread: list[Any]
) -> None:
    """At the limit of threads one refusal would stop the store for good: its turn would never end."""
    first, second = claimed(store, 2)
    no_thread.append(None)
    with pytest.raises(StoreUnavailable, match="could not be opened: NoThread: can't start new thread"):
        asyncio.run(awork(store, first))
    assert len(no_thread) == 1
    assert not store._in_transaction
    assert store.claim([Claim("other", "me", 600)]) == [MINE]
    in_loop(store, [first, second])
    assert effects(file) == 2


@pytest.mark.parametrize("well", [True, False])
def test_a_transaction_that_outlives_its_store_ends_without_a_thread_too(
    store: SqlDedupStore, file: Path, no_thread: list[Any], well: bool
) -> None:
    """It would hold the file's one write lock, and stop all other processes."""
    (first,) = claimed(store, 1)

    async def main() -> None:
        async with Grant(store, first, None).transaction() as connection:
            connection.execute("INSERT INTO effects VALUES ('late')")
            store.close()
            no_thread.append(None)
            if not well:
                raise LookupError

    with pytest.raises(StoreUnavailable if well else LookupError):
        asyncio.run(main())
    assert no_thread != [None]
    with sqlite3.connect(file, timeout=0, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
    assert effects(file) == 0


def test_work_that_was_refused_a_thread_never_runs(no_thread: list[Any]) -> None:
    """Its caller was told that it wasn't done."""
    thread, done = OneThread("relevo-test"), []
    no_thread.append(None)
    with pytest.raises(NoThread, match="can't start new thread"):
        asyncio.run(thread.run(lambda: done.append("refused")))
    asyncio.run(thread.run(lambda: done.append("second")))
    thread.close()
    assert done == ["second"]


def test_a_coroutine_cancelled_in_line_or_at_the_lock_leaves_the_way_free(
    store: SqlDedupStore, file: Path
) -> None:
    first, second, third = claimed(store, 3)

    async def main() -> None:
        async with Grant(store, first, None).transaction():
            in_line = asyncio.create_task(awork(store, second))
            await asyncio.sleep(0.01)
            in_line.cancel()
            await asyncio.wait([in_line])
        with sqlite3.connect(file, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")  # as another process
            at_lock = asyncio.create_task(awork(store, second))
            await asyncio.sleep(0.05)
            at_lock.cancel()
            await asyncio.wait([at_lock])
            other.execute("ROLLBACK")
        assert in_line.cancelled()
        assert at_lock.cancelled()

    asyncio.run(main())  # the loop has ended, perhaps before the lock was had
    work(store, third)
    work(store, second)
    assert effects(file) == 2


def named_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(THREAD)]


def test_its_thread_ends_with_the_store(store: SqlDedupStore, file: Path) -> None:
    first, second = claimed(store, 2)

    async def main() -> None:
        await awork(store, first)
        assert len(named_threads()) == 1
        async with Grant(store, second, None).transaction() as connection:
            store.close()
            connection.execute("INSERT INTO effects VALUES ('late')")

    asyncio.run(main())
    assert effects(file) == 2, "what was open when the store was closed ends all the same"
    wait_until(lambda: not named_threads(), "its thread has ended")


FORKS = """
import os, sys, threading
from pathlib import Path
from relevo.dedup.sql import SqlDedupStore
from tests.unit.workers.test_dedup_sqlite import claimed, effects, in_loop

file = Path(sys.argv[1])
store = SqlDedupStore(f"sqlite:///{file}", timeout=10)
first, second = claimed(store, 2)
in_loop(store, [first])
assert store._backend.line.enter(1)
pid = os.fork()
if pid == 0:
    in_loop(store, [second])
    store.close()
    os._exit(0 if effects(file) == 2 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
store._backend.line.leave()
in_loop(store, claimed(store, 1, "third"))
store.close()
print(effects(file), "effects")
"""


def test_a_forked_process_waits_for_nobody_of_its_parent(file: Path) -> None:
    """The parent's thread is not there, and whoever was in line will never leave it there."""
    script = [sys.executable, "-W", "ignore", "-c", FORKS, str(file)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "3 effects\n", ended.stderr


def test_the_line_is_in_order_and_the_two_kinds_take_turns() -> None:
    line, order = Line(), []
    assert line.enter(0)

    def come(name: str, call: bool) -> threading.Thread:
        def wait() -> None:
            assert line.enter(30, call=call)
            order.append(name)
            line.leave()

        thread = threading.Thread(target=wait)
        before = sum(len(queue) for queue in line._queues)
        thread.start()
        wait_until(lambda: sum(len(queue) for queue in line._queues) > before, "it is in line")
        return thread

    threads = [come(name, name[0] == "c") for name in ("t1", "t2", "t3", "c1", "c2")]
    assert not line.enter(0.01), "whoever gives up is out of the line"
    line.leave()
    for thread in threads:
        thread.join(30)
    assert order == ["c1", "t1", "c2", "t2", "t3"]
    assert line.enter(0)


def test_work_in_the_thread_is_undone_when_nobody_waits_for_it_any_more() -> None:
    thread, gate, said = OneThread("relevo-test"), threading.Event(), []

    def slow() -> None:
        gate.wait(30)
        said.append("done")

    async def main() -> None:
        task: asyncio.Task[Any] = asyncio.create_task(thread.run(slow, lambda: said.append("undone")))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gate.set()
    wait_until(lambda: said == ["done", "undone"], "it is undone, though the loop has ended")
    thread.close()
