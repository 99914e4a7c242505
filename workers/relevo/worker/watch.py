"""Tells a long-running handler what the log says of its job: cancelled, timed out, ended elsewhere."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

from relevo.client.results import finish_of
from relevo.errors import RelevoError
from relevo.follower import Follower, Interest
from relevo.worker.inquiries import SUPERSEDED
from relevo.worker.item import Item
from relevo_schemas.events import CommandRejected, JobTimedOut
from relevo_schemas.records import Event

EVERY: Final = 2**31
"""An attempt no later than which all are."""
V = TypeVar("V")
_log: Final = logging.getLogger("relevo.worker")

REMEMBERED_MAX: Final = 10_000
"""Renewals, and refusals that came before we knew our own offset; more than are ever under way."""

Attempt = tuple[Item, int]
Superseded = Callable[[Item, int], None]


class LossWatch:
    """Follows the log for the long-running jobs of one type.

    What the log says is certain, unlike silence: the engine has moved on, so the activation is of no more
    use either.

    Args:
        follower: Reads the log.
        lost: Called once for an item that is lost, with the reason.
        superseded: Called when the engine has moved on from an item's attempt.
    """

    def __init__(self, follower: Follower, lost: Callable[[Item, str], None], superseded: Superseded) -> None:
        self._follower = follower
        self._lost = lost
        self._superseded = superseded
        self._lock = threading.Lock()
        self._renewals: OrderedDict[tuple[int, int], dict[str, Attempt]] = OrderedDict()
        self._refusals: OrderedDict[tuple[int, int], dict[str, str]] = OrderedDict()

    def watch(self, item: Item) -> None:
        """Follow ``item`` from the log's end; what happened before comes as the refusal of a renewal."""
        watch = item.watch = _Watch()
        following = self._follower.follow(
            item.key,
            lambda _, event: self._heard(item, event),
            lambda error: self._failed(item, error),
            partition=item.partition,
        )
        following.add_done_callback(watch.attached)

    def sent(self, attempts: Sequence[Attempt], partition: int, offset: int) -> None:
        """A renewal for ``attempts`` stands at ``offset`` of commands ``partition``."""
        with self._lock:
            refused = self._refusals.pop((partition, offset), {})
            _remember(self._renewals, (partition, offset), {each[0].key: each for each in attempts})
        for item, attempt in attempts:
            if item.key in refused:
                self._not_renewed(item, attempt, refused[item.key])

    def _heard(self, item: Item, event: Event) -> None:
        """From the follower's thread."""
        if not item.running:
            return
        ending = finish_of(event)
        if ending is not None:
            self._supersede(item, EVERY, f"the job is {ending.state} already")
        elif isinstance(event, JobTimedOut) and event.attempt >= item.attempt:
            how = "it was handed to another worker" if event.cause == "TAKEN_OVER" else "its lease ran out"
            self._supersede(item, event.attempt, f"{how}, and another attempt follows")
        elif isinstance(event, CommandRejected) and event.reason in SUPERSEDED:
            self._refused(item, event)

    def _refused(self, item: Item, event: CommandRejected) -> None:
        if event.command not in ("StartJobs", "ExtendJobs", "CheckpointJob"):
            return
        place = (item.partition, event.source)
        with self._lock:
            ours = self._renewals.get(place)
            if ours is None:
                # Another worker's, or ours and its delivery report is still on the way.
                _remember(self._refusals, place, {event.key: event.reason}, merge=True)
                return
        found = ours.get(event.key)
        if found is not None and found[0] is item:
            self._not_renewed(item, found[1], event.reason)

    def _not_renewed(self, item: Item, attempt: int, reason: str) -> None:
        if item.attempt <= attempt:
            self._supersede(item, attempt, f"the engine refuses to renew its lease: {reason}")

    def _supersede(self, item: Item, attempt: int, reason: str) -> None:
        if item.running:
            # In this order: a handler that is cancelled when it is lost may end before we return.
            self._superseded(item, attempt)
            self._lost(item, reason)

    def _failed(self, item: Item, error: RelevoError) -> None:
        _log.info("job %r is not watched any more: %s", item.key, error)


class _Watch:
    """An interest that may be cancelled before it is there."""

    __slots__ = ("_cancelled", "_interest", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._interest: Interest | None = None

    def attached(self, following: Future[Interest]) -> None:
        """The follower follows, or can't."""
        if following.exception() is not None:
            return
        interest = following.result()
        with self._lock:
            self._interest = interest
            cancelled = self._cancelled
        if cancelled:
            interest.cancel()

    def cancel(self) -> None:
        """Watch no longer."""
        with self._lock:
            self._cancelled = True
            interest = self._interest
        if interest is not None:
            interest.cancel()


def _remember(
    kept: OrderedDict[tuple[int, int], dict[str, V]],
    key: tuple[int, int],
    value: dict[str, V],
    merge: bool = False,
) -> None:
    kept[key] = {**kept.get(key, {}), **value} if merge else value
    while len(kept) > REMEMBERED_MAX:
        kept.popitem(last=False)
