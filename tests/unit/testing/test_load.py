"""The load is steady, and the same for every partition."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from relevo.dedup.store import Claim
from relevo.testing.ledger import Ledger, LedgerFile
from relevo.testing.load import NotedStore, Orders, at_rate, keys_in_turn, main
from relevo_schemas.partitioning import partition_of


@pytest.mark.parametrize("partitions", [1, 3, 4])
def test_partitions_take_turns(partitions: int) -> None:
    """By chance alone a partition goes without a job for so long that it looks like a gap."""
    keys = list(itertools.islice(keys_in_turn(partitions, "d"), 60))
    assert len(set(keys)) == 60
    turns = [partition_of(key, partitions) for key in keys]
    assert turns == [number % partitions for number in range(60)]


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


def test_a_wrong_call_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dance"]) == 2
    assert "usage" in capsys.readouterr().err
