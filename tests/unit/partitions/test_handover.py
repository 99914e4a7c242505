"""Partitions are given up one at a time, only to somebody who can take them, and never back and forth."""

from __future__ import annotations

from typing import Any

from relevo_partitions.election.election import LeaderRecord, Sight
from relevo_partitions.election.membership import NodeInfo
from relevo_partitions.election.ranking import ranking
from relevo_partitions.observer import Observer
from relevo_partitions.supervisor.handover import CAME_BACK_S, PAUSE_S, TAKE_LIMIT_S, HandOvers
from relevo_partitions.supervisor.post import Post
from relevo_partitions.supervisor.scene import Scene
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.roles import Role, RoleKeeper

WAY_TO_THE_LEAD = (
    Role.FOLLOWING, Role.STANDBY, Role.FENCING, Role.VERIFYING, Role.REPLAYING, Role.ANNOUNCING, Role.LEADING,
)  # fmt: skip


class Term:
    """Remembers how it was ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[Ending, str]] = []

    def end(self, ending: Ending, detail: str) -> None:
        self.ended.append((ending, detail))


class Heard(Observer):
    def __init__(self) -> None:
        self.handed: list[tuple[int, str, str | None]] = []

    def handed_over(self, partition: int, reason: str, to: str | None, seconds: float) -> None:
        self.handed.append((partition, reason, to))


class Site:
    """Node ``me`` leads some of eight partitions; the others are led by ``other``."""

    def __init__(self, me: str, leads: tuple[int, ...], others: tuple[str, ...] = ("other",)) -> None:
        self.scene = Scene(me, tuple(NodeInfo(node, "", node) for node in (me, *others)))
        self.heard = Heard()
        self.posts = [Post(number, RoleKeeper(number, lambda *_: None), io=Any) for number in range(8)]  # type: ignore[arg-type]
        self.hand_overs = HandOvers(self.scene, self.posts, self.heard, 10.0)
        self.me, self.czxid = me, 0
        for post in self.posts:
            if post.partition in leads:
                for role in WAY_TO_THE_LEAD:
                    post.roles.to(role)
                post.leadership = Term()  # type: ignore[assignment]
            self.sees(post.partition, me if post.partition in leads else "other")

    def sees(self, partition: int, leader: str | None, *candidates: str, now: float = 0.0) -> None:
        self.czxid += 1
        record = None if leader is None else LeaderRecord(leader, leader, "t", self.czxid, 1, 0)
        self.posts[partition].saw(Sight(record, candidates), now, self.scene.live())

    def given_up(self) -> list[int]:
        return [
            post.partition
            for post in self.posts
            if post.leadership is not None and post.leadership.ended  # type: ignore[attr-defined]
        ]

    def moves(self, partition: int, to: str | None, now: float) -> None:
        """The term has ended, and ``to`` claims."""
        post = self.posts[partition]
        post.leadership = None
        post.roles.to(Role.ENDING)
        post.roles.to(Role.OUT)
        self.sees(partition, to, now=now)


def led_better_by_other() -> list[int]:
    return [number for number in range(8) if ranking(number, ["me", "other"])[0] == "other"]


def test_leaving_gives_up_one_partition_after_the_other() -> None:
    site = Site("me", (0, 1))
    for number in (0, 1):
        site.sees(number, "me", "other")
    assert not site.hand_overs.leave(1.0)
    assert site.given_up() == [0]
    assert not site.hand_overs.leave(1.1)
    assert site.given_up() == [0], "the first one has no new leader yet"
    site.moves(0, "other", 1.2)
    assert not site.hand_overs.leave(1.2)
    assert site.given_up() == [1]
    site.moves(1, "other", 1.3)
    assert site.hand_overs.leave(1.3)
    assert site.heard.handed == [(0, "leaving", "other"), (1, "leaving", "other")]


def test_leaving_waits_for_somebody_to_be_hot() -> None:
    site = Site("me", (0,))
    assert not site.hand_overs.leave(1.0)
    assert site.given_up() == []
    assert "no other is hot" in str(site.posts[0].hand_over)
    site.sees(0, "me", "other")
    site.hand_overs.leave(2.0)
    assert site.given_up() == [0]
    term: Any = site.posts[0].leadership
    assert term.ended == [(Ending.HANDED_OVER, "handed over to other (leaving)")]


def test_partitions_that_can_go_do_not_wait_for_those_that_cannot() -> None:
    site = Site("me", (0, 1))
    site.sees(1, "me", "other")
    site.hand_overs.leave(1.0)
    assert site.given_up() == [1]


def test_a_lone_node_leaves_at_once() -> None:
    site = Site("me", (0, 1), others=())
    assert site.hand_overs.leave(1.0)
    assert site.given_up() == []


def test_a_node_that_is_known_to_be_dead_is_nobody_to_hand_over_to() -> None:
    site = Site("me", (0,))
    site.sees(0, "me", "other")
    site.scene.dead.add(("other", "other"))
    assert site.hand_overs.leave(1.0)
    assert site.given_up() == []


def test_a_successor_that_never_comes_is_not_waited_for_without_end() -> None:
    """It may have died in that very moment."""
    site = Site("me", (0, 1))
    for number in (0, 1):
        site.sees(number, "me", "other")
    site.hand_overs.leave(1.0)
    site.moves(0, None, 1.1)
    assert not site.hand_overs.leave(1.0 + TAKE_LIMIT_S - 0.1)
    assert site.given_up() == []
    site.hand_overs.leave(1.0 + TAKE_LIMIT_S)
    assert site.heard.handed == [(0, "leaving", None)]
    assert site.given_up() == [1]


def test_a_partition_goes_back_to_the_best_ranked_after_a_while() -> None:
    mine = led_better_by_other()[0]
    site = Site("me", (mine,))
    site.hand_overs.tend(1.0)
    assert site.posts[mine].hand_over == "other ranks first; it isn't hot yet"
    site.sees(mine, "me", "other", now=2.0)
    site.hand_overs.tend(11.9)
    assert site.given_up() == []
    site.hand_overs.tend(12.0)
    assert site.given_up() == [mine]
    site.moves(mine, "other", 12.1)
    site.hand_overs.tend(12.1)
    assert site.heard.handed == [(mine, "given_back", "other")]
    assert site.posts[mine].hand_over is None


def test_a_node_that_comes_and_goes_gets_nothing() -> None:
    """Each absence begins the wait anew."""
    mine = led_better_by_other()[0]
    site = Site("me", (mine,))
    for start in range(0, 60, 9):
        site.sees(mine, "me", "other", now=float(start))
        site.hand_overs.tend(start + 8.0)
        site.sees(mine, "me", now=start + 8.5)
        site.hand_overs.tend(start + 8.6)
    assert site.given_up() == []


def test_only_one_partition_at_a_time_goes_back_and_with_a_pause() -> None:
    first, second = led_better_by_other()[:2]
    site = Site("me", (first, second))
    for number in (first, second):
        site.sees(number, "me", "other", now=0.0)
    site.hand_overs.tend(20.0)
    assert site.given_up() == [first]
    site.hand_overs.tend(20.1)
    site.moves(first, "other", 20.2)
    site.hand_overs.tend(20.2)
    assert site.given_up() == []
    site.hand_overs.tend(20.2 + PAUSE_S)
    assert site.given_up() == [second]


def test_nothing_goes_back_while_a_partition_has_no_leader() -> None:
    """A cluster in trouble needs no more moves."""
    mine, free = led_better_by_other()[:2]
    site = Site("me", (mine,))
    site.sees(mine, "me", "other", now=0.0)
    site.sees(free, None)
    site.hand_overs.tend(20.0)
    assert site.given_up() == []
    site.sees(free, "other")
    site.hand_overs.tend(20.5)
    assert site.given_up() == [mine]


def test_a_node_that_follows_and_can_not_lead_gets_it_less_and_less_often() -> None:
    """It reads the log well, and can't reach the brokers that it would have to write to."""
    mine = led_better_by_other()[0]
    site, now = Site("me", (mine,)), 0.0
    waits = []
    for _ in range(4):
        site.posts[mine].began_at = began = now
        site.sees(mine, "me", "other", now=now)
        while not site.given_up():
            now += 0.5
            site.hand_overs.tend(now)
        waits.append(now - began)
        site.moves(mine, None, now)
        now += 20.0
        site.hand_overs.tend(now)
        for role in WAY_TO_THE_LEAD:
            site.posts[mine].roles.to(role)
        site.posts[mine].leadership = Term()  # type: ignore[assignment]
    assert waits == [10.0, 20.0, 40.0, 80.0]
    site.posts[mine].began_at = now = now + CAME_BACK_S
    site.sees(mine, "me", "other", now=now)
    site.hand_overs.tend(now + 10.0)
    assert site.given_up() == [mine], "a node that kept it for long has mended"
