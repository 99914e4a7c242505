"""What a host tells about its work, for metrics and logs: cheap, thread-safe, never raises."""

from __future__ import annotations

from typing import Any


class Observer:
    """Hears everything and does nothing; override what you need."""

    def role_changed(self, partition: int, before: str, after: str, reason: str) -> None:
        """A partition's role on this node changed."""

    def takeover_step(self, partition: int, step: str, seconds: float) -> None:
        """A step took ``seconds``: ``claim``, ``fence``, ``verify``, ``replay`` or ``announce``."""

    def committed(self, partition: int, commands: int, records: int, seconds: float) -> None:
        """A transaction with ``records`` records committed in ``seconds``."""

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        """The host deals with a mishap; ``kind`` is stable (``fenced``, ``commit_unclear``, …)."""

    def leaderless(self, partitions: int) -> None:
        """So many partitions have no leader, as this node sees it; told whenever the number changes."""

    def note(self, event: str, **fields: Any) -> None:
        """Anything else worth a log line."""
