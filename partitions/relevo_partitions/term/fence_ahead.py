"""A fence that is under way while its node still claims the partition.

Where a leader is proven dead, its claim has to be deleted and another one made before its successor may lead;
the fence needs neither. What a fence shuts out can't commit, whoever holds the claim by then, so the order of
the two decides nothing but who has to repeat his fence.
"""

from __future__ import annotations

from collections.abc import Callable

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.ports import PartitionIO, Writer
from relevo_partitions.runtime import Runtime

LOOK_S = 0.05
"""Who waits for the fence looks so often whether it is still wanted."""


class FenceAhead:
    """Fences on a thread of its own, from now on. Finish it or give it up.

    Args:
        io: Of the partition.
        partition: For the thread's name.
        runtime: Runs the thread.
    """

    def __init__(self, io: PartitionIO, partition: int, runtime: Runtime) -> None:
        self._io = io
        self._writer: Writer | None = None
        self._problem = KafkaUnavailable("the fence ended without a word")
        self._given_up = runtime.signal()
        self._task = runtime.spawn(f"relevo-fence-{partition}", self._run)

    def finish(self, cancelled: Callable[[], bool]) -> Writer:
        """Wait for the fence.

        Raises:
            KafkaUnavailable: It didn't work, or ``cancelled`` said so.
        """
        while self._task.is_alive():
            if cancelled():
                self._given_up.set()
            self._task.join(LOOK_S)
        writer, self._writer = self._writer, None
        if writer is None:
            raise self._problem
        return writer

    def give_up(self) -> None:
        """Nobody will finish it: let its producer go, now or when it has one. Returns at once."""
        self._given_up.set()
        if not self._task.is_alive():
            self._let_go()

    def _run(self) -> None:
        try:
            self._writer = self._io.fence(self._given_up.is_set)
        except KafkaUnavailable as problem:
            self._problem = problem
        if self._given_up.is_set():
            self._let_go()

    def _let_go(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.drop()
