"""The load is steady, and the same for every partition."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

import relevo
from relevo.dedup.store import Claim
from relevo.testing import Engine
from relevo.testing.ledger import Ledger, LedgerFile
from relevo.testing.load import NotedStore, Orders, at_rate, keys_in_turn, main, noted, takes_long, work
from relevo_schemas.partitioning import partition_of


@pytest.mark.parametrize("partitions", [1, 3, 4])
def test_partitions_take_turns(partitions: int) -> None:
    """By chance alone a partition goes without a job for so long that it looks like a gap."""
    keys = list(itertools.islice(keys_in_turn(partitions, "d"), 60))
    assert len(set(keys)) == 60
    turns = [partition_of(key, partitions) for key in keys]
    assert turns == [number % partitions for number in range(60)]


@pytest.mark.parametrize("partitions", [1, 3, 4, 12, 24])
def test_each_partition_gets_its_share_of_long_jobs(partitions: int) -> None:
    """Counted over all of them, the long ones would all be of one partition, and the others prove nothing."""
    every, turns = 12, 24
    found = [divmod(n, partitions) for n in range(turns * partitions) if takes_long(n, partitions, every)]
    for partition in range(partitions):
        mine = [turn for turn, whose in found if whose == partition]
        assert len(mine) == turns // every
        assert mine[1] - mine[0] == every, "at even distances"
    if partitions > 1:
        assert len({turn for turn, _ in found}) > turns // every, "not all partitions at once"
    assert not any(takes_long(n, partitions, 0) for n in range(100))


def test_the_rate_does_not_wait_for_anybody() -> None:
    """A load that waits for answers sends nothing while a partition is without a leader."""
    stop = threading.Event()
    numbers = at_rate(1_000_000, stop)
    assert list(itertools.islice(numbers, 50)) == list(range(50))
    stop.set()
    assert list(numbers) == []


def test_orders_are_kept_from_others(tmp_path: Path) -> None:
    """They may hold the password of a Kafka."""
    orders = Orders("k:1", "c", 4, "t", str(tmp_path), 50.0, options={"sasl.password": "secret"})
    path = tmp_path / "orders.json"
    orders.write(path)
    assert path.stat().st_mode & 0o077 == 0
    assert Orders.read(path) == orders


def test_a_worker_goes_where_its_orders_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drill must never work on the cluster that the shell names, nor hand its password to another."""
    monkeypatch.setenv("RELEVO_KAFKA", "prod:9092")
    monkeypatch.setenv("RELEVO_CLUSTER", "prod")
    monkeypatch.setenv("RELEVO_KAFKA_OPTIONS", '{"sasl.password": "secret"}')
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(relevo.WorkerApp, "run", lambda app, drain: seen.append(app._workers._args))
    work(Orders("k:1", "drill", 4, "t", str(tmp_path), 50.0))
    assert seen[0][:3] == ("k:1", "drill", {})


def test_a_claim_stands_in_the_ledger_before_it_is_granted(tmp_path: Path) -> None:
    """A worker frozen right after its claim is in flight, and the ledger has to know."""
    from relevo import MemoryDedupStore

    book = LedgerFile(tmp_path, "worker-1")
    store = NotedStore(MemoryDedupStore(), book)
    store.claim([Claim("c:dedup:job-1", "token", 10.0)])
    book.begun("job-1", 1)
    ledger = Ledger(tmp_path)
    ledger.refresh()
    claimed = ledger.runs["job-1"][0].claimed
    assert claimed is not None
    assert claimed <= ledger.runs["job-1"][0].begun


async def test_a_handler_that_fails_leaves_a_line(tmp_path: Path) -> None:
    """Without one it looks as if it were under way for ever, and every later fault excuses its repeats."""
    book = LedgerFile(tmp_path, "worker-1")

    async def effect(fault: type[Exception] | None) -> None:
        if fault is not None:
            raise fault

    async def handle(job: relevo.Job) -> None:
        await noted(book, job, effect(ConnectionError if job.key == "failed" else None))

    app = relevo.WorkerApp()
    app.job("drill")(handle)
    async with Engine() as engine:
        engine.run(app)
        for key in ("done", "failed"):
            await engine.create("drill", key=key, retries=0)
        await engine.settle()
    ledger = Ledger(tmp_path)
    ledger.refresh()
    ends = {key: (run.ended is not None, run.failed is not None) for key, (run,) in ledger.runs.items()}
    assert ends == {"done": (True, False), "failed": (False, True)}
    assert ledger.running("worker-1") == 0


def test_a_wrong_call_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dance"]) == 2
    assert "usage" in capsys.readouterr().err
