"""The directory of job types: first use, the cap, and types that can't be written."""

from __future__ import annotations

import pytest

from relevo_engine import types as types_module
from relevo_engine.core.channels import MISSING, Channel, ChannelState
from relevo_engine.errors import TopicsError
from relevo_engine.types import BLOCK_MAX_S, BLOCK_MIN_S, TypeDirectory
from tests.support.waiting import wait_until


class FakeSource:
    def __init__(self, **slots: int) -> None:
        self.known = dict(slots)
        self.refused: set[str] = set()
        self.made: list[str] = []

    def slots(self) -> dict[str, int]:
        return dict(self.known)

    def create_type(self, job_type: str, partitions: int) -> None:
        if job_type in self.refused:
            raise TopicsError("not authorised")
        self.made.append(job_type)
        self.known[job_type] = partitions


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def directory(source: FakeSource, types_max: int = 3, clock: Clock | None = None) -> TypeDirectory:
    made = TypeDirectory(source, "c", 4, types_max, clock=clock or Clock())
    made.refresh()
    return made


def test_declared_types_are_open_with_their_slots() -> None:
    types = directory(FakeSource(mail=8))
    assert types.channel("mail") == Channel(ChannelState.OPEN, 8)


def test_an_undeclared_type_is_made_on_first_use_off_the_asking_thread() -> None:
    source = FakeSource()
    types = directory(source)
    assert types.channel("mail") == MISSING
    assert types.may_create("mail")
    assert source.made == []
    types.refresh()
    assert source.made == ["mail"]
    assert types.channel("mail") == Channel(ChannelState.OPEN, 4)


def test_beyond_the_cap_no_type_is_made() -> None:
    """A typing error in a client would fill the cluster with topics."""
    source = FakeSource(a=4, b=4)
    types = directory(source, types_max=3)
    assert types.may_create("c")
    assert not types.may_create("d")
    assert types.channel("d") == MISSING
    types.refresh()
    assert source.made == ["c"]


def test_a_type_that_no_topic_can_be_named_after_is_not_made() -> None:
    assert not directory(FakeSource()).may_create("../etc")


def test_a_type_declared_by_somebody_else_is_found_although_the_cap_is_reached() -> None:
    source = FakeSource(a=4)
    types = directory(source, types_max=1)
    assert not types.may_create("b")
    source.known["b"] = 4
    types.refresh()
    assert types.channel("b").state is ChannelState.OPEN


def test_a_topic_with_a_partition_count_that_does_not_fit_holds_up_its_own_type() -> None:
    types = directory(FakeSource(mail=6, other=4))
    assert types.channel("mail").state is ChannelState.BLOCKED
    assert "6 partitions, which is no multiple of 4" in types.blocked()["mail"]
    assert types.channel("other").state is ChannelState.OPEN


def test_a_topic_that_can_not_be_written_is_tried_again_after_growing_pauses() -> None:
    clock = Clock()
    types = directory(FakeSource(mail=4, other=4), clock=clock)
    pause = BLOCK_MIN_S
    for _ in range(10):
        types.on_topic_failure("c.activations.mail", "below its in-sync minimum")
        assert types.channel("mail").state is ChannelState.BLOCKED
        assert types.channel("other").state is ChannelState.OPEN
        clock.now += pause * 0.9
        types.refresh()
        assert types.channel("mail").state is ChannelState.BLOCKED
        clock.now += pause * 0.2
        types.refresh()
        assert types.channel("mail").state is ChannelState.OPEN
        pause = min(BLOCK_MAX_S, pause * 2)
    clock.now += 4 * BLOCK_MAX_S
    types.refresh()
    types.on_topic_failure("c.activations.mail", "again")
    clock.now += BLOCK_MIN_S * 1.1
    types.refresh()
    assert types.channel("mail").state is ChannelState.OPEN


def test_of_several_that_may_be_to_blame_one_after_the_other_is_tried() -> None:
    """Kafka refuses a transaction as a whole: tried together again, they would fail together for ever."""
    clock = Clock()
    types = directory(FakeSource(mail=4, sms=4, fax=4), clock=clock)
    for name in ("mail", "sms", "fax"):
        types.on_topic_failure(f"c.activations.{name}", "one of them can't be written")
    assert types.blocked().keys() == {"mail", "sms", "fax"}
    for left in ({"sms", "fax"}, {"fax"}, set()):
        clock.now += BLOCK_MIN_S * 1.01
        types.refresh()
        assert types.blocked().keys() == left


def test_a_failure_that_takes_long_to_be_known_counts_as_the_same_trouble() -> None:
    """Librdkafka tries for 8 s: with a pause that stays the shortest, the partition would do little else."""
    clock = Clock()
    types = directory(FakeSource(mail=4), clock=clock)
    pause = BLOCK_MIN_S
    for _ in range(8):
        types.on_topic_failure("c.activations.mail", "below its in-sync minimum")
        clock.now += pause * 0.9
        types.refresh()
        assert types.channel("mail").state is ChannelState.BLOCKED
        clock.now += pause * 0.1 + 20.0  # the state is made anew, and the next try takes its time
        types.refresh()
        assert types.channel("mail").state is ChannelState.OPEN
        pause = min(BLOCK_MAX_S, pause * 2)


def test_whatever_goes_wrong_types_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the thread that does it, new types would wait for ever, and nobody would be told."""
    for name in ("ASK_AGAIN_S", "REFRESH_S"):
        monkeypatch.setattr(types_module, name, 0.05)
    source = FakeSource()
    types = directory(source)
    types.start()
    try:
        slots = source.slots
        source.slots = broken  # type: ignore[method-assign]
        types.channel("mail")
        wait_until(lambda: types.trouble() is not None, "the trouble is told")
        assert "KeyError" in str(types.trouble())
        source.slots = slots  # type: ignore[method-assign]
        types.channel("mail")
        wait_until(lambda: types.channel("mail").state is ChannelState.OPEN, "it goes on")
    finally:
        types.stop()


def broken() -> dict[str, int]:
    """What nobody has thought of."""
    raise KeyError("log")


def test_a_failure_of_another_topic_is_none_of_its_business() -> None:
    types = directory(FakeSource(mail=4))
    types.on_topic_failure("c.log", "gone")
    assert types.blocked() == {}


def test_a_type_whose_topic_can_not_be_made_says_why_and_is_tried_again() -> None:
    clock = Clock()
    source = FakeSource()
    source.refused.add("mail")
    types = directory(source, clock=clock)
    types.channel("mail")
    types.refresh()
    assert "not authorised" in types.blocked()["mail"]
    source.refused.clear()
    clock.now += BLOCK_MIN_S * 1.5
    types.refresh()
    assert types.channel("mail").state is ChannelState.OPEN


def test_a_deleted_topic_is_made_again_when_it_is_asked_for() -> None:
    source = FakeSource(mail=4)
    types = directory(source)
    del source.known["mail"]
    types.refresh()
    assert types.channel("mail") == MISSING
    types.refresh()
    assert source.made == ["mail"]
