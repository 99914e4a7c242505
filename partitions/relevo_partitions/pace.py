"""Work that nobody waits for, done so that those who lead in the same process don't wait for it either.

Python runs one thread at a time, and takes the turn from one that computes only every 5 ms
(`sys.getswitchinterval`). A leader asks for its turn some twenty times in a transaction: beside a thread that
computes without a break its partition stands still for a tenth of a second and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from relevo_partitions.runtime import THREADS, Runtime

T = TypeVar("T")


class Pace:
    """Rests after each piece of work for as long as it took.

    Args:
        runtime: Clocks and waiting.
        hurried: Asked after each piece: whether somebody waits for the whole, so that there is no rest.
    """

    def __init__(self, runtime: Runtime, hurried: Callable[[], bool] = lambda: False) -> None:
        self._runtime = runtime
        self._hurried = hurried

    def through(self, pieces: Iterable[T]) -> Iterator[T]:
        """The pieces, of about a millisecond's work each, to be worked on one by one."""
        now = self._runtime.monotonic
        for piece in pieces:
            began = now()
            yield piece
            took = now() - began
            if took > 0 and not self._hurried():
                self._runtime.sleep(took)


AT_ONCE: Final = Pace(THREADS, lambda: True)
"""Without any rest: somebody waits."""
