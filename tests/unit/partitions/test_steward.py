"""What a node tells its standby of the partition."""

from __future__ import annotations

import threading
from unittest.mock import MagicMock

import pytest

from relevo_partitions.election.election import LeaderRecord, Sight
from relevo_partitions.settings import HostSettings
from relevo_partitions.supervisor.post import Post
from relevo_partitions.supervisor.signals import Finished, Standing
from relevo_partitions.supervisor.steward import Steward
from relevo_partitions.term.endings import Ending, TermOver
from relevo_partitions.term.roles import Role, RoleKeeper
from relevo_partitions.term.takeover import Cause

LED = Sight(LeaderRecord("b", "i", "t", 1, 7, 0), ())
FREE = Sight(None, ())


def test_a_standby_is_waited_for_just_while_its_partition_has_no_leader() -> None:
    """One that rests then would keep the partition standing; one that doesn't otherwise, its neighbours."""
    scene = MagicMock(leaving=False, me="a")
    scene.live.return_value, scene.dead_names.return_value = {"a", "b"}, set()
    runtime, election, replicas = MagicMock(), MagicMock(), MagicMock()
    runtime.monotonic.return_value = 100.0
    election.is_own.return_value = False
    standby = replicas.standby.return_value
    standby.hot = False
    settings = HostSettings(node="a", address="a:1", kafka="k:1", zookeeper="z:1", cluster="c", partitions=1)
    steward = Steward(settings, scene, election, replicas, MagicMock(), MagicMock(), runtime, MagicMock())
    post = Post(0, MagicMock(), MagicMock())
    for sight, waited_for in ((LED, False), (FREE, True), (LED, False)):
        election.look.return_value = sight
        steward.look(post)
        assert post.standby is not None
        assert standby.waited_for is waited_for


class Office:
    """A steward of one partition, on stand-ins; `events` is its mailbox."""

    def __init__(self) -> None:
        self.scene = MagicMock(leaving=False, me="a", session=7)
        self.scene.live.return_value, self.scene.dead_names.return_value = {"a", "b"}, set()
        self.runtime, self.election, self.replicas = MagicMock(), MagicMock(), MagicMock()
        self.runtime.monotonic.return_value = 100.0
        self.runtime.token.return_value = "token"
        self.runtime.signal = threading.Event
        self.election.is_own.return_value = False
        self.observer, self.events = MagicMock(), MagicMock()
        settings = HostSettings(
            node="a", address="a:1", kafka="k:1", zookeeper="z:1", cluster="c", partitions=1
        )
        self.steward = Steward(
            settings, self.scene, self.election, self.replicas, self.observer, MagicMock(), self.runtime,
            self.events,
        )  # fmt: skip
        self.post = Post(0, RoleKeeper(0, lambda *_: None), MagicMock())

    def stand_by(self) -> MagicMock:
        """A standby that is hot."""
        self.election.look.return_value = LED
        standby: MagicMock = self.replicas.standby.return_value
        standby.hot, standby.over, standby.replica, standby.applied = True, None, None, 0
        standby.await_end.return_value = False
        self.steward.look(self.post)
        return standby

    def claim(self) -> None:
        """The partition is free, and this node gets it."""
        self.election.look.return_value = FREE
        self.steward.look(self.post)
        self.post.claim_at = 0.0
        self.steward.claim_if_due(self.post)


def test_a_term_without_a_thread_gives_its_claim_back() -> None:
    """Else the partition has a leader by ZooKeeper's word, and nobody works for it, until a restart."""
    office = Office()
    standby = office.stand_by()
    office.runtime.spawn.side_effect = RuntimeError("can't start new thread")
    office.claim()
    finished = office.events.put.call_args.args[0]
    assert finished.over.ending is Ending.MACHINE_FAILED
    office.steward.finish(office.post, finished)
    office.election.remove.assert_called_once()
    assert office.post.leadership is None
    assert office.post.standby is standby
    assert office.post.blocked_until > 100.0


def test_a_standby_without_a_thread_is_tried_again() -> None:
    office = Office()
    office.runtime.spawn.side_effect = RuntimeError("can't start new thread")
    office.stand_by()
    assert (office.post.standby, office.post.dirty) == (None, True)
    assert office.post.blocked_until > 100.0


def goes_on(office: Office, standby: MagicMock, replica: MagicMock) -> None:
    """Another standby follows from where this one stopped, with its machine, and nobody else keeps that."""
    assert office.replicas.standby.call_count == 2
    _, _, load = office.replicas.standby.call_args.args
    assert office.post.standby is not None
    replica.reader.close.assert_called_once()
    beginning = load(0, MagicMock())
    assert (beginning.machine, beginning.log_offset) == (replica.machine, replica.next_offset)
    with pytest.raises(IndexError):
        load(0, MagicMock())


