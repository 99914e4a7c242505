"""Gives partitions to other nodes in order: all of them when this node leaves, one where another ranks first.

One at a time: the next one goes once the last has a new leader. Nothing is given up for which nobody is hot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from relevo_partitions.election import placement
from relevo_partitions.observer import Observer
from relevo_partitions.supervisor.post import Post
from relevo_partitions.supervisor.scene import Scene
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.roles import Role

TAKE_LIMIT_S: Final = 5.0
"""After so long without a new leader a partition that was given up isn't waited for any more."""
PAUSE_S: Final = 1.0
"""Between two partitions that are given back."""
CAME_BACK_S: Final = 120.0
"""A partition that is back here so soon went to a node that can follow it, and not lead it: the next time
waits twice as long."""
PATIENCE_MAX_S: Final = 3600.0
"""Longest such wait."""


@dataclass(slots=True)
class _Moving:
    post: Post
    reason: str
    to: str
    since: float


class HandOvers:
    """Used by the supervisor's thread.

    Args:
        scene: What this node knows of the cluster.
        posts: All partitions.
        observer: Told of each.
        give_back_after_s: How long a better-ranked node must have been hot.
    """

    def __init__(self, scene: Scene, posts: list[Post], observer: Observer, give_back_after_s: float) -> None:
        self._scene = scene
        self._posts = posts
        self._observer = observer
        self._after_s = give_back_after_s
        self._moving: _Moving | None = None
        self._rest_until = 0.0
        self._given_back_at: dict[int, float] = {}
        self._patience_s: dict[int, float] = {}

    def tend(self, now: float) -> None:
        """See whether the last one has arrived, and whether another is to be given back."""
        if self._moving is not None and not self._arrived(self._moving, now):
            return
        calm = all(post.sight is not None and post.sight.leader is not None for post in self._posts)
        for post in self._led():
            self._learn(post)
            wanted = placement.give_back(
                post.partition,
                self._scene.me,
                live=self._scene.live(),
                hot_since=post.hot_since,
                leading_since=post.began_at,
                now=now,
                after_s=self._patience_s.get(post.partition, self._after_s),
            )
            post.hand_over = None if wanted is None else str(wanted)
            if (
                wanted is not None
                and wanted.due
                and calm
                and self._moving is None
                and now >= self._rest_until
            ):
                self._given_back_at[post.partition] = now
                self._begin(post, "given_back", wanted.to, now)

    def _learn(self, post: Post) -> None:
        """How long to wait with a partition that came back after it was given away."""
        given_at = self._given_back_at.get(post.partition)
        if given_at is None or post.began_at <= given_at:
            return
        del self._given_back_at[post.partition]
        if post.began_at - given_at < CAME_BACK_S:
            before = self._patience_s.get(post.partition, self._after_s)
            self._patience_s[post.partition] = min(2 * before, PATIENCE_MAX_S)
        else:
            self._patience_s.pop(post.partition, None)

    def leave(self, now: float) -> bool:
        """Give up the next partition, if it is its turn; whether all that can be given up are."""
        if self._moving is not None and not self._arrived(self._moving, now):
            return False
        led = self._led()
        others = self._scene.live() - {self._scene.me}
        if not led or not others:
            return True
        for post in led:
            hot = [name for name in post.hot_since if name in others]
            post.hand_over = None if hot else "the node leaves, and no other is hot for this partition yet"
            if hot:
                first = placement.placed(post.partition, hot, None, 1)[0]
                self._begin(post, "leaving", first, now)
                return False
        return False

    def _led(self) -> list[Post]:
        return [
            post for post in self._posts if post.leadership is not None and post.roles.role is Role.LEADING
        ]

    def _begin(self, post: Post, reason: str, to: str, now: float) -> None:
        leadership = post.leadership
        if leadership is None:
            return
        post.hand_over = f"handed over to {to}"
        self._moving = _Moving(post, reason, to, now)
        self._observer.note("hand_over", partition=post.partition, to=to, reason=reason)
        leadership.end(Ending.HANDED_OVER, f"handed over to {to} ({reason})")

    def _arrived(self, moving: _Moving, now: float) -> bool:
        """Whether the partition has a leader again, or is waited for no longer."""
        post = moving.post
        leader = post.sight.leader if post.sight is not None else None
        led = post.leadership is None and leader is not None and leader.node != self._scene.me
        if not led and now - moving.since < TAKE_LIMIT_S:
            return False
        to = leader.node if led and leader is not None else None
        self._observer.handed_over(post.partition, moving.reason, to, now - moving.since)
        if post.leadership is None:
            post.hand_over = None
        self._moving = None
        self._rest_until = now + PAUSE_S
        return True
