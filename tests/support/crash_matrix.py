"""Stores, the steps at which a worker dies, and the table of what then happens."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis

import relevo
from relevo.dedup.store import Answer, Claim, Finish
from relevo.worker.gate import Gate
from tests.support.waiting import wait_until

FORMS = ("plain", "coroutine")
"""Of a handler. A worker process runs a job with each, and dies when both have come to the step."""
STORES = ("memory", "redis", "sql", "sql, transaction", "sqlite, transaction")
STEPS = (
    "before claim",
    "after claim",
    "after start",
    "after effect",
    "after done",
    "before commit",
    "after commit",
)
TABLE = Path(__file__).parents[2] / "docs" / "crash-table.md"
_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"
_TITLES = {
    "memory": "`MemoryDedupStore`",
    "redis": "`RedisDedupStore`",
    "sql": "`SqlDedupStore`",
    "sql, transaction": "`SqlDedupStore`, `job.transaction()`",
    "sqlite, transaction": "the same in a SQLite file",
}
_ROWS = {
    "before claim": "1. read, before its claim",
    "after claim": "2. claimed, before its start",
    "after start": "3. started and reported, before its effect",
    "after effect": "4. after its effect, before the done mark",
    "after done": "5. after the done mark, before the completion",
    "before commit": "6. after the completion, before its offset",
    "after commit": "7. after its offset was committed",
}


_TOGETHER_S = 60.0
_ALONE = 3
"""How a process ends in which one job came to the step and the other did not."""


@dataclass(frozen=True)
class Places:
    """Where effects happen and claims are kept.

    Attributes:
        redis: Address of Redis.
        database: Address of PostgreSQL; it has a table ``effects (key text)``.
        file: Path of a SQLite file with the same table.
    """

    redis: str
    database: str
    file: str

    def prepare(self) -> None:
        """Make the tables."""
        make = "CREATE TABLE effects (key text)"
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(make)
        with closing(sqlite3.connect(self.file)) as file:
            file.execute(make)


@dataclass(frozen=True)
class Fate:
    """What became of a job whose worker died.

    Attributes:
        effects: How often its effect happened.
        redelivered: Whether another worker was handed the job.
        run: Which run's result the job has.
    """

    effects: int
    redelivered: bool
    run: int

    def __str__(self) -> str:
        times = {1: "once", 2: "**twice**"}.get(self.effects, f"**{self.effects} times**")
        again = "redelivered" if self.redelivered else "not redelivered"
        return f"effect {times}; {again}; result of run {self.run}"


def make_store(kind: str, places: Places) -> relevo.DedupStore:
    """A store of the kind, as a worker process makes it when it starts."""
    if kind == "memory":
        return relevo.MemoryDedupStore()
    if kind == "redis":
        return relevo.RedisDedupStore(places.redis, timeout=10)
    if kind == "sqlite, transaction":
        return relevo.SqlDedupStore(f"sqlite:///{places.file}", timeout=10)
    return relevo.SqlDedupStore(places.database, timeout=10, table="dedup")


def count_effects(kind: str, places: Places, cluster: str, key: str) -> int:
    """How often the effect of a job has happened."""
    if kind == "sqlite, transaction":
        with closing(sqlite3.connect(places.file)) as file:
            return int(file.execute("SELECT count(*) FROM effects WHERE key = ?", (key,)).fetchone()[0])
    if kind == "sql, transaction":
        with psycopg.connect(places.database) as connection:
            found = connection.execute("SELECT count(*) FROM effects WHERE key = %s", (key,)).fetchone()
            return int(found[0]) if found else 0
    with redis.Redis.from_url(places.redis) as client:
        return int(client.get(f"effects:{cluster}:{key}") or 0)


def handler_for(
    kind: str, form: str, places: Places, cluster: str, at: Callable[[str], None] = lambda step: None
) -> Callable[[relevo.Job], Any]:
    """A handler whose result says which run it was.

    Args:
        kind: The store's kind.
        form: One of `FORMS`.
        places: Where effects happen.
        cluster: The cluster's name.
        at: Called at the steps inside of the handler; may block, though it be in a coroutine.
    """
    client = redis.Redis.from_url(places.redis)
    mark = "?" if kind == "sqlite, transaction" else "%s"
    perform = f"INSERT INTO effects VALUES ({mark})"
    count_them = f"SELECT count(*) FROM effects WHERE key = {mark}"

    def with_mark(job: relevo.Job) -> dict[str, int]:
        at("after start")
        run = int(client.incr(f"effects:{cluster}:{job.key}"))
        return {"run": run}

    def in_transaction(job: relevo.Job) -> None:
        at("after start")
        with job.transaction() as connection:
            connection.execute(perform, (job.key,))
            count = connection.execute(count_them, (job.key,)).fetchone()
            at("after effect")
            job.done({"run": count[0]})
        at("after done")

    async def coroutine_with_mark(job: relevo.Job) -> dict[str, int]:
        return with_mark(job)

    async def coroutine_in_transaction(job: relevo.Job) -> None:
        at("after start")
        async with job.transaction() as connection:
            await connection.execute(perform, (job.key,))
            count = await (await connection.execute(count_them, (job.key,))).fetchone()
            at("after effect")
            job.done({"run": count[0]})
        at("after done")

    async def coroutine_in_file(job: relevo.Job) -> None:
        at("after start")
        async with job.transaction() as connection:
            connection.execute(perform, (job.key,))
            count = connection.execute(count_them, (job.key,)).fetchone()
            at("after effect")
            job.done({"run": count[0]})
        at("after done")

    if kind == "sqlite, transaction":
        return coroutine_in_file if form == "coroutine" else in_transaction
    if kind == "sql, transaction":
        return coroutine_in_transaction if form == "coroutine" else in_transaction
    return coroutine_with_mark if form == "coroutine" else with_mark


def die() -> None:
    """As a process that runs out of memory does."""
    os.kill(os.getpid(), signal.SIGKILL)


def meetings(kind: str, step: str) -> list[tuple[str, ...]]:
    """The forms that come to a step together, of a process each: a SQLite file has one writer at a time."""
    alone = (kind, step) == ("sqlite, transaction", "after effect")
    return [(form,) for form in FORMS] if alone else [FORMS]


def arm(
    app: relevo.WorkerApp, store: relevo.DedupStore, step: str, jobs: int, *, gently: bool = False
) -> Callable[[str], None]:
    """Make a worker kill its process when each of so many jobs has come to a step; a handler's ``at``.

    Each job is of a type of its own, and so has a thread that may wait for the others.

    Args:
        app: The worker.
        store: Its dedup store.
        step: One of `STEPS`.
        jobs: How many come to the step.
        gently: With SIGTERM, once: the step goes on when the worker has begun to stop.
    """
    claim, done, acknowledged = store.claim, store.done, Gate._acknowledged
    over = threading.Event()

    def end() -> None:
        if not gently:
            die()
        over.set()
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: app._workers.stopping, "the worker stops", timeout_s=_TOGETHER_S)

    there = threading.Barrier(jobs, action=end, timeout=_TOGETHER_S)

    def die_together() -> None:
        if over.is_set():
            return
        try:
            there.wait()
        except threading.BrokenBarrierError:
            os._exit(_ALONE)

    def dying_claim(claims: Sequence[Claim]) -> list[Answer]:
        if step == "before claim":
            die_together()
        answers = claim(claims)
        if step == "after claim":
            die_together()
        return answers

    def dying_done(finishes: Sequence[Finish]) -> list[Answer]:
        if step == "after effect":
            die_together()
        answers = done(finishes)
        if step == "after done":
            die_together()
        return answers

    def dying_acknowledged(*args: Any) -> None:
        # All acknowledgements are in; nothing has been committed yet.
        if step == "before commit":
            die_together()
        acknowledged(*args)

    def at(now: str) -> None:
        if now != step:
            return
        while now == "after start" and not all(item.reported for item in app._workers.running):
            time.sleep(0.01)
        die_together()

    store.claim, store.done = dying_claim, dying_done  # type: ignore[method-assign]
    Gate._acknowledged = dying_acknowledged  # type: ignore[assignment, method-assign]
    return at


def table_of(fates: Mapping[tuple[str, str], Fate]) -> str:
    """The table as the documentation has it."""
    lines = ["| the worker dies | " + " | ".join(_TITLES[kind] for kind in STORES) + " |"]
    lines.append("|---" * (len(STORES) + 1) + "|")
    for step in STEPS:
        lines.append(f"| {_ROWS[step]} | " + " | ".join(str(fates[kind, step]) for kind in STORES) + " |")
    return "\n".join(lines) + "\n"


def documented() -> str:
    """The table in the documentation."""
    return TABLE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]


def document(table: str) -> None:
    """Put the table into the documentation."""
    before, _, rest = TABLE.read_text(encoding="utf-8").partition(_BEGIN)
    TABLE.write_text(before + _BEGIN + table + _END + rest.partition(_END)[2], encoding="utf-8")
