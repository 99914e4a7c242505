"""A reader that is connected before it is needed.

librdkafka drops its handle of the bootstrap address with its first answer from the cluster, and whatever it
had asked there meanwhile with it; it asks again after 0.7 s. About one new consumer in fifty meets this with
its first question, in the middle of a takeover.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.fork import ForkGuard
from relevo_partitions.statemachine import LogDamaged

log: Final = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
"""After a reader that couldn't be connected, the next one is tried so much later."""


class Connectable(Protocol):
    """What `WarmReader` needs of a reader."""

    def connect(self) -> None:
        """Return once Kafka has answered it.

        Raises:
            KafkaUnavailable: Kafka doesn't answer.
            LogDamaged: There is no such partition.
        """

    def tend(self) -> None:
        """Serve its callbacks while nobody reads; never raises."""

    def close(self) -> None:
        """Let it go; returns at once."""


R = TypeVar("R", bound=Connectable)


class WarmReader(Generic[R]):
    """Keeps one reader ready, where that is wanted. Safe to use from several threads.

    Args:
        make: Makes a reader; asks nobody.
        now: Monotonic seconds.
    """

    def __init__(self, make: Callable[[], R], now: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._now = now
        self._lock = threading.Lock()
        self._ready: R | None = None
        self._wanted = False
        self._filling = False
        self._again_at = float("-inf")
        self._fork = ForkGuard("a warm reader")

    def keep(self, wanted: bool) -> None:
        """Hold a reader ready from now on, which is connected in the background; or let it go."""
        self._fork.check()
        with self._lock:
            self._wanted = wanted
            spare = None if wanted else self._ready
            self._ready = self._ready if wanted else None
            self._fill()
        if spare is not None:
            spare.close()

    def tend(self) -> None:
        """Serve the callbacks of a reader that waits, now and then; never raises."""
        with self._lock:
            if self._ready is not None:
                self._ready.tend()
            with contextlib.suppress(RuntimeError):  # no thread is left; later perhaps
                self._fill()

    def take(self) -> R:
        """The reader that is ready, else a new one, which has yet to connect. No other follows."""
        self._fork.check()
        with self._lock:
            self._wanted = False
            ready, self._ready = self._ready, None
        return ready if ready is not None else self._make()

    def _fill(self) -> None:
        """Start to connect one where it is missing. The lock is held."""
        missing = self._wanted and self._ready is None and not self._filling
        if missing and self._now() >= self._again_at:
            threading.Thread(target=self._run, name="relevo-warm-reader", daemon=True).start()
            self._filling = True  # not where no thread could be started

    def _run(self) -> None:
        reader: R | None = None
        connected = False
        try:
            reader = self._make()
            reader.connect()
            connected = True
        except (KafkaUnavailable, LogDamaged):
            pass
        except Exception as error:  # no thread left, a certificate being replaced: it may pass
            log.info("No reader can be made: %s", type(error).__name__)
        with self._lock:
            self._filling = False
            if not connected:
                self._again_at = self._now() + AGAIN_S
            kept = connected and self._wanted
            if kept:
                self._ready = reader
        if reader is not None and not kept:
            reader.close()
