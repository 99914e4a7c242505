"""A question to ZooKeeper that is under way while the barrier is written."""

from __future__ import annotations

from relevo_partitions.ports import Seat, Verdict
from relevo_partitions.runtime import Runtime, Task


class SeatAsked:
    """Asks at once, on a thread of its own, whether a claim stands.

    What the question is for is known only behind the fence, so that is when it is to be asked; the barrier
    needn't wait for the answer. A barrier changes nothing, whoever writes it.

    Args:
        seat: The claim.
        partition: Names the thread.
        runtime: Clock and threads.
    """

    def __init__(self, seat: Seat, partition: int, runtime: Runtime) -> None:
        self._seat = seat
        self._now = runtime.monotonic
        self._verdict = Verdict.UNKNOWN
        self._answered_at = self._now()
        self._task: Task | None = None
        try:
            self._task = runtime.spawn(f"relevo-verify-{partition}", self._ask)
        except RuntimeError:  # no thread can be started
            self._ask()

    def _ask(self) -> None:
        self._verdict = self._seat.verify()
        self._answered_at = self._now()

    def answer(self) -> tuple[Verdict, float]:
        """Wait for it: the verdict, and when it came."""
        if self._task is not None:
            self._task.join()
        return self._verdict, self._answered_at
