"""Ranks have to spread leaders over nodes without anybody deciding it, and move little when a node goes."""

from __future__ import annotations

from collections import Counter

from relevo_partitions.election.ranking import rank, ranking

NODES = ["n1", "n2", "n3"]
PINNED = [["n2", "n3", "n1"], ["n2", "n3", "n1"], ["n2", "n3", "n1"], ["n3", "n1", "n2"]]


def test_each_node_comes_first_for_its_share() -> None:
    firsts = Counter(ranking(partition, NODES)[0] for partition in range(300))
    assert all(60 < firsts[node] < 140 for node in NODES)


def test_all_nodes_see_the_same_order() -> None:
    assert all(ranking(partition, NODES) == ranking(partition, reversed(NODES)) for partition in range(50))


def test_a_node_that_goes_moves_only_its_own_partitions() -> None:
    for partition in range(100):
        before = ranking(partition, NODES)
        after = ranking(partition, ["n1", "n3"])
        assert [node for node in before if node != "n2"] == after


def test_a_node_that_is_no_candidate_ranks_behind_all() -> None:
    assert rank(0, "n9", NODES) == 3


def test_the_order_is_pinned_across_versions() -> None:
    """Nodes of two versions that rank differently would wait for each other in vain."""
    assert [ranking(partition, NODES) for partition in range(4)] == PINNED
