"""Who stands by and who gets a partition back, as nodes come, catch up, fail and go."""

from __future__ import annotations

from typing import Any

import pytest

from relevo_partitions.election.placement import STAND_IN_S, GiveBack, give_back, placed, stands_by
from relevo_partitions.election.ranking import ranking

NODES = ["n1", "n2", "n3", "n4"]
ORDER = ranking(7, NODES)


def follows(me: str, **given: Any) -> bool:
    values: dict[str, Any] = {
        "live": NODES, "leader": ORDER[0], "candidates": [ORDER[1]], "replicas": 1, "already": False,
        "lacking_s": 0.0,
    }  # fmt: skip
    return stands_by(7, me, **{**values, **given})


def test_the_best_ranked_besides_the_leader_stand_by() -> None:
    assert placed(7, NODES, ORDER[0], 2) == ORDER[1:3]
    assert placed(7, NODES, ORDER[2], 2) == ORDER[:2]
    assert placed(7, NODES, None, 1) == ORDER[:1]
    assert [node for node in ORDER if follows(node, leader=ORDER[3])] == ORDER[:1]


def test_more_replicas_than_nodes_are_all_the_others() -> None:
    assert placed(7, ["n1"], "n1", 3) == []
    assert sorted(placed(7, NODES, "n2", 9)) == ["n1", "n3", "n4"]


def test_without_replicas_somebody_begins_to_follow_once_the_leader_is_gone() -> None:
    none: dict[str, Any] = {"replicas": 0, "candidates": []}
    assert not any(follows(node, lacking_s=1_000.0, **none) for node in NODES)
    assert [node for node in ORDER if follows(node, leader=None, **none)] == ORDER[:1]
    assert follows(ORDER[0], leader=None, already=True, **none), "and goes on"


def test_a_node_that_is_neither_follows_nothing() -> None:
    assert not follows(ORDER[2])
    assert not follows(ORDER[3])


def test_a_node_without_a_registration_counts_itself() -> None:
    """Just after a wrong proof of death its own entry is missing."""
    assert follows(ORDER[0], live=ORDER[1:], leader=ORDER[3], candidates=[])


def test_a_hot_standby_stays_until_its_replacement_is_hot() -> None:
    """A better-ranked node joins: letting go at once would leave nobody to take over while it loads."""
    joined = {"leader": ORDER[3], "already": True}
    assert follows(ORDER[1], candidates=[ORDER[1]], **joined)
    assert not follows(ORDER[1], candidates=[ORDER[0], ORDER[1]], **joined)


def test_with_two_replicas_all_replacements_must_be_hot() -> None:
    joined = {"leader": ORDER[3], "already": True, "replicas": 2}
    assert follows(ORDER[2], candidates=[ORDER[0], ORDER[2]], **joined)
    assert not follows(ORDER[2], candidates=[ORDER[0], ORDER[1], ORDER[2]], **joined)


def test_where_nobody_becomes_hot_one_more_node_after_the_other_steps_in() -> None:
    """The node placed first may be unable to read the log: the partition must not wait for it for ever."""
    nobody: dict[str, Any] = {"leader": None, "candidates": []}
    assert follows(ORDER[0], **nobody)
    assert not follows(ORDER[1], lacking_s=STAND_IN_S * 0.9, **nobody)
    assert follows(ORDER[1], lacking_s=STAND_IN_S, **nobody)
    assert not follows(ORDER[2], lacking_s=STAND_IN_S, **nobody)
    assert follows(ORDER[2], lacking_s=STAND_IN_S * 2, **nobody)
    assert follows(ORDER[1], already=True, **nobody), "and goes on until the one that is placed is hot"


def test_a_lone_node_stands_by_for_everything() -> None:
    assert all(
        stands_by(
            partition, "n1", live=["n1"], leader=None, candidates=[], replicas=1, already=False, lacking_s=0.0
        )
        for partition in range(20)
    )


@pytest.mark.parametrize("gone", range(4))
def test_whoever_dies_somebody_stands_by(gone: int) -> None:
    live = [node for node in NODES if node != ORDER[gone]]
    for leader in (None, *live):
        assert placed(7, live, leader, 1), leader


def back(me: str, hot_since: dict[str, float], now: float, leading_since: float = 0.0) -> GiveBack | None:
    return give_back(
        7, me, live=NODES, hot_since=hot_since, leading_since=leading_since, now=now, after_s=10.0
    )


def test_the_best_ranked_leader_keeps_its_partition() -> None:
    assert back(ORDER[0], dict.fromkeys(NODES, 0.0), 1_000.0) is None


def test_a_partition_goes_back_once_the_better_one_was_hot_for_long_enough() -> None:
    early, due = back(ORDER[2], {ORDER[0]: 100.0}, 109.9), back(ORDER[2], {ORDER[0]: 100.0}, 110.0)
    assert early is not None
    assert due is not None
    assert (early.to, early.due, due.due) == (ORDER[0], False, True)
    assert "it takes over in 0 s" in str(early)


def test_it_does_not_go_to_one_that_is_better_but_not_best() -> None:
    """It would have to move again."""
    waiting = back(ORDER[2], {ORDER[1]: 0.0}, 1_000.0)
    assert waiting is not None
    assert (waiting.to, waiting.due) == (ORDER[0], False)
    assert "isn't hot yet" in str(waiting)


def test_a_leader_that_has_just_begun_keeps_it_for_a_while() -> None:
    """Nodes that come and go must not move a partition each time."""
    fresh = back(ORDER[2], {ORDER[0]: 0.0}, 105.0, leading_since=100.0)
    assert fresh is not None
    assert not fresh.due
