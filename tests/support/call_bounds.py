"""How long a leader keeps a partition although one of its calls of Kafka is never answered.

The sums that docs/operations.md explains, from the limits as they are now: a test may have made them smaller.
"""

from __future__ import annotations

from collections.abc import Callable

from relevo_partitions.kafka import fence as fencing
from relevo_partitions.kafka import writer as writing
from relevo_partitions.settings import TermSettings
from relevo_partitions.term import leadership as terms

FLUSH_OVER_S = 1.0
"""A flush is given so much more than the records in it, so that their failures are heard of."""


def fence_s() -> float:
    """One fence; its last try begins within the limit."""
    return fencing.LIMIT_S + (fencing.CONNECT_TIMEOUT_S + 1.0) + fencing.TRY_MAX_S


def delivery_s() -> float:
    """A transaction whose records aren't taken: the wait for them, and an abort without an answer."""
    return writing.DELIVERY_TIMEOUT_S + FLUSH_OVER_S + writing.ABORT_TIMEOUT_S


def _fruitless(attempt_s: float) -> float:
    """One attempt, then others until the term counts as fruitless, the last of which began just before."""
    return attempt_s + terms.FRUITLESS_S + attempt_s


GIVEN_UP_S: dict[str, Callable[[], float]] = {
    "init": fence_s,
    "first produce": lambda: _fruitless(delivery_s()),
    "flush": lambda: _fruitless(delivery_s()),
    "commit": lambda: _fruitless(writing.COMMIT_TIMEOUT_S),
    "abort": delivery_s,
    "fetch": lambda: 2 * TermSettings().stall_s,
}
"""From the first request of the kind that isn't answered until the leader does without the call: it gives the
partition up, or, for an abort, makes another producer that has nothing to abort."""


def all_s() -> float:
    """The same where nothing is answered any more: a commit is given up, then the fence behind it."""
    return writing.DELIVERY_TIMEOUT_S + FLUSH_OVER_S + writing.COMMIT_TIMEOUT_S + fence_s()
