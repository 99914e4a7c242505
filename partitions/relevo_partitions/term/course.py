"""Where a term stands, and how it is ended from outside: what all parts of a term share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from relevo_partitions.runtime import THREADS, Runtime
from relevo_partitions.term.endings import Ending, TermOver
from relevo_partitions.term.roles import Role, RoleKeeper


class Course:
    """One term from its claim to its end. `end`, `overdue` and `is_over` may be called from any thread.

    Args:
        partition: Number of the partition.
        roles: Follows the steps.
        call_limit_s: After so long in one call of Kafka the term's thread counts as lost.
        runtime: Clocks and waiting.
        checkpoint: Called with a name between steps, for tests that stop a leader in the middle.
    """

    def __init__(
        self,
        partition: int,
        roles: RoleKeeper,
        call_limit_s: float,
        runtime: Runtime = THREADS,
        checkpoint: Callable[[int, str], None] | None = None,
    ) -> None:
        self.partition = partition
        self.runtime = runtime
        self.now = runtime.monotonic
        self._roles = roles
        self._call_limit_s = call_limit_s
        self._checkpoint = checkpoint
        self._over = runtime.signal()
        self._verdict: TermOver | None = None
        self._abandoned = False
        self._lock = threading.Lock()
        self._call: tuple[str, float] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the term was ended."""
        return self._over.is_set()

    def end(self, ending: Ending, detail: str) -> None:
        """Let the term end at its next step; the first reason counts. Returns at once."""
        with self._lock:
            if self._verdict is None:
                self._verdict = TermOver(ending, detail)
        self._over.set()

    def abandon(self, detail: str) -> None:
        """Declare the term over although its thread hangs: that one has no say any more."""
        with self._lock:
            self._abandoned = True
        self.end(Ending.ABANDONED, detail)

    def conclude(self, over: TermOver) -> TermOver:
        """The term's own thread has come to an end, for the reason ``over``; the reason that counts."""
        with self._lock:
            over = self._verdict if self._verdict is not None else over
            self._verdict = over
            if not self._abandoned:
                self._roles.to(Role.ENDING, over.detail)
        self._over.set()
        return over

    def overdue(self) -> str | None:
        """Name of a Kafka call that has exceeded its limit."""
        call = self._call
        return call[0] if call is not None and self.now() - call[1] > self._call_limit_s else None

    # -- for the term's own thread

    def check(self) -> None:
        """Raise where the term was ended.

        Raises:
            TermOver: It was.
        """
        if self._over.is_set():
            with self._lock:
                raise self._verdict or TermOver(Ending.STOPPED, "")

    def role(self, role: Role, reason: str = "") -> None:
        """Change the role, unless the term is over: then its thread has no say any more."""
        with self._lock:
            if self._verdict is not None:
                raise self._verdict
            self._roles.to(role, reason)

    def point(self, name: str) -> None:
        """A place between two steps."""
        if self._checkpoint is not None:
            self._checkpoint(self.partition, name)
        self.check()

    def wait(self, seconds: float) -> None:
        """Pause, no longer than until the term is ended.

        Raises:
            TermOver: It was ended.
        """
        self._over.wait(seconds)
        self.check()

    @contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """A call of Kafka, which may never return; one at a time, the term's thread or another makes it."""
        self._call = (name, self.now())
        try:
            yield
        finally:
            self._call = None
