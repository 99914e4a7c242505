"""Who stands by for a partition, who is to lead it, and when that changes: decisions only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from relevo_partitions.election.ranking import rank, ranking

STAND_IN_S: Final = 3.0
"""A partition that has no hot standby for so long gets one more node to follow it, and so on."""


def placed(partition: int, live: Collection[str], leader: str | None, replicas: int) -> list[str]:
    """The nodes that are to stand by: the first of the ranking, without the leader."""
    return ranking(partition, (node for node in live if node != leader))[:replicas]


def stands_by(
    partition: int,
    me: str,
    *,
    live: Collection[str],
    leader: str | None,
    candidates: Collection[str],
    replicas: int,
    already: bool,
    lacking_s: float,
) -> bool:
    """Whether ``me`` is to follow the partition.

    Args:
        partition: Its number.
        me: This node.
        live: The registered nodes that aren't known to be dead.
        leader: Who leads, None where nobody does.
        candidates: The nodes that are hot.
        replicas: How many are to stand by.
        already: Whether ``me`` follows it now.
        lacking_s: For how long there has been no candidate.

    A node that isn't placed any more goes on until all that are placed are hot. One that isn't placed begins
    where for a while nobody is hot: those that are placed may not be able to follow.
    """
    everybody = {*live, me}
    if leader is None:
        replicas = max(1, replicas)  # nobody can claim without having followed
    if replicas == 0:
        return False
    wanted = placed(partition, everybody, leader, replicas)
    if me in wanted:
        return True
    if already:
        return not set(wanted) <= set(candidates)
    others = [node for node in everybody if node != leader]
    return lacking_s >= STAND_IN_S * (rank(partition, me, others) - replicas + 1)


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A partition that is to move to the node that ranks first for it."""

    to: str
    wait_s: float | None
    """Until then it has to stay hot; None where it isn't hot."""

    @property
    def due(self) -> bool:
        """Whether the time has come."""
        return self.wait_s is not None and self.wait_s <= 0

    def __str__(self) -> str:
        if self.wait_s is None:
            return f"{self.to} ranks first; it isn't hot yet"
        return f"{self.to} ranks first and is hot; it takes over in {max(0.0, self.wait_s):.0f} s"


def give_back(
    partition: int,
    me: str,
    *,
    live: Collection[str],
    hot_since: Mapping[str, float],
    leading_since: float,
    now: float,
    after_s: float,
) -> GiveBack | None:
    """Whether ``me``, the leader, is to give the partition to a better-ranked node, and when.

    Args:
        partition: Its number.
        me: This node, which leads.
        live: The registered nodes that aren't known to be dead.
        hot_since: Since when each candidate has been one without interruption.
        leading_since: Since when ``me`` has led.
        now: The present, by the same clock.
        after_s: How long the other must have been hot, and ``me`` have led.
    """
    first = ranking(partition, {*live, me})[0]
    if first == me:
        return None
    since = hot_since.get(first)
    return GiveBack(first, None if since is None else max(since, leading_since) + after_s - now)
