"""What a host tells about its work, for metrics and logs: cheap, thread-safe, never raises."""

from __future__ import annotations

from typing import Any

from relevo_partitions.term.takeover import Takeover


class Observer:
    """Hears everything and does nothing; override what you need."""

    def role_changed(self, partition: int, before: str, after: str, reason: str) -> None:
        """A partition's role on this node changed."""

    def takeover_step(self, partition: int, step: str, seconds: float) -> None:
        """A step of a takeover took ``seconds``; named as in `relevo_partitions.term.takeover.STEPS`."""

    def takeover(self, takeover: Takeover) -> None:
        """A term has been announced; its record may still gain the first activation."""

    def standby_lag(self, partition: int, records: int | None) -> None:
        """How many records of the log this node's standby hasn't applied; None: it doesn't stand by."""

    def handed_over(self, partition: int, reason: str, to: str | None, seconds: float) -> None:
        """A partition that was given up has a new leader, ``to``; None: nobody took it in time."""

    def committed(self, partition: int, commands: int, records: int, seconds: float) -> None:
        """A transaction with ``records`` records committed in ``seconds``."""

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        """The host deals with a mishap; ``kind`` is stable (``fenced``, ``commit_unclear``, …)."""

    def held_back(self, topic: str, partition: int, records: int) -> None:
        """So many records wait behind another producer's open transaction; 0: no more."""

    def leaderless(self, partitions: int) -> None:
        """So many partitions have no leader, as this node sees it; told whenever the number changes."""

    def note(self, event: str, **fields: Any) -> None:
        """Anything else worth a log line."""
