"""From the waiting line to the handler: claimed, asked about or committed where that comes first, started."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from relevo.consumer.offsets import Entry, OffsetTracker
from relevo.stats import WorkerStats
from relevo.worker.claims import Claims
from relevo.worker.doubts import Doubts
from relevo.worker.inquiries import Inquiries
from relevo.worker.item import Item
from relevo.worker.solitude import Desk
from relevo.worker.waiting import Waiting, note_suspect

CLAIM_BATCH_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Hands:
    """What `Starting` has done for it. All are called in the gate's thread.

    Attributes:
        submit: Starts the handlers of items.
        commit: Commits messages that are about to be run; `Starting.granted` follows. None: what is run is
            committed afterwards.
        still_ours: Whether an item may be started at all; it is seen to where it may not.
        drop: Called for an item whose attempt the engine has moved on from.
    """

    submit: Callable[[list[Item]], None]
    commit: Callable[[list[Entry]], None] | None
    still_ours: Callable[[Item], bool]
    drop: Callable[[Item], None]


class Starting:
    """Starts as many as there are slots. Used by the gate's thread.

    Args:
        waiting: Who waits to be started.
        claims: Asks the dedup store.
        doubts: What the engine is asked about.
        desk: Says who may begin in this process.
        tracker: Says whose a message is.
        concurrency: How many handlers may run at once.
        stats: Counters.
        hands: Does the rest.

    Attributes:
        running: Handlers at work, by key.
        kept: Those, and whatever else holds a lease and a claim that must not end, by key.
    """

    def __init__(
        self,
        waiting: Waiting,
        claims: Claims,
        doubts: Doubts,
        desk: Desk,
        tracker: OffsetTracker,
        concurrency: int,
        stats: WorkerStats,
        hands: Hands,
    ) -> None:
        self._waiting = waiting
        self._claims = claims
        self._doubts = doubts
        self._desk = desk
        self._tracker = tracker
        self._concurrency = concurrency
        self._stats = stats
        self._hands = hands
        self._committing: dict[Entry, Item] = {}
        self.running: dict[str, Item] = {}
        self.kept: dict[str, Item] = {}

    @property
    def _slots(self) -> int:
        return self._concurrency - len(self.running) - len(self._committing)

    @property
    def free(self) -> int:
        """How many may be started that need not be asked about."""
        return self._slots - len(self._doubts)

    @property
    def room(self) -> int:
        """How many of those who wait may be claimed now."""
        return self.free + (self._doubts.ahead if self._waiting.doubtful else 0)

    def admit(self, now: float, inquiries: Inquiries | None) -> None:
        """Start what there are slots for; ``inquiries`` asks about doubtful starts."""
        if self._doubts.cleared:
            self._start_cleared(now)
        room = self.room
        if room <= 0 or not self._waiting:
            return
        limit = self._claims.limit(min(room, CLAIM_BATCH_MAX))
        batch = self._waiting.next(limit, self._claims, now, self.free)
        if not batch:
            return
        mine = self._claims.take(batch, now)
        self._desk.leave(set(batch).difference(mine))
        if inquiries is not None:
            mine = self._ask_about_doubtful(inquiries, mine, now)
        if self._hands.commit is not None:
            mine = self._commit_first(self._hands.commit, mine)
        self.run(mine, now)

    def run(self, mine: list[Item], now: float) -> None:
        """Start these, but for what went to another worker meanwhile."""
        if not mine:
            return
        mine = self._not_revoked(mine)
        for item in mine:
            item.start(now, self._claims.seconds(item))
            self.running[item.key] = self.kept[item.key] = item
            if self._waiting.is_suspect(item):
                note_suspect(item, self._stats)
            if len(item.entries) > 1:
                self._tracker.start(item.entries[1:])
        if mine:
            self._stats.add("started", len(mine))
            self._hands.submit(mine)

    def _not_revoked(self, mine: list[Item]) -> list[Item]:
        """Those that are still ours: for the claims of the others their next owner shall not wait."""
        allowed = self._tracker.start([item.entries[0] for item in mine])
        if all(allowed):
            return mine
        dropped = [item for item, ours in zip(mine, allowed, strict=True) if not ours]
        self._let_go(dropped)
        for item in dropped:
            if self._hands.still_ours(item):
                self._waiting.put_first(item)
        return [item for item, ours in zip(mine, allowed, strict=True) if ours]

    def _let_go(self, items: list[Item]) -> None:
        """These don't run here after all."""
        self._claims.give_back(items)
        self._desk.leave(items)
        for item in items:
            self.kept.pop(item.key, None)

    # Asked about first

    def _ask_about_doubtful(self, inquiries: Inquiries, mine: list[Item], now: float) -> list[Item]:
        """Ask the engine about what may have been started before, and about suspects; returns the rest.

        For the engine they are started with that: a hand-over waits for them, as the next owner's question
        would end their attempts.
        """
        doubtful = [item for item in mine if item.entries[0].doubtful or self._waiting.is_suspect(item)]
        if not doubtful:
            return mine
        rest = set(mine).difference(doubtful)
        doubtful = self._not_revoked(doubtful)
        if doubtful:
            self._doubts.ask(inquiries, doubtful, now)
        return [item for item in mine if item in rest]

    def decided(self, item: Item, may_run: bool, now: float) -> None:
        """The engine has answered whether an item may run, or was waited for long enough."""
        if not self._doubts.settle(item):
            return
        if may_run and self._slots > 0 and not self._doubts.cleared:
            self.run([item], now)
        elif may_run:
            self._doubts.clear(item, now)
            self.kept[item.key] = item
        else:
            self._not_to_run(item)

    def _start_cleared(self, now: float) -> None:
        cleared = self._doubts.cleared
        # Whoever has their partitions now shall not wait for a slot here.
        lost = [item for item in cleared if item.entries[0].gone and item.entries[0].ownership.ended]
        for item in lost:
            cleared.remove(item)
        slots = max(0, self._slots)
        self.run(lost + [cleared.popleft() for _ in range(min(len(cleared), slots))], now)

    def _not_to_run(self, item: Item) -> None:
        self._doubts.seen_to(1)
        self._desk.leave([item])
        if item.attempt == item.reported:
            self._hands.drop(item)
            return
        # A later attempt came while we asked about this one.
        self._claims.unlock([item])
        self._tracker.put_back(item.entries)
        self._waiting.put_first(item)

    # Committed first

    def _commit_first(self, commit: Callable[[list[Entry]], None], mine: list[Item]) -> list[Item]:
        """Let those be committed that aren't; returns those that are. They have their slots meanwhile."""
        entries = [item.entries[0] for item in mine if not item.entries[0].committed]
        self._committing.update((item.entries[0], item) for item in mine if not item.entries[0].committed)
        if entries:
            commit(entries)
        return [item for item in mine if item.entries[0] not in self._committing]

    def granted(self, entries: Iterable[Entry], now: float) -> None:
        """These have been committed, and nobody else is given them; or they are another worker's."""
        mine = []
        for entry in entries:
            item = self._committing.pop(entry, None)
            if item is None:
                continue
            if entry.committed:
                mine.append(item)
                continue
            self._desk.leave([item])
            if self._hands.still_ours(item):
                self._waiting.put_first(item)
        self.run(mine, now)

    # Ending

    def ended(self, items: list[Item]) -> None:
        """Handlers have ended."""
        for item in items:
            self.running.pop(item.key, None)
        self._desk.leave(items)
        self._doubts.seen_to(len(items))

    def stop(self) -> None:
        """Start nothing more, but for what was committed already."""
        self._desk.withdraw()
        self._let_go(self._doubts.forget())
