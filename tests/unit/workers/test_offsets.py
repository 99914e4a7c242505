"""A commit that is too high loses jobs; one that goes back, or belongs to somebody else, repeats them."""

from __future__ import annotations

import threading
import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relevo.consumer.offsets import Entry, OffsetTracker

TOPIC = "t"


def begin(tracker: OffsetTracker, *offsets: int, partition: int = 0) -> list[Entry]:
    entries = tracker.begin([(TOPIC, partition, offset) for offset in offsets])
    return [entry for entry in entries if entry is not None]


def committable(tracker: OffsetTracker) -> dict[int, int]:
    return {owned.partition: offset for owned, offset in tracker.committable()}


def test_the_highest_seen_is_never_committed_over_open_work() -> None:
    tracker = OffsetTracker()
    tracker.assign(TOPIC, 0, 10)
    first, second, third = begin(tracker, 10, 11, 12)
    tracker.finish([second, third])
    assert committable(tracker) == {}
    tracker.finish([first])
    assert committable(tracker) == {0: 13}


def test_holes_of_control_records_do_not_stop_the_commit() -> None:
    """Transaction markers take offsets that no reader ever sees."""
    tracker = OffsetTracker()
    tracker.assign(TOPIC, 0, 0)
    tracker.finish(begin(tracker, 1, 5, 9))
    assert committable(tracker) == {0: 10}


def test_a_late_finish_of_an_earlier_ownership_moves_nothing() -> None:
    """A to B to A: a job that A began first ends late, while A's second ownership has open work."""
    tracker = OffsetTracker()
    first = tracker.assign(TOPIC, 0, 100)
    late = begin(tracker, 100, 101)
    tracker.close([(TOPIC, 0)])
    tracker.end([(TOPIC, 0)])
    again = tracker.assign(TOPIC, 0, 100)
    open_now = begin(tracker, 100)
    tracker.finish(late)
    assert again.generation > first.generation
    assert committable(tracker) == {}
    assert tracker.unfinished == 1
    tracker.finish(open_now)
    assert committable(tracker) == {0: 101}


def test_a_commit_never_goes_back() -> None:
    tracker = OffsetTracker()
    owned = tracker.assign(TOPIC, 0, 5)
    tracker.finish(begin(tracker, 5, 6))
    tracker.committed(owned, 7)
    tracker.committed(owned, 6)
    assert owned.committed == 7
    assert committable(tracker) == {}


def test_nothing_is_committed_for_a_partition_that_is_not_ours() -> None:
    tracker = OffsetTracker()
    owned = tracker.assign(TOPIC, 0, 0)
    entries = begin(tracker, 0)
    tracker.end([(TOPIC, 0)])
    tracker.finish(entries)
    assert tracker.committable() == []
    assert tracker.committable([owned]) == []
    assert tracker.begin([(TOPIC, 0, 1)]) == [None]
    assert tracker.unfinished == 0


def test_nothing_is_started_in_a_partition_that_is_being_revoked() -> None:
    tracker = OffsetTracker()
    tracker.assign(TOPIC, 0, 0)
    tracker.assign(TOPIC, 1, 0)
    (leaving,) = begin(tracker, 0)
    (staying,) = begin(tracker, 0, partition=1)
    tracker.close([(TOPIC, 0)])
    assert tracker.start([leaving, staying]) == [False, True]


def test_messages_read_again_are_recognised() -> None:
    """After a seek back over a hole, what had arrived before must not run twice."""
    tracker = OffsetTracker()
    tracker.assign(TOPIC, 0, 0)
    begin(tracker, 0, 1)
    assert [entry is None for entry in tracker.begin([(TOPIC, 0, offset) for offset in (0, 1, 2)])] == [
        True,
        True,
        False,
    ]


def test_draining_waits_for_what_runs_and_for_nothing_else() -> None:
    tracker = OffsetTracker()
    owned = tracker.assign(TOPIC, 0, 0)
    running, waiting = begin(tracker, 0, 1)
    tracker.start([running])
    tracker.close([(TOPIC, 0)])
    assert not tracker.wait_idle([owned], time.monotonic())
    threading.Timer(0.01, tracker.finish, ([running],)).start()
    assert tracker.wait_idle([owned], time.monotonic() + 30)
    assert waiting.finished is False


def test_what_was_committed_before_it_began_is_nobody_elses() -> None:
    """Kafka gives it out no more: whoever has the partition next, it is run here, and waited for."""
    tracker = OffsetTracker()
    owned = tracker.assign(TOPIC, 0, 3)
    first, second, third = begin(tracker, 3, 4, 9)
    tracker.committed(owned, 5)
    assert (tracker.unfinished, tracker.unstarted) == (3, 1)
    tracker.close([(TOPIC, 0)])
    assert not tracker.wait_idle([owned], time.monotonic())
    assert tracker.start([first, second, third]) == [True, True, False]
    assert [each.gone for each in (first, second, third)] == [False, False, True]
    tracker.finish([first, second])
    assert tracker.wait_idle([owned], time.monotonic())
    assert committable(tracker) == {0: 9}
    tracker.end([(TOPIC, 0)])
    assert tracker.unfinished == 0


