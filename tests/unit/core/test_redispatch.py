"""Activations that nobody takes up: Kafka keeps them, and after very long the engine emits them again."""

from __future__ import annotations

from relevo_engine.core.job import JobState
from relevo_schemas import events as ev
from tests.unit.core.harness import Channels, Partition, keys_of, only, rules

LONG = 3_600_000


def test_an_activation_that_was_lost_is_emitted_again() -> None:
    (key,) = keys_of(1, 3, 1)
    p = Partition(rules(partition=1, partitions=3), Channels({"email": 3}))
    p.create(key)
    assert p.owner.wait_ms(p.now) == LONG
    assert p.step(LONG - 1) == []
    timed_out, activated = p.step(1)
    assert isinstance(timed_out, ev.JobTimedOut)
    assert (timed_out.cause, timed_out.expiries) == ("UNCLAIMED", 0)
    assert isinstance(activated, ev.JobActivated)
    assert activated.attempt == 2
    assert activated.slot == 1, "nothing speaks against its own slot"


def test_waiting_workerless_for_days_is_no_incident() -> None:
    p = Partition(rules(lease_expiries_max=2))
    p.create("k", retries=0)
    for _ in range(48):
        p.step(LONG)
    assert p.where("k") is JobState.ACTIVE
    assert p.job("k").attempt == 49
    assert p.job("k").lease_expiries == 0
    assert len(only(p.events, ev.JobIncident)) == 0


def test_what_was_started_is_a_matter_of_its_lease() -> None:
    p = Partition(rules())
    p.create("k", lease_ms=86_400_000)
    p.start("k")
    assert p.step(2 * LONG) == []


def test_a_failover_does_not_start_the_wait_anew() -> None:
    p = Partition(rules())
    p.create("k")
    p.now += LONG - 1
    p.failover()
    assert only(p.step(1), ev.JobTimedOut)
