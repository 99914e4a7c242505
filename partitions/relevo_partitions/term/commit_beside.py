"""A leader's transaction that is under way while the batch behind it is decided."""

from __future__ import annotations

from collections.abc import Sequence

from relevo_partitions.runtime import Runtime
from relevo_partitions.statemachine import Write
from relevo_partitions.term.term_writer import TermWriter


class CommitBeside:
    """Writes ``writes`` on a thread of its own; until `finish` nobody else may use ``writer``.

    Args:
        writer: Of the term.
        writes: All or nothing.
        commands: How many were decided in it.
        partition: Names the thread.
        runtime: Threads.
    """

    def __init__(
        self, writer: TermWriter, writes: Sequence[Write], commands: int, partition: int, runtime: Runtime
    ) -> None:
        self.writes = writes
        self._writer = writer
        self._commands = commands
        self._error: BaseException | None = None
        self._task = runtime.spawn(f"relevo-commit-{partition}", self._run)

    def _run(self) -> None:
        try:
            self._writer.commit(self.writes, self._commands)
        except BaseException as error:  # whatever it is, it is the term's
            self._error = error

    def wait(self) -> None:
        """Wait until it has ended, however."""
        self._task.join()

    def finish(self) -> None:
        """Wait until it has committed.

        Raises:
            Setback: It didn't, or that isn't known.
            TermOver: The term was ended before.
        """
        self.wait()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # else it refers to this frame, and this frame to it: see `collector_paused`
