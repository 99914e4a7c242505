"""What a proof of death leads to, and what a wrong one must not lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relevo_partitions.election.election import LeaderRecord, Removal, Sight
from relevo_partitions.election.membership import NodeInfo
from relevo_partitions.election.ranking import ranking
from relevo_partitions.observer import Observer
from relevo_partitions.supervisor.deaths import Deaths
from relevo_partitions.supervisor.post import Post
from relevo_partitions.supervisor.scene import Scene
from relevo_partitions.supervisor.signals import Died
from relevo_partitions.term.roles import Role, RoleKeeper
from relevo_partitions.term.takeover import Cause

STEP_S = 0.05


class ZNodes:
    """The znodes that stand, as an election and as a membership."""

    def __init__(self) -> None:
        self.claims: dict[int, int] = {}
        self.candidates: set[tuple[int, str, str]] = set()
        self.nodes: dict[str, int] = {}
        self.seen: dict[str, int] = {}

    def remove_dead(
        self, partition: int, record: LeaderRecord, found_it: Callable[[], str | None]
    ) -> Removal:
        if self.claims.get(partition) != record.czxid:
            return Removal(free=partition not in self.claims)
        found_it()
        del self.claims[partition]
        return Removal(free=True, removed=True)

    def remove_candidate(self, partition: int, node: str, incarnation: str) -> None:
        self.candidates.discard((partition, node, incarnation))

    def registration(self, node: str) -> int:
        return self.seen.get(node, 0)

    def remove(self, node: str, registration: int) -> bool:
        if self.nodes.get(node) != registration:
            return False
        del self.nodes[node]
        return True


class Site:
    """One node's view of a cluster of four, where ``dead`` leads partition 0 and stands by for 1."""

    def __init__(self, me: str) -> None:
        self.znodes = ZNodes()
        self.scene = Scene(me, tuple(NodeInfo(node, "", f"{node}-1") for node in ("a", "b", "c", "dead")))
        self.posts = [Post(number, RoleKeeper(number, lambda *_: None), io=Any) for number in range(2)]  # type: ignore[arg-type]
        self.doomed: list[int] = []
        self.freed: list[int] = []
        self.deaths = Deaths(
            self.scene, self.posts, self.znodes, self.znodes, Observer(), STEP_S  # type: ignore[arg-type]
        )  # fmt: skip
        self.znodes.claims[0] = 10
        self.znodes.nodes["dead"] = self.znodes.seen["dead"] = 9
        self.znodes.candidates.add((1, "dead", "dead-1"))
        self.sees(0, LeaderRecord("dead", "dead-1", "t", 10, 1, 0), ("a", "b"))
        self.sees(1, LeaderRecord("c", "c-1", "t", 11, 2, 0), ("dead",))

    def sees(self, partition: int, leader: LeaderRecord | None, candidates: tuple[str, ...]) -> None:
        self.posts[partition].saw(Sight(leader, candidates), 0.0, self.scene.live())

    def stands_by(self, partition: int) -> Site:
        for role in (Role.FOLLOWING, Role.STANDBY):
            self.posts[partition].roles.to(role)
        return self

    def hears(self, node: str = "dead", incarnation: str = "dead-1", at: float = 100.0) -> Site:
        self.deaths.heard(Died(node, incarnation, at, at - 0.25))
        return self

    def act(self, now: float) -> list[int]:
        self.freed, self.doomed = [], []
        self.deaths.act(
            now,
            lambda post: self.doomed.append(post.partition),
            lambda post, _claim: self.freed.append(post.partition),
        )
        return self.freed


FIRST, SECOND = ranking(0, ["a", "b"])


def test_the_candidate_that_ranks_first_frees_the_partition_at_once() -> None:
    site = Site(FIRST).stands_by(0).hears()
    assert site.act(100.0) == [0]
    assert site.doomed == [0]
    assert site.znodes.claims == {}
    assert site.posts[0].death_noticed_at == 100.0
    assert site.posts[0].leader_lost_at == 99.75