def test_a_standby_that_ended_at_the_barrier_of_a_term_that_was_over_goes_on() -> None:
    """It is hot by its own word, and reads nothing more: no candidate, and no taker of snapshots."""
    office = Office()
    standby = office.stand_by()
    replica = standby.replica = standby.hand_out.return_value
    standby.await_end.return_value = True
    office.steward.standing(office.post, Standing(standby))
    goes_on(office, standby, replica)


@pytest.mark.parametrize("ending", [Ending.LOST, Ending.UNCONFIRMED])
def test_a_term_that_is_not_confirmed_behind_its_barrier_leaves_the_state_loaded(ending: Ending) -> None:
    """With a large state the partition would have no candidate for seconds, wherever ZooKeeper falters."""
    office = Office()
    standby = office.stand_by()
    replica = standby.hand_out.return_value
    office.claim()
    leadership = office.post.leadership
    assert leadership is not None
    leadership.unused_standby = standby
    standby.await_end.return_value = True
    office.steward.finish(office.post, Finished(0, leadership, TermOver(ending, "")))
    goes_on(office, standby, replica)
    assert office.post.roles.role is Role.FOLLOWING


def test_a_lost_reply_to_a_claim_hides_no_cause() -> None:
    """The record explains slow takeovers, and those are the ones in which replies are lost."""
    office = Office()
    office.stand_by()
    office.runtime.monotonic.return_value = 107.0
    office.runtime.wall.return_value = 0.0
    office.post.death_noticed_at = 106.5
    assert office.steward.doomed(office.post) == "token"
    office.election.look.return_value = Sight(LeaderRecord("a", "i", "token", 9, 7, 0), ())
    office.election.is_own.return_value = True
    office.runtime.monotonic.return_value = 109.0
    office.steward.look(office.post)
    (takeover,) = office.steward.takeovers
    assert (takeover.cause, takeover.previous) == (Cause.PULSE, "b")
    record = takeover.as_dict()
    assert record["claimed_at"] - record["noticed_at"] == 2_500


def test_the_detection_of_a_death_begins_where_it_showed() -> None:
    """From the notice to the attempt takes nothing: that alone would say that deaths are seen at once."""
    office = Office()
    office.stand_by()
    office.runtime.monotonic.return_value = 107.0
    office.runtime.wall.return_value = 0.0
    office.post.death_noticed_at, office.post.leader_lost_at = 106.75, 106.5
    assert office.steward.doomed(office.post) == "token"
    assert office.observer.takeover_step.call_args.args == (0, "detect", 0.5)
    assert office.post.takeover is not None
    record = office.post.takeover.as_dict()
    assert record["noticed_at"] - record["lost_at"] == 250


def test_the_detection_by_zookeeper_begins_where_it_showed_nobody() -> None:
    """What an earlier leader's death left behind has no part in it."""
    office = Office()
    office.stand_by()
    office.post.leader_lost_at = 1.0
    office.post.cause, office.post.free_since = Cause.ZNODE, 99.75
    office.claim()
    (takeover,) = office.steward.takeovers
    assert takeover.as_dict()["lost_at"] is None
    steps = [call.args[1:] for call in office.observer.takeover_step.call_args_list]
    assert steps[0] == ("detect", office.runtime.monotonic() - 99.75)


def test_the_standby_of_a_term_that_was_given_up_ends() -> None:
    """Its thread comes back from the call that hung: by then another standby follows the log."""
    office = Office()
    standby = office.stand_by()
    office.claim()
    leadership = office.post.leadership
    assert leadership is not None
    office.steward.abandon(office.post, leadership, "hangs")
    standby.stop.assert_called_once()
    leadership.unused_standby = standby
    office.steward.finish(office.post, Finished(0, leadership, TermOver(Ending.ABANDONED, "hangs")))
    assert standby.stop.call_count == 2
    assert leadership.unused_standby is None


@pytest.mark.parametrize(
    ("candidates", "live", "hot"),
    [(("b",), {"a", "b"}, True), (("b",), {"a"}, False), ((), {"a", "b"}, False)],
)
def test_a_leader_knows_whether_another_could_take_over(
    candidates: tuple[str, ...], live: set[str], hot: bool
) -> None:
    office = Office()
    office.post.leadership = MagicMock()
    office.post.saw(Sight(LeaderRecord("a", "i", "t", 1, 7, 0), candidates), 1.0, live)
    assert office.post.leadership.heir_is_hot is hot
