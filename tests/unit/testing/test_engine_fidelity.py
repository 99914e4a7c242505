"""The engine in memory tells what a killed process shows: the documented table, made with real servers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import relevo
from relevo.testing import Engine, KeptDedupStore
from relevo.testing.inmemory.faults import STEPS, Step

TABLE = Path(__file__).parents[3] / "docs" / "crash-table.md"
STORES = ("memory", "redis", "sql", "sql, transaction", "sqlite, transaction")


def documented() -> dict[tuple[str, Step], str]:
    """Cells of the table, by store and step."""
    rows = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    body = [row for row in rows if row[2:3].isdigit()]
    cells = [[cell.strip().replace("*", "") for cell in row.strip("|").split("|")][1:] for row in body]
    assert [len(row) for row in cells] == [len(STORES)] * len(STEPS)
    return {
        (store, step): row[column]
        for step, row in zip(STEPS, cells, strict=True)
        for column, store in enumerate(STORES)
    }


class Shop:
    """An app, and a database in which its effects are counted."""

    def __init__(self, kind: str, folder: Path) -> None:
        place = folder / "shop.db"
        self.database = sqlite3.connect(place, check_same_thread=False, isolation_level=None)
        self.database.execute("CREATE TABLE effects (job TEXT)")
        self.store = self._store(kind, place)
        self.app = relevo.WorkerApp(dedup=self.store)
        self.app.job("pay")(self.pay_in_transaction if kind.endswith("transaction") else self.pay)

    def _store(self, kind: str, place: Path) -> relevo.DedupStore:
        if kind == "memory":
            return relevo.MemoryDedupStore()
        return KeptDedupStore() if kind == "redis" else relevo.SqlDedupStore(f"sqlite:///{place}")

    def count(self) -> int:
        found: int = self.database.execute("SELECT count(*) FROM effects").fetchone()[0]
        return found

    def pay(self, job: relevo.Job) -> dict[str, int]:
        self.database.execute("INSERT INTO effects VALUES (?)", (job.key,))
        return {"run": self.count()}

    def pay_in_transaction(self, job: relevo.Job) -> None:
        with job.transaction() as connection:
            connection.execute("INSERT INTO effects VALUES (?)", (job.key,))
            job.done({"run": connection.execute("SELECT count(*) FROM effects").fetchone()[0]})


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """The shop with the store that the test names."""
    made = Shop(request.param, tmp_path)
    yield made
    made.store.close()
    made.database.close()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("shop", "kind"), [(kind, kind) for kind in STORES], indirect=["shop"])
async def test_a_death_at_each_step_ends_as_documented(shop: Shop, kind: str, step: Step) -> None:
    """A handler's test would be green, and production would do something else."""
    async with Engine() as engine:
        engine.run(shop.app)
        engine.crash_worker(after=step)
        job = await engine.create("pay")
        await engine.settle()
        await engine.advance(120)
        times = {1: "once", 2: "twice"}[shop.count()]
        # Only the worker that came after the death is left to be asked.
        again = "redelivered" if engine.stats.received else "not redelivered"
        run = engine.job(job).result["run"]
    assert f"effect {times}; {again}; result of run {run}" == documented()[kind, step]


async def test_what_the_store_has_not_noted_yet_keeps_its_lease() -> None:
    """As in production: with its lease gone the job would be handed out again, and become an incident."""
    app = relevo.WorkerApp(dedup=KeptDedupStore())
    async with Engine() as engine:

        @app.job("charge", lease=3)
        async def charge(job: relevo.Job) -> None:
            engine.lose_store(60)

        engine.run(app)
        job = await engine.create("charge")
        await engine.settle()
        await engine.advance(59)
        assert engine.job(job).state == "ACTIVE"
        await engine.advance(10)
        assert engine.job(job).state == "COMPLETED"
        assert "JobTimedOut" not in [each.kind for each in engine.events if each.key == job.key]
