"""A standby in a thread of its own, above a log that a test writes."""

from __future__ import annotations

import threading
from typing import Any

from relevo_partitions.observer import Observer
from relevo_partitions.settings import StandbySettings
from relevo_partitions.statemachine import Incoming, Term
from relevo_partitions.term.barrier import make_barrier
from relevo_partitions.term.standby import Load, Standby, from_the_beginning
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until
from tests.unit.partitions.fakes import LOG, FakeIO, FakeKafka

SETTINGS = StandbySettings(idle_wait_s=0.002, batch_max=10, lag_hot=5, lag_max=20, behind_s=0.0, stall_s=0.02)


def machine(number: int = 0) -> CounterMachine:
    return CounterMachine(number, "c")


def events(kafka: FakeKafka, count: int) -> None:
    """Append ``count`` events of 1 each, as one leader would write them."""
    writer = machine()
    writer.replay([record for record in kafka.log if record.value is not None and record.value[:1] == b"{"])
    writes = [] if writer.epoch else list(writer.lead(Any, 1))  # type: ignore[arg-type]
    for _ in range(count):
        offset = writer.position
        writes += writer.step([Incoming(offset, b"", b'{"id": "c%d", "add": 1}' % offset)], 1)
    kafka.append(writes)


class FaultsTo(Observer):
    """Keeps the kinds of faults in a list."""

    def __init__(self, kinds: list[str]) -> None:
        self._kinds = kinds

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        self._kinds.append(kind)


class Following:
    """A standby in a thread of its own; ended and joined at the end of a test."""

    def __init__(self, kafka: FakeKafka, load: Load | None = None, **more: Any) -> None:
        self.told: list[bool] = []
        self.faults: list[str] = []
        self.standby = Standby(
            0,
            io=FakeIO(kafka),
            load=load or from_the_beginning(machine),
            observer=FaultsTo(self.faults),
            changed=lambda standby: self.told.append(standby.hot),
            settings=SETTINGS,
            **more,
        )
        self.thread = threading.Thread(target=self.standby.run, daemon=True)
        self.thread.start()

    def wait_hot(self) -> Following:
        wait_until(lambda: self.standby.hot, "the standby is hot", timeout_s=10)
        return self

    def wait_ended(self) -> Standby:
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.standby


def led_once() -> FakeKafka:
    """Kafka with a log that has had a leader."""
    kafka = FakeKafka()
    kafka.append(machine().lead(Term("n0", "i0"), 1))
    return kafka


def barrier(kafka: FakeKafka, nonce: str) -> None:
    kafka.append([make_barrier(LOG, 0, "n1", "i1", nonce)])
