"""What a node tells its standby of the partition."""

from __future__ import annotations

from unittest.mock import MagicMock

from relevo_partitions.election.election import LeaderRecord, Sight
from relevo_partitions.settings import HostSettings
from relevo_partitions.supervisor.post import Post
from relevo_partitions.supervisor.steward import Steward

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
