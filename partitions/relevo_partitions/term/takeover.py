"""When each step of a takeover was done: the record by which a slow one is explained."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from relevo_partitions.runtime import THREADS, Runtime


class Cause(StrEnum):
    """How a node came to know that a partition is free."""

    PULSE = "pulse"
    """The leader's process was proven dead."""
    ZNODE = "znode"
    """ZooKeeper showed no leader any more: its session had ended."""
    HAND_OVER = "hand_over"
    """The leader gave the partition up, and lived on."""
    START = "start"
    """Nobody had led it, as far as this node knows."""


STEPS: Final = {
    "detect": "started_at",
    "claim": "claimed_at",
    "fence": "fenced_at",
    "verify": "verified_at",
    "barrier": "caught_up_at",
    "announce": "announced_at",
    "first_activation": "first_activation_at",
}
"""Each step's name and the moment that it ends at; it begins where the one before ended.

``detect`` begins at the first sign: where the pulse told, when the dead leader's connection ended; else when
ZooKeeper showed this node that nobody leads, so that the session that had to end before isn't part of it. It
ends when this node begins to take over: a candidate that ranks later, or a start, waits within it.
"""


class Takeover:
    """One term's way to the lead. Written by one thread at a time, may be read from any.

    Args:
        partition: Number of the partition.
        cause: How its being free was learnt.
        previous: Node that led before, None where nobody did.
        noticed_at: When it was learnt, by the monotonic clock.
        on_step: Told each step's name and seconds.
        runtime: Clocks.
        lost_at: When the leader's last sign of life was, by the monotonic clock; None where only ZooKeeper
            told of its end.
    """

    def __init__(
        self,
        partition: int,
        cause: Cause = Cause.START,
        previous: str | None = None,
        noticed_at: float | None = None,
        on_step: Callable[[str, float], None] = lambda _step, _seconds: None,
        runtime: Runtime = THREADS,
        lost_at: float | None = None,
    ) -> None:
        self.partition = partition
        self.cause = cause
        self.previous = previous
        self.epoch = 0
        self.standby = False
        """Whether a standby that followed the log until then was taken over."""
        self.replayed = 0
        """Records applied between the claim and the barrier."""
        self._now = runtime.monotonic
        self._last = self._now()
        noticed_at = self._last if noticed_at is None else noticed_at
        self._wall_offset = runtime.wall() - self._last
        self._noticed_at = noticed_at
        self._lost_at = lost_at
        self._last = noticed_at if lost_at is None else min(lost_at, noticed_at)
        self._at: dict[str, float] = {}
        self._on_step = on_step

    def step(self, name: str, at: float | None = None) -> None:
        """The step ``name`` of `STEPS` is done, or was at ``at``. Only its first time counts."""
        moment = STEPS[name]
        if moment in self._at:
            return
        now = self._now() if at is None else at
        self._at[moment] = now
        self._on_step(name, max(0.0, now - self._last))
        self._last = now

    def done(self, name: str) -> bool:
        """Whether the step was done."""
        return STEPS[name] in self._at

    @property
    def seconds(self) -> float | None:
        """From the notice to the announcement, None before it."""
        announced_at = self._at.get("announced_at")
        return None if announced_at is None else announced_at - self._noticed_at

    def as_dict(self) -> dict[str, Any]:
        """All of it; times in milliseconds since the Unix epoch, None for what wasn't reached."""
        moments = {
            name: None if (at := self._at.get(name)) is None else self._wall_ms(at)
            for name in STEPS.values()
            if name != "started_at"
        }
        return {
            "partition": self.partition,
            "epoch": self.epoch,
            "previous": self.previous,
            "cause": str(self.cause),
            "lost_at": None if self._lost_at is None else self._wall_ms(self._lost_at),
            "noticed_at": self._wall_ms(self._noticed_at),
            **moments,
            "standby": self.standby,
            "replayed": self.replayed,
        }

    def _wall_ms(self, at: float) -> float:
        return round((at + self._wall_offset) * 1000, 3)
