"""Whether the jobs that somebody knows to have been accepted are there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final

from relevo_engine.core.job import JobState
from relevo_engine.verify.facts import PENDING, REFUSED, FactStore, JobFacts
from relevo_engine.verify.report import Expected
from relevo_schemas.partitioning import partition_of

MISSING_KEYS_MAX: Final = 100
_BATCH_MAX: Final = 2_000


def look_for(
    keys: Iterable[str],
    store: FactStore,
    partitions: int,
    trimmed: dict[int, bool],
    lost: Callable[[int, str], None],
) -> Expected:
    """What became of the jobs with these keys, by the facts of a log that was read to its end.

    Args:
        keys: The keys; taken in small pieces, so that there may be any number.
        store: The facts.
        partitions: How many partitions the log has.
        trimmed: Those that were read, each with whether its beginning is gone.
        lost: Told the partition and key of each job of which nothing is found.

    Raises:
        VerifyError: There is no room for the facts.
    """
    expected = Expected()
    left = iter(keys)
    while some := list(islice(left, _BATCH_MAX)):
        store.load(set(some))
        for key in some:
            _one(expected, key, store.get(key), partition_of(key, partitions), trimmed, lost)
    return expected


def _one(
    expected: Expected,
    key: str,
    facts: JobFacts | None,
    partition: int,
    trimmed: dict[int, bool],
    lost: Callable[[int, str], None],
) -> None:
    expected.given += 1
    if partition not in trimmed:
        expected.elsewhere += 1
    elif facts is not None and facts.code == PENDING:
        expected.pending += 1
    elif facts is not None and facts.code == REFUSED:
        expected.refused += 1
    elif facts is not None:
        if facts.state is JobState.COMPLETED:
            expected.completed += 1
        elif facts.ended:
            expected.ended_otherwise += 1
        else:
            expected.open += 1
    elif trimmed[partition]:
        expected.before_start += 1
    else:
        expected.missing += 1
        if len(expected.missing_keys) < MISSING_KEYS_MAX:
            expected.missing_keys.append(key)
        lost(partition, key)


def note_pending(keys: Collection[str], partition: int, store: FactStore) -> None:
    """Remember jobs whose creation is not decided yet.

    Raises:
        VerifyError: There is no room for the facts.
    """
    store.load(keys)
    for key in keys:
        if store.get(key) is None:
            store.put(key, JobFacts(partition, PENDING))
