"""What a node keeps of one partition: its role, ZooKeeper's last picture, its standby, and its term."""

from __future__ import annotations

from typing import Final

from relevo_partitions.election.election import Claim, Sight
from relevo_partitions.ports import PartitionIO
from relevo_partitions.runtime import Task
from relevo_partitions.supervisor.views import PartitionView
from relevo_partitions.term.endings import Ending, TermOver
from relevo_partitions.term.fence_ahead import FenceAhead
from relevo_partitions.term.last_committed import LastCommitted
from relevo_partitions.term.leadership import Leadership
from relevo_partitions.term.roles import Role, RoleKeeper
from relevo_partitions.term.standby import Standby
from relevo_partitions.term.takeover import Cause, Takeover

__all__ = ["PartitionView", "Post"]

_BACKOFF_S: Final[dict[Ending, tuple[float, float]]] = {
    Ending.KAFKA_UNAVAILABLE: (1.0, 10.0),
    Ending.LOG_DAMAGED: (5.0, 300.0),
    Ending.MACHINE_FAILED: (1.0, 60.0),
    Ending.ABANDONED: (10.0, 60.0),
}
"""First and longest wait before this node stands by or tries to lead again; doubles in between. Other endings
need none."""


class Post:
    """Used by the supervisor's thread; `view` and `leadership` may be read from any."""

    def __init__(self, partition: int, roles: RoleKeeper, io: PartitionIO) -> None:
        self.partition = partition
        self.roles = roles
        self.io = io
        self.last_committed = LastCommitted()
        self.sight: Sight | None = None
        self.looked_at = float("-inf")
        self.dirty = True
        self.previous_leader: str | None = None
        self.token = ""
        """Of this node's last attempt to claim."""
        self.free_since: float | None = None
        """Since when this node has known that nobody leads."""
        self.death_noticed_at: float | None = None
        """When the pulse told of the death of the leader that ZooKeeper shows."""
        self.leader_lost_at: float | None = None
        """When that leader's connection had ended; counts while the pulse is how the death was learnt."""
        self.cause = Cause.START
        """How this node came to know that nobody leads."""
        self.joined_at = 0.0
        """When a candidate was last seen to have turned up."""
        self.hot_since: dict[str, float] = {}
        """Since when each candidate has been seen without interruption."""
        self.lacking_since: float | None = None
        """Since when no candidate has been seen, None where there is one."""
        self.claim_at: float | None = None
        self.claim: Claim | None = None
        self.leadership: Leadership | None = None
        self.thread: Task | None = None
        self.began_at = 0.0
        """When this node's term began."""
        self.standby: Standby | None = None
        self.fence_ahead: FenceAhead | None = None
        """Under way while a dead leader's claim is replaced by this node's."""
        self.takeover: Takeover | None = None
        """Of a claim that was asked for and not answered yet, the one with `token`."""
        self.hand_over: str | None = None
        """What a hand-over waits for, in words."""
        self.blocked_until = 0.0
        self.fault: str | None = None
        self._failures = 0
        self._epoch = self._position = 0

    def saw(self, sight: Sight, now: float, live: set[str]) -> None:
        """Take in what ZooKeeper shows.

        Args:
            sight: That.
            now: The present.
            live: The registered nodes that aren't known to be dead.
        """
        before = self.sight.leader if self.sight is not None else None
        self._saw_candidates(sight.candidates, now)
        if before is not None and (sight.leader is None or sight.leader.czxid != before.czxid):
            self.previous_leader = before.node
        if self.leadership is not None and sight.leader is not None:
            self.leadership.heir_is_hot = bool((live - {sight.leader.node}) & self.hot_since.keys())
        self.sight = sight
        self.looked_at = now
        self.dirty = False
        if sight.leader is not None:
            self.free_since = None
            if before is not None and before.czxid != sight.leader.czxid:
                self.death_noticed_at = None
        elif self.free_since is None:
            self._saw_free(now, live)

    def _saw_candidates(self, candidates: tuple[str, ...], now: float) -> None:
        for name in self.hot_since.keys() - set(candidates):
            del self.hot_since[name]
        for name in candidates:
            if name not in self.hot_since:
                self.joined_at = self.hot_since[name] = now
        if candidates:
            self.lacking_since = None
        elif self.lacking_since is None:
            self.lacking_since = now

    def _saw_free(self, now: float, live: set[str]) -> None:
        died_at, self.death_noticed_at = self.death_noticed_at, None
        if died_at is not None:
            self.free_since, self.cause = died_at, Cause.PULSE
            return
        self.free_since = now
        if self.previous_leader is None:
            self.cause = Cause.START
        else:
            self.cause = Cause.HAND_OVER if self.previous_leader in live else Cause.ZNODE

    def ended(self, over: TermOver, now: float) -> None:
        """Take leave of the term, and decide when this node may try again."""
        leadership = self.leadership
        if leadership is not None:
            self._epoch, self._position = leadership.progress.epoch, leadership.progress.position
            if leadership.progress.led:
                self._failures = 0
        self.leadership = self.claim = self.thread = None
        self.token = ""
        self.hand_over = None
        self.dirty = True
        self._back_off(over, now)

    def give_up_fence(self) -> None:
        """There will be no term that goes on from a fence begun ahead."""
        ahead, self.fence_ahead = self.fence_ahead, None
        if ahead is not None:
            ahead.give_up()

    def standby_ended(self, over: TermOver, now: float) -> None:
        """The standby failed, or was dismissed; decide when this node may stand by again."""
        self.standby = None
        self.dirty = True
        self._back_off(over, now)

    def _back_off(self, over: TermOver, now: float) -> None:
        backoff = _BACKOFF_S.get(over.ending)
        if backoff is None:
            self.fault = None if over.ending in (Ending.STOPPED, Ending.HANDED_OVER) else str(over)
            return
        self.fault = str(over)
        self.blocked_until = now + min(backoff[0] * 2**self._failures, backoff[1])
        self._failures = min(self._failures + 1, 16)

    def view(self) -> PartitionView:
        """The partition as others may see it."""
        leadership, sight, standby = self.leadership, self.sight, self.standby
        leader = sight.leader if sight is not None else None
        progress = leadership.progress if leadership is not None else None
        leading = self.roles.role is Role.LEADING
        return PartitionView(
            partition=self.partition,
            role=str(self.roles.role),
            leader=leader.node if leader is not None else None,
            epoch=progress.epoch if progress is not None else self._epoch,
            position=progress.position if progress is not None else self._position,
            end=progress.end if progress is not None else -1,
            since=self.roles.since,
            fault=None if leading else self.fault,
            candidates=tuple(name for name in sight.candidates if leader is None or name != leader.node)
            if sight is not None
            else (),
            standby_lag=standby.lag if standby is not None else None,
            hand_over=self.hand_over,
            held_back=followed.held_back.text if (followed := leadership or standby) is not None else None,
        )