def test_the_next_one_waits_a_step_and_others_wait_for_all_candidates() -> None:
    """If the first one dies too, somebody still acts."""
    second, bystander = Site(SECOND).stands_by(0).hears(), Site("c").hears()
    assert second.act(100.0 + STEP_S * 0.9) == []
    assert second.act(100.0 + STEP_S) == [0]
    assert bystander.act(100.0 + STEP_S) == []
    assert bystander.act(100.0 + STEP_S * 2) == [0]


def test_the_dead_nodes_other_znodes_go_a_little_later() -> None:
    site = Site(FIRST).stands_by(0).hears()
    site.act(100.0)
    assert site.znodes.nodes
    site.sees(0, None, ("a", "b"))
    site.act(100.0 + 10 * STEP_S)
    assert (site.znodes.nodes, site.znodes.candidates) == ({}, set())
    assert site.scene.dead == set(), "the proof is used up"
    assert list(site.deaths.due()) == []


def test_a_claim_made_since_is_left_alone() -> None:
    """A late clean-up must not hit the next leader."""
    site = Site(FIRST).stands_by(0).hears()
    site.znodes.claims[0] = 99
    assert site.act(100.0) == [], "it isn't free"
    assert site.znodes.claims == {0: 99}
    assert site.doomed == [], "nor may it be fenced"
    assert site.posts[0].dirty, "somebody else leads: look who"


def test_a_later_process_of_the_same_node_is_left_alone() -> None:
    site = Site(FIRST).stands_by(0).hears(incarnation="dead-0")
    assert site.act(200.0) == []
    assert (site.znodes.claims, site.znodes.nodes) == ({0: 10}, {"dead": 9})
    assert "dead" in site.scene.live()


def test_a_node_that_was_taken_for_dead_and_registered_anew_keeps_what_it_has() -> None:
    """Each survivor has the proof; the second must not undo what the first one's mistake made necessary."""
    site = Site("c").hears()
    site.znodes.nodes["dead"] = 50
    site.znodes.claims.clear()
    site.sees(0, LeaderRecord("a", "a-1", "t", 60, 3, 0), ("dead",))
    site.znodes.candidates.add((0, "dead", "dead-1"))
    site.act(200.0)
    assert site.znodes.nodes == {"dead": 50}
    assert (0, "dead", "dead-1") in site.znodes.candidates
    assert "dead" in site.scene.live()


def test_a_proof_is_kept_until_zookeeper_is_back() -> None:
    """A leader killed while ZooKeeper was away has to be replaced as soon as it answers again."""
    site = Site(FIRST).stands_by(0).hears()
    assert site.act(100.0 + 3_600) == [0]


def test_a_dead_node_counts_as_gone_though_it_is_registered() -> None:
    site = Site(FIRST).hears()
    assert site.scene.live() == {"a", "b", "c"}
    assert site.scene.dead_names() == {"dead"}


def test_nobody_believes_in_its_own_death() -> None:
    site = Site("dead").hears()
    assert site.act(200.0) == []
    assert "dead" in site.scene.live()


def test_a_claim_seen_only_after_the_proof_is_freed_too() -> None:
    """It may have been made in the last moment, and the news of it came later than the proof."""
    site = Site(FIRST).stands_by(0).stands_by(1).hears()
    site.znodes.claims[1] = 12
    site.sees(1, LeaderRecord("dead", "dead-1", "t", 12, 1, 0), (FIRST,))
    assert site.act(100.0) == [0, 1]


def test_how_a_partition_became_free_is_told_apart() -> None:
    def cause(*steps: LeaderRecord | None, died: bool = False, live: tuple[str, ...] = ("x",)) -> Cause:
        post = Post(0, RoleKeeper(0, lambda *_: None), io=Any)  # type: ignore[arg-type]
        for step in steps:
            if step is None and died:
                post.death_noticed_at = 5.0
            post.saw(Sight(step, ()), 7.0, set(live))
        assert post.free_since == (5.0 if died else 7.0)
        return post.cause

    led = LeaderRecord("x", "x-1", "t", 1, 1, 0)
    assert cause(None) is Cause.START
    assert cause(led, None) is Cause.HAND_OVER
    assert cause(led, None, live=()) is Cause.ZNODE
    assert cause(led, None, died=True) is Cause.PULSE