def test_what_was_promised_a_start_has_it_while_its_partition_is_handed_over_and_no_longer() -> None:
    """The engine counts it as begun: its next owner's question would end the attempt."""
    tracker = OffsetTracker()
    owned = tracker.assign(TOPIC, 0, 0)
    promised, put_back = begin(tracker, 0, 1)
    tracker.start([promised, put_back])
    tracker.put_back([put_back])
    tracker.close([(TOPIC, 0)])
    assert tracker.start([promised, put_back]) == [True, False]
    assert owned.running == 1
    tracker.end([(TOPIC, 0)])
    assert tracker.start([promised]) == [False]


def test_who_waits_is_called_away_and_told_whether_what_he_waited_for_is_there() -> None:
    tracker = OffsetTracker()
    owned = tracker.assign(TOPIC, 0, 0)
    tracker.start(begin(tracker, 0))
    threading.Timer(0.01, tracker.call).start()
    assert not tracker.wait_below(1, 30.0)
    assert not tracker.wait_idle([owned], time.monotonic() + 30), "still called"
    tracker.heed()
    threading.Timer(0.01, tracker.call).start()
    tracker.wait_call(30.0)
    assert tracker.wait_below(2, 30.0)


class AnyOrder(RuleBasedStateMachine):
    """Against a model that remembers everything: which offsets were read, and which of those are finished."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.stale: list[Entry] = []
        self.committed_before: dict[tuple[int, int], int] = {}
        self.live: dict[int, list[Entry]] = {}

    @rule(partition=st.integers(0, 2), start=st.integers(0, 50))
    def assign(self, partition: int, start: int) -> None:
        self.stale += self.live.pop(partition, [])
        self.tracker.assign(TOPIC, partition, start)
        self.live[partition] = []

    @precondition(lambda self: self.live)
    @rule(data=st.data(), gaps=st.lists(st.integers(1, 4), min_size=1, max_size=6))
    def read(self, data: st.DataObject, gaps: list[int]) -> None:
        partition = data.draw(st.sampled_from(sorted(self.live)))
        owned = next(each for each in self.tracker.owned() if each.partition == partition)
        offset = (owned.next or 0) - 1
        for gap in gaps:
            offset += gap
            self.live[partition] += begin(self.tracker, offset, partition=partition)

    @precondition(lambda self: any(self.live.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        entries = [entry for some in self.live.values() for entry in some]
        self.tracker.finish(data.draw(st.lists(st.sampled_from(entries), max_size=5)))

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def finish_late(self, data: st.DataObject) -> None:
        self.tracker.finish([data.draw(st.sampled_from(self.stale))])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.live)))
        self.tracker.end([(TOPIC, partition)])
        self.stale += self.live.pop(partition)

    @rule()
    def commit(self) -> None:
        for owned, offset in self.tracker.committable():
            place = (owned.partition, owned.generation)
            assert offset > self.committed_before.get(place, -1)
            self.committed_before[place] = offset
            self.tracker.committed(owned, offset)

    @precondition(lambda self: any(self.live.values()))
    @rule(data=st.data())
    def commit_first(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from([entry for some in self.live.values() for entry in some]))
        owned = entry.ownership
        place = (owned.partition, owned.generation)
        self.committed_before[place] = max(self.committed_before.get(place, -1), entry.offset + 1)
        self.tracker.committed(owned, entry.offset + 1)

    @precondition(lambda self: any(self.live.values()))
    @rule(data=st.data(), back=st.booleans())
    def start(self, data: st.DataObject, back: bool) -> None:
        entries = [entry for some in self.live.values() for entry in some]
        drawn = data.draw(st.lists(st.sampled_from(entries), max_size=5))
        assert all(self.tracker.start(drawn))
        if back:
            self.tracker.put_back(drawn)

    @invariant()
    def everything_below_a_commit_is_finished(self) -> None:
        for owned, offset in self.tracker.committable():
            assert owned.partition in self.live
            below = [entry for entry in self.live[owned.partition] if entry.offset < offset]
            assert all(entry.finished or entry.committed for entry in below)

    @invariant()
    def who_runs_is_known(self) -> None:
        for owned in self.tracker.owned():
            running = [each for each in self.live[owned.partition] if each.started and not each.finished]
            assert owned.running == len(running)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        unfinished = [entry for some in self.live.values() for entry in some if not entry.finished]
        assert self.tracker.unfinished == len(unfinished)
        for owned in self.tracker.owned():
            if all(entry.finished for entry in self.live[owned.partition]):
                assert owned.committable == owned.next


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=40)
