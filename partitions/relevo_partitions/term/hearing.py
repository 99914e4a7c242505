"""Up to when a leader has heard all that was sent to it: only until then does silence mean anything.

A worker that lives says so through Kafka. Its word may wait behind a million jobs that were created before
it, or find no broker for as long as the leader finds none. Neither is silence of the worker's. See ADR 19.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.statemachine import Heard

ASK_MS: Final = 1_000
"""How often Kafka is asked where the commands end, while anybody's silence would mean something. Once more
when somebody counts as silent."""
BREAK_MS: Final = 1_000
"""A leader that Kafka doesn't answer for longer, or that comes to no turn, could hear nobody meanwhile. Above
the longest turn under load; while Kafka takes as long over every single answer, nobody counts as silent."""


class Hearing:
    """Follows a leader through its commands. Used by the term's thread.

    How old a command is nobody says who could be believed: its timestamp is by the clock of another machine.
    So Kafka is asked for the end of the commands, and once they have been worked off up to there, everything
    is heard that was sent before the question.

    Args:
        began: When the leader began to listen, in milliseconds by its own clock.
        end: Asks Kafka where the commands end; see `relevo_partitions.ports.PartitionIO.commands_end`.
        spawn: Runs it beside this.
    """

    def __init__(
        self, began: int, end: Callable[[], int], spawn: Callable[[Callable[[], None]], object]
    ) -> None:
        self._since = self._until = self._now = self._asked_at = began
        self._end = end
        self._spawn = spawn
        self._asking = self._failed = False
        self._answer = -1
        self._marks: deque[tuple[int, int]] = deque()

    def listen(self, now: int, silent_at: int | None) -> None:
        """Before commands are read: ask where they end, if it is time to.

        Args:
            now: Milliseconds by the leader's clock.
            silent_at: When the next counts as silent, None where nobody does.
        """
        if now - self._now > BREAK_MS:
            self._since = now
        self._now = now
        if self._asking:
            return
        if self._answer >= 0:
            if self._failed or now - self._asked_at > BREAK_MS:
                self._since, self._failed = now, False
            self._marks.append((self._answer, self._asked_at))
            self._answer = -1
        if silent_at is not None and (now - self._asked_at >= ASK_MS or self._asked_at < silent_at <= now):
            self._asked_at, self._asking = now, True
            try:
                self._spawn(self._ask)
            except RuntimeError:  # no thread can be started
                self._asking = False

    def _ask(self) -> None:
        try:
            self._answer = self._end()
        except KafkaUnavailable:
            self._failed = True
        finally:
            self._asking = False

    def heard(self, read: int, waiting: int | None) -> Heard:
        """After they were read: what is heard once the batch that was taken is decided.

        Args:
            read: Offset up to which commands were read.
            waiting: Offset of the first that waits for a later batch, None where none does.
        """
        reached = read if waiting is None else waiting
        while self._marks and self._marks[0][0] <= reached:
            self._until = self._marks.popleft()[1]
        return Heard(self._since, self._until)
