"""From what was read to activations; what can't be read must not stop what comes behind it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from relevo.consumer.offsets import Entry, OffsetTracker
from relevo.stats import WorkerStats
from relevo_schemas.codec import decode
from relevo_schemas.delivery import Activation
from relevo_schemas.errors import RecordError, RecordFault

_log: Final = logging.getLogger("relevo.worker")


def activations(
    arrivals: Iterable[tuple[Entry, bytes]], tracker: OffsetTracker, stats: WorkerStats
) -> Iterator[tuple[Entry, Activation]]:
    """The activations among ``arrivals``; all else is logged, counted, and finished at once."""
    for entry, value in arrivals:
        try:
            activation = decode(value)
            if not isinstance(activation, Activation):
                raise RecordError(RecordFault.NOT_A_RECORD, f"a {type(activation).__name__} is no activation")
        except RecordError as error:
            where = f"{entry.ownership.topic} [{entry.ownership.partition}] at {entry.offset}"
            _log.error("%s can't be read, skipped: %s: %s", where, error.fault, error)
            stats.add("damaged")
            tracker.finish([entry])
        else:
            yield entry, activation
