"""A fence that Kafka can't grant yet goes on trying: often enough, and with time for an answer each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka import fence as fencing
from relevo_partitions.kafka.connection import Connection, Faults

ANSWER_S = 0.01


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Pool:
    """Has a producer for everybody."""

    connection = Connection("kafka.example:9092")

    def __len__(self) -> int:
        return 1

    def keep(self, _count: int) -> None:
        pass

    def take(self, _timeout_s: float) -> tuple[Any, Faults]:
        return self, Faults()

    def poll(self, _timeout_s: float) -> None:
        pass


class Coordinator:
    """Answers that a transaction is being ended, until it is."""

    def __init__(self, clock: Clock, ready_at: float) -> None:
        self.clock, self.ready_at = clock, ready_at
        self.given_s: list[float] = []

    def __call__(
        self, _producer: object, _slice_s: float, until: float, _cancelled: Callable[[], bool]
    ) -> KafkaError | None:
        self.given_s.append(until - self.clock.now)
        self.clock.sleep(ANSWER_S)
        if self.clock.now >= self.ready_at:
            return None
        return KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, "being ended", False, True)


def fence(monkeypatch: pytest.MonkeyPatch, ready_at: float) -> tuple[Clock, Coordinator]:
    """What became of the clock and the coordinator, however the fence has ended."""
    clock = Clock()
    coordinator = Coordinator(clock, ready_at)
    monkeypatch.setattr(fencing, "time", clock)
    monkeypatch.setattr(fencing, "_initialise", coordinator)
    monkeypatch.setattr(fencing, "drop_in_background", lambda _producer: None)
    pool: Any = Pool()
    if ready_at < fencing.LIMIT_S:
        fencing.fence(pool, lambda: False)
    else:
        with pytest.raises(KafkaUnavailable, match="CONCURRENT_TRANSACTIONS"):
            fencing.fence(pool, lambda: False)
    return clock, coordinator


@pytest.mark.parametrize("ready_at", [3.0, 8.0, 11.0, 16.0, 18.0])
def test_a_partition_stands_still_no_longer_than_one_pause(
    monkeypatch: pytest.MonkeyPatch, ready_at: float
) -> None:
    """Below the in-sync minimum brokers can't end a transaction, for as long as it takes to start them."""
    clock, _ = fence(monkeypatch, ready_at)
    assert clock.now <= ready_at + fencing.PAUSE_MAX_S + 2 * ANSWER_S


def test_the_last_try_has_time_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it ends as a time-out, which is told as "Kafka isn't reachable" although Kafka has answered."""
    clock, coordinator = fence(monkeypatch, fencing.LIMIT_S + 1)
    assert min(coordinator.given_s) > ANSWER_S, coordinator.given_s
    assert fencing.LIMIT_S - fencing.PAUSE_MAX_S - ANSWER_S <= clock.now <= fencing.LIMIT_S
