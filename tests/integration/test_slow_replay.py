"""A replay that takes much longer than a transaction may last."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from confluent_kafka import Producer

from relevo_partitions.kafka import writer as writing
from relevo_partitions.statemachine import Incoming
from relevo_partitions.term.barrier import is_barrier
from tests.support.brokers import Brokers
from tests.support.counter_cluster import counter_cluster
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until

TRANSACTION_S = 1.0


def test_no_transaction_is_open_while_a_leader_replays(
    brokers: Brokers, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker would abort it and shut the new leader out; until then, nobody could read what it wrote."""
    monkeypatch.setattr(writing, "TRANSACTION_TIMEOUT_S", TRANSACTION_S)
    monkeypatch.setattr(writing, "DELIVERY_TIMEOUT_S", 0.9 * TRANSACTION_S)
    slow, replaying, gate = threading.Event(), threading.Event(), threading.Event()

    class Slow(CounterMachine):
        def replay(self, records: Sequence[Incoming]) -> None:
            if slow.is_set():
                slow.clear()
                replaying.set()
                assert gate.wait(60)
            super().replay(records)

    with counter_cluster(brokers, cluster_name) as cluster:
        cluster.host("n1", machine=lambda number: Slow(number, cluster.name))
        cluster.wait_leader("n1")
        cluster.send_many(500)
        cluster.wait_total(500)
        slow.set()
        # Shut out from outside: the leader fences, and reads the log again.
        foreign = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": f"{cluster.name}-0"})
        foreign.init_transactions(30)
        barriers = sum(map(is_barrier, cluster.log()))
        cluster.send(id="after", add=1)
        assert replaying.wait(30)
        began = time.monotonic()
        wait_until(lambda: sum(map(is_barrier, cluster.log())) > barriers, "its barrier can be read at once")
        time.sleep(max(0.0, began + 3 * TRANSACTION_S - time.monotonic()))  # the replay's duration is tested
        gate.set()
        cluster.wait_total(501, timeout_s=60)
        assert cluster.diaries["n1"].kinds() == {"fenced"}
        assert len([fault for fault in cluster.diaries["n1"].faults if fault[1] == "fenced"]) == 1
        assert [event["epoch"] for event in cluster.events() if event["kind"] == "elected"] == [1, 2]
